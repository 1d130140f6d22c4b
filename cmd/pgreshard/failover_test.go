package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// longestWithout is the longest time without a worker that is allowed, also to one whose machine is gone with it.
const longestWithout = 15 * time.Second

// host is a machine on which a worker runs, again and again: nothing is shared with the other but the databases. Its name is
// its own, where this machine allows that, so that nobody sees from outside that its worker has died.
type host struct {
	name, file, listen string
	env                []string
	worker             *process
}

// pair is a move with two hosts.
type pair struct {
	*rig
	hosts [2]*host
	named bool // each has a name of its own
}

func newPair(t *testing.T, r *rig, more string) *pair {
	t.Helper()
	p := &pair{rig: r, named: exec.Command("unshare", "--uts", "hostname", "probe").Run() == nil}
	for i, name := range []string{"one", "other"} {
		h := &host{name: name, file: filepath.Join(t.TempDir(), "pgreshard.toml"), listen: freePort(t), env: []string{stateVariable + "=" + t.TempDir()}}
		writeConfig(t, h.file, r.name, h.listen, urls(r.sources), urls(r.shards), workloadRules+more)
		p.hosts[i] = h
		p.begin(h)
	}
	return p
}

// begin starts a host's worker.
func (p *pair) begin(h *host) {
	p.t.Helper()
	words := []string{binary(p.t), "-c", h.file, "migrate", "--hold"}
	if p.named {
		words = append([]string{"unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, h.name}, words...)
	}
	h.worker = launch(p.t, h.env, exec.Command(words[0], words[1:]...))
}

// ready is what an orchestrator sees of a host.
func (h *host) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.listen+"/readyz", nil)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// holder is the host whose worker has the lease, nil while neither has; other is the other one.
func (p *pair) holder() (holder, other *host) {
	p.t.Helper()
	if p.shards[0].Query(p.t, `select to_regclass('pgreshard.lease') is not null`)[0][0] != "t" {
		return nil, nil
	}
	for i, h := range p.hosts {
		if len(p.shards[0].Query(p.t, `select 1 from pgreshard.lease where pid = $1`, h.worker.cmd.Process.Pid)) == 1 && !h.worker.over() {
			return h, p.hosts[1-i]
		}
	}
	return nil, nil
}

// await waits for something of which one of the workers takes care.
func (p *pair) await(what string, done func() bool) {
	p.t.Helper()
	for !done() {
		if p.t.Context().Err() != nil || p.hosts[0].worker.over() && p.hosts[1].worker.over() {
			p.t.Fatalf("never: %s\none:\n%s\nother:\n%s", what, p.hosts[0].worker.both.String(), p.hosts[1].worker.both.String())
		}
		pause(p.t.Context())
	}
}

// kill ends the worker that has the lease, and is told how long it was until the other had it.
func (p *pair) kill(h, other *host) time.Duration {
	p.t.Helper()
	h.worker.kill()
	at := time.Now()
	p.await("the other has the lease", func() bool { now, _ := p.holder(); return now == other })
	took := time.Since(at)
	p.begin(h)
	return took
}

// Two workers with the same file, on hosts of their own: the one that works is killed at random moments of the copy, the
// stream and the cutover, and the other has its work within seconds. Never do both say that they work.
// FAILOVERS is how often, FAILOVER_SEED runs one again.
func TestThereIsAlwaysOneWorkerAndNeverTwo(t *testing.T) {
	t.Parallel()
	kills, err := strconv.Atoi(cmp.Or(os.Getenv("FAILOVERS"), "3"))
	if err != nil {
		t.Fatal(err)
	}
	seed := pgtest.Seeds(t, "FAILOVER_SEED", 1)[0]
	t.Logf("FAILOVER_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	cluster := pgtest.Shared(t)
	var sources, shards []*pgtest.DB
	for range 3 {
		sources = append(sources, cluster.Database(t))
	}
	for range 2 {
		shards = append(shards, cluster.Database(t))
	}
	more := "[cutover]\nreverse = false\nmax_freeze = \"30s\"\n" + sourceRules
	r := rigOn(t, sources, shards, pgtest.WorkloadOptions{Writers: 4, Rate: 60, Seed: seed, Lookups: true, KeyChanges: true, NewTenants: true}, more)
	for _, db := range sources {
		db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
	}
	stop := r.write()
	p := newPair(t, r, more)

	watching, done := context.WithCancel(t.Context())
	watched := make(chan int)
	go func() {
		twice := 0
		for watching.Err() == nil {
			if p.hosts[0].ready(watching) && p.hosts[1].ready(watching) && p.hosts[0].ready(watching) {
				twice++
			}
			pause(watching)
		}
		watched <- twice
	}()

	var longest time.Duration
	var hit []string
	killed := func(h, other *host) {
		state, took := r.state(), p.kill(h, other)
		longest = max(longest, took)
		hit = append(hit, fmt.Sprintf("%s in %s, taken over after %.1f s", h.name, state, took.Seconds()))
	}
	var holder, other *host
	for n := range kills - 1 {
		p.await("one has the lease", func() bool { holder, other = p.holder(); return holder != nil && r.begun() })
		if n >= (kills-1)/2 { // the ones before at whatever it does first, as the copy
			p.await("it follows the sources and is ready", func() bool { return r.state() == "streaming" && holder.ready(t.Context()) })
			if other.ready(t.Context()) {
				t.Errorf("%s has the lease and %s is ready", holder.name, other.name)
			}
		}
		time.Sleep(time.Duration(random.Int64N(int64(time.Second)))) // the moment is what is random
		killed(holder, other)
	}
	// The last one is killed in its cutover: in the check, or while writes are refused.
	p.await("it is safe to cut over", func() bool {
		holder, other = p.holder()
		return holder != nil && r.begun() && r.state() == "streaming" && holder.ready(t.Context())
	})
	asked := start(t, holder.env, "-c", holder.file, "cutover")
	within := time.Second
	if random.IntN(2) == 0 {
		p.await("the cutover", func() bool { return asked.over() || r.state() == "cutting_over" })
		within /= 4
	}
	time.Sleep(time.Duration(random.Int64N(int64(within))))
	if !holder.worker.over() {
		killed(holder, other)
	}
	for !r.ended() {
		p.await("one works", func() bool {
			holder, other = p.holder()
			return r.ended() || holder != nil && holder.ready(t.Context())
		})
		if !r.ended() {
			start(t, holder.env, "-c", holder.file, "cutover").wait(t)
		}
	}
	for _, h := range p.hosts {
		if code, said := h.worker.wait(t); code != exitDone {
			t.Errorf("%s ended with %d:\n%s", h.name, code, said)
		}
	}
	done()
	if twice := <-watched; twice > 0 {
		t.Errorf("%d times both said that they work", twice)
	}
	t.Logf("names of their own: %t; %v; the longest time without a worker was %.1f s", p.named, hit, longest.Seconds())
	if longest > longestWithout || len(hit) < kills-1 {
		t.Errorf("killed %d times, the longest time without a worker was %s", len(hit), longest)
	}
	if err := r.load.Committed(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	stop()
	http.DefaultClient.CloseIdleConnections()
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

// begun says whether the move is recorded; ended whether it is over.
func (r *rig) begun() bool {
	r.t.Helper()
	return len(r.shards[0].Query(r.t, `select 1 from pgreshard.move`)) == 1
}

func (r *rig) ended() bool { r.t.Helper(); return r.state() == "completed" }

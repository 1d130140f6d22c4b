package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// scales are how many sources and shards one worker moves.
var scales = []struct{ sources, shards int }{{2, 2}, {1, 4}, {1, 16}, {4, 8}, {8, 16}}

// What one worker needs at each scale, for docs/scale.md; and never more connections to a database than plan has said.
// PGRESHARD_TEST_SCALE runs all of them, else the first is.
func TestAWorkerOpensNoMoreConnectionsThanPlanned(t *testing.T) {
	t.Parallel()
	if os.Getenv("PGRESHARD_TEST_SCALE") == "" {
		pgtest.OneIn(t, 3)
	}
	for n, s := range scales {
		if n > 0 && os.Getenv("PGRESHARD_TEST_SCALE") == "" {
			break
		}
		t.Run(fmt.Sprintf("%d sources, %d shards", s.sources, s.shards), func(t *testing.T) { scaled(t, s.sources, s.shards) })
	}
}

// opened counts the sessions of ours, the most at one time for each database.
type opened struct {
	mu   sync.Mutex
	most map[string]int
}

// count asks a server until the test ends.
func (o *opened) count(t *testing.T, c *pgtest.Cluster) {
	conn, ended := c.Existing("postgres").Conn(t), make(chan struct{})
	ask := func() {
		var name string
		var n int
		rows, err := conn.Query(t.Context(), `select datname, count(*) from pg_stat_activity where starts_with(application_name, 'pgreshard') group by 1`)
		for err == nil && rows.Next() {
			if err = rows.Scan(&name, &n); err == nil {
				o.mu.Lock()
				o.most[name] = max(o.most[name], n)
				o.mu.Unlock()
			}
		}
	}
	go func() {
		defer close(ended)
		for t.Context().Err() == nil {
			ask()
			pause(t.Context())
		}
	}()
	t.Cleanup(func() { <-ended })
}

func scaled(t *testing.T, n, m int) {
	from := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_connections": "500", "max_wal_senders": "60", "max_replication_slots": "60"}})
	into := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_connections": "900"}})
	var sources, shards []*pgtest.DB
	for range n {
		sources = append(sources, from.Database(t))
	}
	for range m {
		shards = append(shards, into.Database(t))
	}
	more := "[cutover]\nreverse = false\nmax_freeze = \"1m\"\n"
	if n > 1 {
		more += sourceRules
	}
	r := rigOn(t, sources, shards, pgtest.WorkloadOptions{Rate: 100, Lookups: true, KeyChanges: true}, more)
	for _, db := range sources {
		db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
	}
	code, out, said := r.run("plan", "--json")
	var plan move.Plan
	if err := json.Unmarshal([]byte(out), &plan); err != nil || code != exitDone {
		t.Fatalf("plan: %d, %v\n%s", code, err, said)
	}
	o := &opened{most: map[string]int{}}
	o.count(t, from)
	o.count(t, into)

	worker := r.start("migrate", "--hold")
	r.awaitSafe(worker)
	pid := worker.cmd.Process.Pid
	spent := func(what string, d time.Duration) {
		before, commits, began := cpu(t, pid), r.load.Stats().Commits, time.Now()
		time.Sleep(d) // what is measured is a stretch of time
		took := time.Since(began).Seconds()
		t.Logf("%s: %.0f transactions/s, %.1f %% of a core", what, float64(r.load.Stats().Commits-commits)/took, 100*(cpu(t, pid)-before).Seconds()/took)
	}
	stretch := time.Second
	if testing.Verbose() {
		stretch = 10 * time.Second
	}
	spent("idle", stretch)
	stop := r.write()
	spent("following", stretch)
	stop()
	r.awaitSafe(worker)
	memory := highWater(pid)
	for code := exitCheck; code != exitDone; { // on a busy machine it is not safe at every moment
		if code, _, said = r.run("cutover"); code != exitDone && code != exitCheck {
			t.Fatalf("cutover ended with %d:\n%s", code, said)
		}
	}
	if code, said := worker.wait(t); code != exitDone {
		t.Fatalf("the worker ended with %d:\n%s", code, said)
	}
	r.compare()
	r.placed()

	o.mu.Lock()
	defer o.mu.Unlock()
	for _, node := range plan.Nodes {
		db := map[string][]*pgtest.DB{"source": sources, "destination": shards}[node.Side][node.Shard]
		most := o.most[db.Name]
		if most > node.Sessions || most == 0 {
			t.Errorf("%s shard %d: %d connections at one time, plan said %d", node.Side, node.Shard, most, node.Sessions)
		}
		if node.Shard == 0 {
			t.Logf("%s shard 0: %d connections at one time, plan said %d", node.Side, most, node.Sessions)
		}
	}
	t.Logf("peak resident memory of the worker: %.0f MB", mb(memory))
}

// cpu is the processor time a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime, in hundredths of a second
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestWhatARollbackSaysWhereNoWorkerRuns(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]struct {
		code int
		says string
	}{
		move.StateSwitched:  {exitFailed, "no worker runs this move (hint: `pgreshard migrate` runs one, which goes on"},
		move.StateCompleted: {exitCheck, "all that was written since the switch would be lost"},
		move.StateStreaming: {exitFailed, "the move is streaming (no worker runs this move) (hint: a rollback is for a move that has switched)"},
	} {
		code, _, stderr := call(t, &fakeEngine{status: move.Status{State: state, Idle: true}}, freePort(t), "rollback")
		if code != want.code || !strings.Contains(stderr, want.says) {
			t.Errorf("%s: %d, %s", state, code, stderr)
		}
	}
}

// following waits until the worker says that a rollback would lose nothing.
func (r *rig) following(p *process) {
	r.t.Helper()
	r.until(p, func(s move.Status) bool { return s.Reverse != nil && s.Reverse.Rollback.OK })
}

// until asks a worker for its status again and again.
func (r *rig) until(p *process, ok func(move.Status) bool) {
	r.t.Helper()
	for s := (move.Status{}); !ok(s); pause(r.t.Context()) {
		if p.over() {
			r.t.Fatalf("the worker ended with %d; its last status was %+v:\n%s", p.code, s, p.both.String())
		}
		request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.listen+"/status", nil)
		if err != nil {
			r.t.Fatal(err)
		}
		request.Close = true
		reply, err := http.DefaultClient.Do(request)
		if err != nil { // it does not listen yet
			continue
		}
		s = move.Status{}
		err = json.NewDecoder(reply.Body).Decode(&s)
		_ = reply.Body.Close()
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// layoutServes fails unless every node says that a layout serves.
func (r *rig) layoutServes(version int) {
	r.t.Helper()
	for _, db := range append(r.shards, r.sources...) {
		if got := db.Query(r.t, `select version from pgreshard.serving`); fmt.Sprint(got) != fmt.Sprintf("[[%d]]", version) {
			r.t.Errorf("%s says that layout %v serves, want %d", db.Name, got, version)
		}
	}
}

func TestTheOldLayoutFollowsByDefaultAndCompleteReachesTheWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 100, Lookups: true}, "[copy]\nworkers = 1\n")
	stop := r.write()
	p := r.start("migrate", "--yes")
	r.following(p)
	if code, out, said := r.run("status"); code != exitDone || !strings.Contains(out, "back:   a rollback would lose nothing\n") ||
		!strings.Contains(out, "the old layout follows it until pgreshard complete or pgreshard rollback") {
		t.Errorf("status: %d\n%s", code, said)
	}
	p.kill()
	if code, out, said := r.run("status"); code != exitDone || !strings.Contains(out, "back:   the old layout follows destination shard 1, ") {
		t.Errorf("status without a worker: %d\n%s", code, said)
	}
	p = r.start("migrate", "--yes")
	r.following(p)
	stop()
	if code, _, said := r.run("complete", "--release-source"); code != exitDone || !strings.Contains(said, "what stays: the layout record on every shard\n") {
		t.Errorf("complete: %d\n%s", code, said)
	}
	if code, said := p.wait(t); code != exitDone {
		t.Errorf("the worker ended with %d:\n%s", code, said)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	for _, db := range append(r.shards, r.sources...) {
		if left := db.Query(t, `select (select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication),
			(select count(*) from pg_trigger where tgname like '%pgreshard%'), (select count(*) from pgreshard.checkpoint)`); fmt.Sprint(left) != "[[0 0 0 0]]" {
			t.Errorf("%s: slots, publications, fences, checkpoints left: %v", db.Name, left)
		}
	}
}

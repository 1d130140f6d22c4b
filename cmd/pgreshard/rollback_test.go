package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
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
	var s struct {
		Reverse *struct {
			Rollback struct {
				OK bool `json:"ok"`
			} `json:"rollback"`
		} `json:"reverse"`
	}
	for s.Reverse == nil || !s.Reverse.Rollback.OK {
		select {
		case <-p.ended:
			r.t.Fatalf("the worker ended with %d and follows nothing:\n%s", p.code, p.both.String())
		default:
			pause(r.t.Context())
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
		err = json.NewDecoder(reply.Body).Decode(&s)
		_ = reply.Body.Close()
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// Kills within a rollback, as kills has them of a move: before the switch back the new layout serves, from there on the old.
var rollbackKills = []struct {
	state  string
	source bool // the gate is on the source
	point  string
	serves int
}{
	{"switched", false, "state rolling_back", 2},
	{"rolling_back", false, "freeze after", 2},
	{"rolling_back", false, "finish after", 2},
	{"rolling_back", false, "seal after", 2},
	{"rolling_back", false, "switch before", 2},
	{"rolling_back", false, "open before", 1},
	{"rolled_back", true, "serving", 1},
}

func TestAWorkerKilledInARollbackEndsInOneServingLayout(t *testing.T) {
	t.Parallel()
	hooks := filepath.Join(t.TempDir(), "hooks")
	r := newRig(t, 2, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true},
		"[copy]\nworkers = 2\n"+loggingHooks(hooks)+accountsRule)
	total := r.watchTotals(t)
	home := newGates(t, r.shards[0])
	stop := r.write()
	p := r.start("migrate", "--yes")
	r.following(p)
	source := newGates(t, r.sources[0]) // only now, or the schema's copy would have them
	for _, k := range rollbackKills {
		g := home
		if k.source {
			g = source
		}
		g.shut(t, k.point)
		if got := r.state(); got == "switched" {
			r.start("rollback") // ends when the worker does
		}
		g.await(t, p, k.point)
		if got := r.state(); got != k.state {
			t.Fatalf("at %q the move is %s, want %s\n%s", k.point, got, k.state, p.both.String())
		}
		if k.state == "rolled_back" {
			total.follows(t, 1)
		}
		p.kill()
		g.open(t, k.point)
		p = r.start("migrate", "--yes")
		if k.serves == 1 {
			continue
		}
		r.following(p)
		r.layoutServes(2)
		if err := r.load.Committed(t.Context(), 20); err != nil {
			t.Fatal(err)
		}
	}
	if code, said := p.wait(t); code != exitDone {
		t.Fatalf("the last run ended with %d:\n%s", code, said)
	}
	if got := r.state(); got != "rolled_back" {
		t.Errorf("the move is %s", got)
	}
	r.layoutServes(1)
	if err := r.load.Committed(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	stop()
	total.check(t, 1, 2, 1)
	t.Logf("%+v", r.load.Stats())
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.sources)...); err != nil {
		t.Error(err)
	}
	if ran, err := os.ReadFile(hooks); err != nil || !regexp.MustCompile(`^before_freeze\nafter_switch\n(before_freeze\nafter_undo\n){5}before_freeze\nafter_switch\n$`).Match(ran) {
		t.Errorf("hooks ran as %q, %v", ran, err)
	}
	if code, out, said := r.run("status"); code != exitDone || !strings.Contains(out, "rolled_back: layout 1 serves again") {
		t.Errorf("status: %d\n%s", code, said)
	}
	if code, _, said := r.run("cancel", "--drop-data"); code != exitDone {
		t.Errorf("cancel: %d\n%s", code, said)
	}
	untouched(t, r.sources...)
	untouched(t, r.shards...)
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

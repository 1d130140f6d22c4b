package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// Each kill is at a place where the worker's write is under way: shard is the database whose server holds it there,
// state the move's at that moment. late: the held transaction is let go only when the next worker has taken over, as a
// backend may outlive the connection it served; that worker has ended it.
var kills = []struct {
	state string
	shard int
	point string
	late  bool
}{
	{"created", 0, "state schema", false},
	{"schema", 1, "made public.orders", false},
	{"schema", 0, "state copying", true},
	{"copying", 1, "first chunks", false},
	{"copying", 2, "chunk", true},
	{"copying", 0, "state indexing", false},
	{"indexing", 2, "made public.orders_tenant", true},
	{"indexing", 0, "state streaming", false},
	{"streaming", 1, "checkpoint", true},
	{"streaming", 2, "checkpoint", false},
	{"streaming", 0, "state cutting_over", false},
	{"cutting_over", 0, "freeze after", false},
	{"cutting_over", 0, "drain after", true},
	{"cutting_over", 0, "seal after", false},
	{"cutting_over", 0, "open before", false}, // behind the switch
	{"switched", 1, "serving", false},
	{"switched", 0, "state completed", true},
}

// loggingHooks are hooks that leave their names in a file.
func loggingHooks(file string) (section string) {
	section = "[hooks]\n"
	for _, name := range []string{"before_freeze", "after_undo", "after_switch"} {
		section += fmt.Sprintf("%s = [\"sh\", \"-c\", \"echo $PGRESHARD_STEP >> '%s'\"]\n", name, file)
	}
	return section
}

func TestAWorkerKilledInEveryStateGoesOnToTheSameEnd(t *testing.T) {
	t.Parallel()
	hooks := filepath.Join(t.TempDir(), "hooks")
	r := newRig(t, 3, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true},
		"[cutover]\nreverse = false\nmax_freeze = \"60s\"\n[copy]\nworkers = 2\n"+loggingHooks(hooks)) // the machine may be busy
	var all []*gates
	for _, db := range r.shards {
		all = append(all, newGates(t, db))
	}
	stop := r.write()
	if err := r.load.Committed(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	var hit []string
	late := func(*process) {}
	for _, k := range kills {
		g := all[k.shard]
		g.shut(t, k.point)
		p := r.start("migrate", "--yes")
		late(p)
		g.await(t, p, k.point)
		if got := r.state(); got != k.state {
			t.Fatalf("at %q the move is %s, want %s\n%s", k.point, got, k.state, p.both.String())
		}
		p.kill()
		hit = append(hit, fmt.Sprintf("%s at %q on shard %d", k.state, k.point, k.shard))
		if k.point == "open before" { // both sides refuse writes: they must be equal now
			r.compare()
			r.placed()
		}
		late = func(*process) {}
		if !k.late {
			g.open(t, k.point)
			continue
		}
		pid := p.cmd.Process.Pid
		late = func(next *process) {
			r.awaitLease(next, pid)
			g.open(t, k.point)
		}
	}
	p := r.start("migrate", "--yes")
	late(p)
	if code, said := p.wait(t); code != exitDone {
		t.Fatalf("the last run ended with %d:\n%s", code, said)
	}
	t.Logf("killed %d times: %s", len(hit), strings.Join(hit, "; "))
	if got := r.state(); got != "completed" {
		t.Errorf("the move is %s", got)
	}
	if err := r.load.Committed(t.Context(), 200); err != nil {
		t.Fatal(err)
	}
	stop()
	// Whatever the worker before had paused was ended first, and writers were led to the new layout once.
	if ran, err := os.ReadFile(hooks); err != nil || !regexp.MustCompile(`^(before_freeze\nafter_undo\n){4}before_freeze\nafter_switch\n$`).Match(ran) {
		t.Errorf("hooks ran as %q, %v", ran, err)
	}
	t.Logf("%+v", r.load.Stats())
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
	left := r.sources[0].Query(t, `select (select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication)`)
	if fmt.Sprint(left) != "[[0 0]]" {
		t.Errorf("slots and publications left on the source: %v", left)
	}
	for shard, db := range r.shards {
		left := db.Query(t, `select (select count(*) from pg_trigger where tgname like '%pgreshard%'), (select count(*) from pgreshard.checkpoint),
			(select count(*) from pgreshard.outbox), (select version from pgreshard.serving),
			(select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication)`)
		if fmt.Sprint(left) != "[[0 0 0 2 0 0]]" {
			t.Errorf("shard %d: fences, checkpoints, outbox rows, serving layout, slots, publications: %v", shard, left)
		}
	}
}

// state is the move's, as its home has it.
func (r *rig) state() string {
	r.t.Helper()
	rows := r.shards[0].Query(r.t, `select state from pgreshard.move`)
	if len(rows) != 1 {
		r.t.Fatalf("moves: %v", rows)
	}
	return rows[0][0]
}

// awaitLease waits until another worker than pid holds the lease and has raised the epoch everywhere.
func (r *rig) awaitLease(p *process, pid int) {
	r.t.Helper()
	for {
		lease := r.shards[0].Query(r.t, `select epoch from pgreshard.lease where pid <> $1`, pid)
		raised := len(lease) == 1
		for _, db := range append(r.shards, r.sources...) {
			raised = raised && db.Query(r.t, `select epoch from pgreshard.epoch`)[0][0] == lease[0][0]
		}
		if raised {
			return
		}
		select {
		case <-p.ended:
			r.t.Fatalf("the worker ended with %d before it took over:\n%s", p.code, p.both.String())
		default:
			pause(r.t.Context())
		}
	}
}

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"pgreshard/pgtest"
)

// Each worker is suspended (SIGSTOP) where it waits for an answer of a shard's server, longer than its lease lasts; the
// next one takes over, and the first wakes when that one has come to its own point. open: the server goes on meanwhile with
// what the first had sent, so that the answer is there when it wakes; else what it had sent is still under way when the
// next takes over.
var zombies = []struct {
	state string
	shard int
	point string
	open  bool
}{
	{"schema", 0, "state copying", true}, // it would drop its successor's slot, and forget its checkpoints and marks
	{"copying", 1, "first chunks", false},
	{"copying", 0, "state indexing", true},
	{"streaming", 1, "checkpoint", false},
	{"cutting_over", 0, "serving", true}, // switched, but for the word to commit: its successor finds the old layout serving
	{"cutting_over", 0, "seal after", true},
}

func TestAWorkerThatWasSuspendedWakesToNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 50, Lookups: true, KeyChanges: true, NewTenants: true},
		"[cutover]\nreverse = false\nmax_freeze = \"60s\"\n[copy]\nworkers = 2\n") // its successor stands in a freeze while it wakes
	var all []*gates
	for _, db := range r.shards {
		all = append(all, newGates(t, db))
	}
	stop := r.write()
	if err := r.load.Committed(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	takenOver, wake := func(*process) {}, func() {}
	for _, z := range zombies {
		g := all[z.shard]
		g.shut(t, z.point)
		p := r.start("migrate", "--yes")
		takenOver(p)
		g.await(t, p, z.point)
		if got := r.state(); got != z.state {
			t.Fatalf("at %q the move is %s, want %s\n%s", z.point, got, z.state, p.both.String())
		}
		wake()
		p.signal(t, syscall.SIGSTOP)
		if z.open {
			g.open(t, z.point)
		}
		takenOver = func(next *process) {
			r.awaitLease(next, p.cmd.Process.Pid)
			if !z.open {
				g.open(t, z.point)
			}
		}
		wake = func() {
			was := r.whatAZombieMayNotTouch()
			p.signal(t, syscall.SIGCONT)
			code, said := p.wait(t)
			if code != exitFailed || !strings.Contains(said, "another worker has taken this move over") || !strings.Contains(said, "hint: ") {
				t.Errorf("suspended at %q it ended with %d:\n%s", z.point, code, said)
			}
			if is := r.whatAZombieMayNotTouch(); is != was {
				t.Errorf("suspended at %q it changed\n%s\nto\n%s", z.point, was, is)
			}
		}
	}
	p := r.start("migrate", "--yes")
	takenOver(p)
	if code, said := p.wait(t); code != exitDone {
		t.Fatalf("the last run ended with %d:\n%s", code, said)
	}
	if err := r.load.Committed(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	stop()
	wake() // after the switch: it would go on from its seal, or undo it
	if got := r.state(); got != "completed" {
		t.Errorf("the move is %s", got)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

// signal sends a signal to the process alone.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// whatAZombieMayNotTouch is, while a worker is held at a gate or after the end, what nobody else may change: flags, epochs,
// publication, slot (one that is read moves on by itself), and the move's record.
func (r *rig) whatAZombieMayNotTouch() string {
	r.t.Helper()
	var b strings.Builder
	for _, db := range append(r.shards, r.sources...) {
		for _, flag := range []string{"fence_until", "fence_serving"} {
			if db.Query(r.t, `select to_regclass($1) is not null`, "pgreshard."+flag)[0][0] == "t" {
				fmt.Fprintln(&b, flag, db.Query(r.t, `select last_value from pgreshard.`+flag))
			}
		}
		fmt.Fprintln(&b, db.Query(r.t, `select (select epoch from pgreshard.epoch), (select version from pgreshard.serving),
			(select string_agg(state || coalesce(error, ''), ' ') from pgreshard.move), (select string_agg(oid::text, ' ') from pg_publication),
			(select string_agg(slot_name || case when active then '' else catalog_xmin::text end, ' ') from pg_replication_slots where database = current_database() and not temporary),
			(select count(*) from pg_trigger where tgname like '%pgreshard%')`))
	}
	return b.String()
}

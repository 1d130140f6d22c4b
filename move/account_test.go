package move_test

import (
	"slices"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// The slots that what changes is read from keep no more than half of the budget for a worker that may come, and not more than all of it for
// anybody: then they go, and the next comparison begins anew.
func TestTheAccountOfChangesKeepsWithinTheBudget(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{})
	source := cluster.Database(t)
	source.Exec(t, budgetSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{cluster.Database(t), cluster.Database(t)}, "id")
	s.config.WALBudget, s.config.OnWALBudget = 64<<20, move.BudgetAlarm
	m := s.hold(t.Context(), s.move())
	compare := func() {
		t.Helper()
		if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() {
			t.Fatalf("%+v, %v", report, err)
		}
	}
	more := func() { // and it has come
		fill(t, source, 4)
		last := source.Query(t, `select max(id) from items`)[0][0]
		for len(s.shards[0].Query(t, `select from items where id = $1`, last))+len(s.shards[1].Query(t, `select from items where id = $1`, last)) == 0 {
			if t.Context().Err() != nil {
				t.FailNow()
			}
		}
	}
	kept := func() string {
		return s.shards[0].Query(t, `select jsonb_array_length(coalesce(detail -> 'account' -> 'nodes', '[]')) from pgreshard.move`)[0][0]
	}
	slots := func() int {
		return len(source.Query(t, `select from pg_replication_slots where strpos(slot_name, '_seen_') > 0`))
	}
	compare()
	if kept() != "3" || slots() != 3 {
		t.Fatalf("%s nodes are kept, %d slots are there", kept(), slots())
	}
	for kept() == "3" {
		more()
	}
	if slots() != 3 {
		t.Errorf("%d slots are left beyond half of the budget", slots())
	}
	open := source.Conn(t)
	runOn(t, open, `begin; update items set note = 'open' where id = 1`)
	for slots() > 0 {
		more()
	}
	runOn(t, open, `rollback`)
	compare()
	behindItsBack(t, s.shards[0], `update items set note = 'harmed' where id = (select min(id) from items)`)
	if report, err := m.VerifyNow(t.Context()); err != nil || report.Differences() != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	behindItsBack(t, s.shards[0], `update items set note = 'x' where note = 'harmed'`)
	compare()
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	s.noSlots("")
	if err := pgtest.SameRows(t.Context(), s.conns(s.sources), s.conns(s.shards), "items", pgtest.RowsOptions{}); err != nil {
		t.Error(err)
	}
}

// Where a node's log cannot be read, a plan says that a freeze reads every row.
func TestAPlanNotesWhereWhatChangesCannotBeFollowed(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, budgetSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.Start(t, pgtest.Options{Settings: map[string]string{"wal_level": "replica"}}).Database(t)}, "id")
	notes := func() []string {
		plan, err := s.move().Plan(t.Context())
		if err != nil || len(plan.Problems) > 0 {
			t.Fatalf("%v, %v", err, plan.Problems)
		}
		return plan.Notes
	}
	is := func(note string) bool {
		return strings.HasPrefix(note, "destination shard 0") && strings.HasSuffix(note, "so that a freeze compares every row: wal_level is replica")
	}
	if !slices.ContainsFunc(notes(), is) {
		t.Errorf("%q", notes())
	}
	s.config.MustVerify = false
	if slices.ContainsFunc(notes(), is) {
		t.Errorf("where nothing is compared: %q", notes())
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

const budgetSchema = `create table items (id bigint primary key, note text); insert into items select g, 'x' from generate_series(1, 500) g`

// fill writes so much to the source's log.
func fill(t *testing.T, source *pgtest.DB, megabytes int) {
	t.Helper()
	source.Exec(t, `insert into items select g, (select string_agg(md5(random()::text), '') from generate_series(1, 32) where g > 0)
		from generate_series((select max(id) + 1 from items), (select max(id) from items) + 900 * $1) g`, megabytes)
}

// stuckMove streams, with one shard's table locked so that nothing is applied there until the lock is let go.
func stuckMove(t *testing.T, s *smallMove) (worker *move.Move, ended <-chan error, release func()) {
	t.Helper()
	conn := s.shards[0].Conn(t)
	stuck, done := make(chan struct{}), make(chan error, 1)
	worker = s.move()
	go func() {
		done <- worker.Migrate(t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			runOn(t, conn, `begin; lock table items`)
			close(stuck)
			return true, nil
		}})
	}()
	select {
	case <-stuck:
	case err := <-done:
		t.Fatal(err)
	}
	return worker, done, func() { runOn(t, conn, `rollback`) }
}

func TestASlotThatKeepsTooMuchIsDroppedAndTheMoveSaysSoEverAfter(t *testing.T) {
	t.Parallel()
	source := pgtest.Start(t, pgtest.Options{}).Database(t)
	source.Exec(t, budgetSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.WALBudget = 48 << 20
	worker, ended, release := stuckMove(t, s)
	fill(t, source, 30)
	got := awaitStatus(t, "alarm", worker.Snapshot, func(st move.Status) bool { return len(st.Alarms) == 1 })
	if !strings.Contains(got.Alarms[0], "the slot of source 0 keeps ") || !strings.Contains(got.Alarms[0], "more than half of the 48.0 MB it may") || got.Error != nil {
		t.Errorf("half of the budget: %+v", got)
	}
	if st := got.Streams[0]; *st.Budget != 48<<20 || *st.Retained < 24<<20 || st.SafeWAL != nil {
		t.Errorf("the stream says %+v", st)
	}
	fill(t, source, 30)
	err := <-ended
	release()
	for n := range 2 {
		var over *move.BudgetError
		if !errors.As(err, &over) || over.Err != nil || over.Source != 0 || over.Budget != 48<<20 || over.Kept <= over.Budget {
			t.Fatalf("run %d: got %v, want a BudgetError", n, err)
		}
		for _, part := range []string{"of log, more than the 48.0 MB it may ([stream] wal_budget), and was dropped", "hint: ", "pgreshard cancel --drop-data"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("run %d: no %q in %v", n, part, err)
			}
		}
		if slots := source.Query(t, `select slot_name from pg_replication_slots`); len(slots) > 0 {
			t.Errorf("run %d: left: %v", n, slots)
		}
		observer := s.move()
		stored, asked := observer.Status(t.Context())
		if asked != nil || stored.State != move.StateStreaming || stored.Error == nil || !strings.Contains(*stored.Error, "wal_budget") {
			t.Errorf("run %d: the bookkeeping says %+v, %v", n, stored, asked)
		}
		if n == 0 {
			err = s.move().Migrate(t.Context(), move.MigrateOptions{})
		}
	}
	source.Exec(t, `update items set note = 'served' where id < 10`)
	if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
		t.Fatal(err)
	}
	s.run(func() { source.Exec(t, `delete from items where id between 20 and 30`) })
	s.same("items", "id")
}

func TestAnAlarmAloneLetsTheMoveEnd(t *testing.T) {
	t.Parallel()
	source := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_slot_wal_keep_size": "4GB"}}).Database(t)
	source.Exec(t, budgetSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.WALBudget, s.config.OnWALBudget = 16<<20, move.BudgetAlarm
	worker, ended, release := stuckMove(t, s)
	fill(t, source, 30)
	got := awaitStatus(t, "over", worker.Snapshot, func(st move.Status) bool {
		return len(st.Alarms) == 1 && strings.Contains(st.Alarms[0], "more than the 16.0 MB of wal_budget")
	})
	if got.Error != nil || got.State != move.StateStreaming || *got.Streams[0].SafeWAL > 4<<30 {
		t.Errorf("over the budget: %+v", got)
	}
	got = awaitStatus(t, "a time to loss", worker.Snapshot, func(st move.Status) bool {
		source.Exec(t, `select pg_logical_emit_message(false, 'filler', repeat('x', 100000))`)
		return st.Streams[0].LossSeconds != nil && *st.Streams[0].Growth > 0
	})
	if left := float64(*got.Streams[0].SafeWAL) / *got.Streams[0].Growth; *got.Streams[0].LossSeconds > left*1.01+1 {
		t.Errorf("lost in %f s, but %f s of log may still be written: %+v", *got.Streams[0].LossSeconds, left, got.Streams[0])
	}
	release()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

// What a slot may keep where the file does not say.
func TestTheBudgetIsWorkedOutFromTheServer(t *testing.T) {
	t.Parallel()
	budget := func(c *pgtest.Cluster) int64 {
		source := c.Database(t)
		source.Exec(t, budgetSchema)
		s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t)}, "id")
		var kept int64
		s.run(func() {})
		source.Exec(t, fmt.Sprintf(`select pg_create_logical_replication_slot('pgreshard_%s_0', 'pgoutput')`, s.config.Name))
		got, err := s.move().Status(t.Context())
		if err != nil || len(got.Streams) != 1 {
			t.Fatalf("%v: %+v", err, got)
		}
		kept = *got.Streams[0].Budget
		return kept
	}
	if got := budget(pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_slot_wal_keep_size": "10GB"}})); got != 5<<30 {
		t.Errorf("half of what the server keeps: %d", got)
	}
	seen := pgtest.Start(t, pgtest.Options{})
	free := move.FreeBytes(seen.DataDir)
	if got := budget(seen); got != 50<<30 && (got < free/4 || got > free) {
		t.Errorf("half of a disk with %d free bytes: %d", free, got)
	}
}

// The log of tables that do not move, and of other databases, is let go although nothing is to be applied.
func TestASourceThatWritesOnlyWhatDoesNotMoveKeepsNoLog(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{})
	source, other := cluster.Database(t), cluster.Database(t)
	source.Exec(t, budgetSchema+`; create table elsewhere (id int, v text)`)
	other.Exec(t, `create table elsewhere (id int, v text)`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.Exclude = []string{"public.elsewhere"}
	s.run(func() {
		for range 3 {
			for _, db := range []*pgtest.DB{source, other} {
				db.Exec(t, `insert into elsewhere select g, repeat('x', 1000) from generate_series(1, 10000) g`)
			}
			end := source.Query(t, `select pg_current_wal_lsn()`)[0][0]
			for source.Query(t, `select bool_and(confirmed_flush_lsn >= $1::pg_lsn and restart_lsn >= $1::pg_lsn) from pg_replication_slots`, end)[0][0] != "t" {
				source.Exec(t, `checkpoint`) // writes which transactions run: only behind such a place may the slot begin anew
				select {
				case <-t.Context().Done():
					t.Fatalf("the slot does not pass %s: %v", end, source.Query(t, `select confirmed_flush_lsn, restart_lsn from pg_replication_slots`))
				case <-time.After(50 * time.Millisecond):
				}
			}
		}
	})
	s.same("items", "id")
}

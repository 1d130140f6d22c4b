package move_test

import (
	"fmt"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestAMoveUnderWritesLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to int }{{1, 4}, {1, 1}, {2, 3}, {3, 2}, {4, 1}} {
		t.Run(fmt.Sprintf("%d to %d", c.from, c.to), func(t *testing.T) {
			r := newRig(t, c.from, c.to, pgtest.WorkloadOptions{Writers: 8, Rate: 300, Lookups: true, KeyChanges: true, NewTenants: true})
			stop := r.write()
			if err := r.load.Committed(t.Context(), 200); err != nil {
				t.Fatal(err)
			}
			m := r.move()
			if err := m.Migrate(t.Context(), move.MigrateOptions{}); err != nil {
				t.Fatal(err)
			}
			if s := m.Snapshot(); s.State != move.StateCompleted || s.Layout.Serving != 2 || s.Verify.State != "clean" {
				t.Errorf("after the move: %+v", s)
			}
			r.placed()
			if err := r.load.Committed(t.Context(), 200); err != nil {
				t.Fatal(err)
			}
			stop()
			stats := r.load.Stats()
			t.Logf("freeze %.3f s by the worker, %v longest gap of a writer, %+v", *m.Snapshot().Cutover.FreezeSeconds, stats.LongestGap.Round(time.Millisecond), stats)
			if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
				t.Error(err)
			}
			r.placed()
		})
	}
}

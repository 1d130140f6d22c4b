package move_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestAMoveUnderWritesLosesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to int
		slots    [2][]int
	}{
		{from: 1, to: 4}, {from: 1, to: 1}, {from: 2, to: 3}, {from: 3, to: 2}, {from: 4, to: 1},
		// What an earlier layout has made of 24 slots, and the fewest that give a fourth shard its six.
		{3, 4, [2][]int{{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2},
			{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 3, 3, 3, 3, 3}}},
	} {
		name := fmt.Sprintf("%d to %d", c.from, c.to)
		if c.slots[0] != nil {
			name += " by slots"
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.from, c.to, pgtest.WorkloadOptions{Writers: 8, Rate: 300, Lookups: true, KeyChanges: true, NewTenants: c.slots[0] == nil, Slots: c.slots})
			if c.slots[0] != nil {
				r.bySlots(c.slots[0])
			}
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

// bySlots makes slots of every rule, and leaves the sources as an earlier move does: with the record of their layout.
func (r *rig) bySlots(owners []int) {
	r.t.Helper()
	record := layout.Record{Version: 1, Database: "app", SlotTables: []layout.SlotTable{{Layout: 1, Slots: len(owners)}}}
	for slot, owner := range owners {
		record.SlotTables[0].Owners = append(record.SlotTables[0].Owners, layout.SlotRun{First: slot, Last: slot, Shard: layout.Shard(owner)})
	}
	text, err := json.Marshal(record)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, conn := range r.conns(r.sources) {
		err := errors.Join(checkpoints.Install(r.t.Context(), conn), checkpoints.PutLayout(r.t.Context(), conn, "app", 1, text),
			checkpoints.Serve(r.t.Context(), conn, checkpoints.Serving{Database: "app", Version: 1, Since: time.Now()}))
		if err != nil {
			r.t.Fatal(err)
		}
	}
	for _, side := range []*move.Side{&r.config.Source, &r.config.Destination} {
		for i := range side.Spec.Tables {
			side.Spec.Tables[i].Placement, side.Spec.Tables[i].Slots = layout.PlacementSlots, len(owners)
		}
	}
}

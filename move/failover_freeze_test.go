package move_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/replicator"
)

// A source fails over within a cutover, to a standby that has the freeze, or the seal, and not the slot. Frozen, the new leader
// takes writes again within max_freeze, and the move says that it must be started over; sealed, it refuses them for good, since the
// switch is made.
func TestASourceThatFailsOverInAFreeze(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"drain", "switch"} {
		t.Run("before "+step, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, failoverSchema, nil, nil)
			s := smallMoveOf(t, p.db, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
			s.config.Source.Shards[0], s.config.MaxFreeze = p.shard(0), 5*time.Second
			var probe *pgtest.Probe
			m := s.move()
			m.BeforeStep(func(at string) {
				if at != step || probe != nil {
					return
				}
				if err := p.standby.CatchUp(t.Context(), p.db.Query(t, `select pg_current_wal_flush_lsn()`)[0][0]); err != nil {
					t.Error(err)
				}
				p.failOver(t)
				probe = pgtest.NewProbe(t, p.after, `update items set note = note where id = 1 returning clock_timestamp()`, 10*time.Millisecond)
				for len(probe.Attempts()) == 0 && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
			})
			err := m.Migrate(t.Context(), move.MigrateOptions{})
			var undone *move.UndoneError
			if step == "switch" && err != nil || errors.As(err, &undone) { // by what was noticed first: the same command goes on
				t.Logf("it ended with %v", err)
				err = s.move().Migrate(t.Context(), move.MigrateOptions{})
			}
			s.sources[0] = p.after
			serves := s.shards[0].Query(t, `select version from pgreshard.serving`)[0][0]
			if step == "switch" {
				longest, since, others := pgtest.Refused(probe.End())
				if err != nil || serves != "2" || since.IsZero() || longest > 0 || len(others) > 0 {
					t.Errorf("layout %s serves, the new leader refuses writes since %v, before that for %v; errors %v, %v", serves, since, longest, others, err)
				}
				s.same("items", "id")
				s.onItsShard("items", "id", "bigint")
				s.shards[1].Exec(t, `update items set note = 'the shards serve'`)
				return
			}
			if !errors.Is(err, replicator.ErrSlotMissing) || serves != "1" {
				t.Errorf("layout %s serves; it ended with %v", serves, err)
			}
			for passes := false; !passes && t.Context().Err() == nil; {
				all := probe.Attempts()
				passes = all[len(all)-1].Err == nil
			}
			longest, _, others := pgtest.Refused(probe.End())
			if longest > s.config.MaxFreeze+time.Second || len(others) > 0 { // none, where the promotion took longer than the freeze
				t.Errorf("the new leader refused writes for %v; errors %v", longest, others)
			}
			t.Logf("the new leader refused writes for %v", longest.Round(time.Millisecond))
			if state := fmt.Sprint(s.shards[0].Query(t, `select state from pgreshard.move`)); state != "[[streaming]]" {
				t.Errorf("the move is %s", state)
			}
		})
	}
}

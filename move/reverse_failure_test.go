package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// A server is lost within a rollback, before the step named. Who asked is told which; before the switch the shards that
// run take writes again within max_freeze, the lost one once it is back, and the rollback can be asked for again; from the
// switch on the source serves as soon as it is there.
func TestARollbackWithAServerDown(t *testing.T) {
	t.Parallel()
	lone, sourceLone := pgtest.Start(t, pgtest.Options{}), pgtest.Start(t, pgtest.Options{})
	source := sourceLone.Database(t)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), lone.Database(t)}, "id")
	s.config.Reverse, s.config.MaxFreeze = true, 4*time.Second
	var at atomic.Value // of the step that is about to begin
	act := map[string]func(){}
	at.Store(act)
	m := s.move()
	m.BeforeStep(func(step string) {
		if do := at.Load().(map[string]func())[step]; do != nil {
			do()
		}
	})
	k := s.keepWith(t.Context(), m)
	for i, c := range []struct {
		lost *pgtest.Cluster
		step string
	}{{lone, "check"}, {sourceLone, "drain"}, {lone, "seal"}, {sourceLone, "seal"}, {sourceLone, "open"}} {
		name := fmt.Sprintf("%s lost before %s", map[bool]string{true: "the source", false: "a shard"}[c.lost == sourceLone], c.step)
		lost := fmt.Sprintf("destination shard 1 at %s", lone.Addr())
		if c.lost == sourceLone {
			lost = fmt.Sprintf("source shard 0 at %s", sourceLone.Addr())
		}
		at.Store(map[string]func(){c.step: func() {
			at.Store(map[string]func(){})
			if err := c.lost.Stop("immediate"); err != nil {
				t.Error(err)
			}
		}})
		began := time.Now()
		_, err := k.Rollback(t.Context())
		took := time.Since(began)
		t.Logf("%s: after %v: %v", name, took.Round(time.Millisecond), err)
		if c.step == "open" {
			if err == nil || !strings.Contains(err.Error(), "layout 1 serves now, and not every server of it takes writes yet: open: ") {
				t.Errorf("%s: %v", name, err)
			}
		} else {
			var undone *move.UndoneError
			if err == nil || errors.As(err, &undone) != (c.lost == sourceLone && c.step != "check") || !strings.Contains(err.Error(), strings.Fields(lost)[0]) {
				t.Errorf("%s: %v", name, err)
			}
			s.shards[0].Exec(t, `update items set note = note || 'a'`) // fails where it is refused
			if took > s.config.MaxFreeze+5*time.Second {
				t.Errorf("%s: it took %v", name, took)
			}
			awaitStatus(t, "named", k.Snapshot, func(st move.Status) bool {
				return containing(st.Waiting, lost) && st.Reverse != nil && !st.Reverse.Rollback.OK
			})
			_, err = k.Rollback(t.Context())
			var refused *move.NotReadyError
			if !errors.As(err, &refused) {
				t.Errorf("%s: asked again: %v", name, err)
			}
		}
		if err := c.lost.Start(); err != nil {
			t.Fatal(err)
		}
		if c.step == "open" {
			break
		}
		k.following()
		for _, db := range s.shards {
			db.Exec(t, `update items set note = $1 || id`, fmt.Sprint(i))
		}
		k.level()
		s.same("items", "id")
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
	source.Exec(t, `update items set note = 'rolled back' where id % 2 = 0`)
	for _, db := range append(s.shards, source) {
		if got := db.Query(t, `select version from pgreshard.serving`); fmt.Sprint(got) != "[[1]]" {
			t.Errorf("%s says that layout %v serves", db.Name, got)
		}
	}
	k = s.keep() // forward again, with what was written on the source since
	k.level()
	s.same("items", "id")
	if err := k.CompleteNow(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
}

// The source is lost right after the switch, and with it the streams: the shards open all the same.
func TestTheNewLayoutOpensThoughTheSourceIsLostThen(t *testing.T) {
	t.Parallel()
	lone := pgtest.Start(t, pgtest.Options{})
	source := lone.Database(t)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	m := s.move()
	m.BeforeStep(func(step string) {
		if step == "open" {
			if err := lone.Stop("immediate"); err != nil {
				t.Error(err)
			}
			stop() // and the worker is told to end
		}
	})
	if err := m.Migrate(ctx, move.MigrateOptions{}); err == nil {
		t.Error("the worker was not told to end")
	}
	for _, db := range s.shards {
		db.Exec(t, `update items set note = 'served'`) // fails where it is refused
	}
	if err := lone.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, db := range append(s.shards, source) {
		if got := db.Query(t, `select version from pgreshard.serving`); fmt.Sprint(got) != "[[2]]" {
			t.Errorf("%s says that layout %v serves", db.Name, got)
		}
	}
}

// A shard fails over to a standby that has not got the slot of the way back, as none has before 17. There is no way back any
// more, which is said and kept, and the new layout serves on.
func TestAShardThatFailsOverWithoutItsSlotEndsTheWayBackAlone(t *testing.T) {
	t.Parallel()
	p := newPair(t, "", nil, nil)
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), p.db}, "id")
	s.config.Destination.Shards[1], s.config.Reverse = p.shard(1), true
	k := s.keep()
	p.db.Exec(t, `update items set note = 'on the leader'`)
	k.level()
	if err := p.standby.CatchUp(t.Context(), p.db.Query(t, `select pg_current_wal_flush_lsn()`)[0][0]); err != nil {
		t.Fatal(err)
	}
	p.failOver(t)
	s.shards[1] = p.after
	p.after.Exec(t, `update items set note = 'on the new leader'`)
	lost := awaitStatus(t, "lost", k.Snapshot, func(st move.Status) bool { return st.Reverse.Lost != "" })
	if !strings.Contains(lost.Reverse.Lost, "the replication slot does not exist: the server failed over (timeline 1 to 2)") || lost.Error != nil || lost.State != move.StateSwitched {
		t.Errorf("%+v, %+v", lost, lost.Reverse)
	}
	var refused *move.NotReadyError
	if _, err := k.Rollback(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "would be lost") {
		t.Errorf("a rollback: %v", err)
	}
	for _, db := range s.shards {
		if left := db.Query(t, `select slot_name from pg_replication_slots where database = current_database()`); len(left) > 0 {
			t.Errorf("slots left: %v", left)
		}
		db.Exec(t, `update items set note = 'served all along'`)
	}
	if err := k.CompleteNow(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
	s.nothingLeft(true, s.sources...)
	s.nothingLeft(false, s.shards...)
}

// The source fails over while it follows: the way back goes on from what its new leader has.
func TestASourceThatFailsOverIsFollowedBackToItsNewLeader(t *testing.T) {
	t.Parallel()
	p := newPair(t, failoverSchema, nil, nil)
	s := smallMoveOf(t, p.db, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.Source.Shards[0], s.config.Reverse = p.shard(0), true
	k := s.keep()
	s.shards[0].Exec(t, `update items set note = 'on both'`)
	k.level()
	p.cutOff()
	s.shards[1].Exec(t, `update items set note = 'on the leader alone'; delete from items where id % 5 = 0`)
	k.level()
	if got := p.after.Query(t, `select count(*) from items where note = 'on the leader alone'`)[0][0]; got != "0" {
		t.Fatalf("the standby has %s of the last rows: the test proves nothing", got)
	}
	p.failOver(t)
	s.sources[0] = p.after
	k.level()
	k.following()
	if _, err := k.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	p.after.Exec(t, `update items set note = 'the source serves'`)
}

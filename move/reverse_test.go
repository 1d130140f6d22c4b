package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// Forward, write, rollback, write, forward again, complete, under load: both sides, and the application's ledger, are equal at each
// stage, before the next one is made under load again.
func TestARollbackLosesNothingAndTheMoveMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]int{{1, 3}, {2, 3}} {
		t.Run(fmt.Sprintf("%d to %d", c[0], c[1]), func(t *testing.T) {
			t.Parallel()
			r := reverseRig(t, c[0], c[1])
			stop := r.write()
			committed := func(n int) {
				t.Helper()
				if err := r.load.Committed(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}
			equal := func(serving []*pgtest.DB, level func()) {
				t.Helper()
				stop()
				level()
				r.compare()
				if err := r.load.Ledger().Check(t.Context(), r.conns(serving)...); err != nil {
					t.Error(err)
				}
				stop = r.write()
				committed(50)
			}

			k := r.keep()
			committed(200)
			equal(r.shards, k.level)
			report := r.soon(func() (move.CutoverReport, error) { return k.Rollback(t.Context()) })
			t.Logf("writes were refused for %.3f s", *report.FreezeSeconds)
			if err := <-k.done; err != nil {
				t.Fatal(err)
			}
			committed(200)
			if got := k.Snapshot().State; got != move.StateRolledBack {
				t.Errorf("the move is %s", got)
			}

			h := r.hold(t.Context(), r.move())
			r.serving(1)
			equal(r.sources, func() {
				r.levels(r.sources, r.shards, r.config.Name, func() { time.Sleep(10 * time.Millisecond) })
			})
			r.soon(func() (move.CutoverReport, error) { return h.Cutover(t.Context(), move.CutoverOptions{}) })
			k = &kept{rig: r, Move: h.Move, done: h.done}
			k.following()
			committed(200)
			equal(r.shards, k.level)
			r.serving(2)
			stop()
			if err := k.CompleteNow(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			if err := <-k.done; err != nil {
				t.Fatal(err)
			}
			if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
				t.Error(err)
			}
			r.nothingLeft(false, slices.Concat(r.sources, r.shards)...)
		})
	}
}

// Two people ask for a cutover at once: one has it made, the other is told.
func TestOfTwoCutoversAtOnceOneIsMadeAndTheOtherIsTold(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.config.Reverse = true
	h := s.hold(t.Context(), s.move())
	awaitStatus(t, "safe", h.Snapshot, func(st move.Status) bool { return st.SafeToCutOver.OK })
	made, told := 0, make(chan error, 2)
	for range cap(told) {
		go func() {
			_, err := h.Cutover(t.Context(), move.CutoverOptions{})
			told <- err
		}()
	}
	for range cap(told) {
		err := <-told
		var late *move.NotReadyError
		switch {
		case err == nil:
			made++
		case !errors.As(err, &late) || !strings.Contains(err.Error(), "the move is ") || strings.Contains(err.Error(), move.StateStreaming):
			t.Errorf("the other is told %v", err)
		}
	}
	if made != 1 {
		t.Errorf("%d of two cutovers were made", made)
	}
	k := &kept{rig: s.rig, Move: h.Move, done: h.done}
	k.following()
	s.same("items", "id")
	if err := k.CompleteNow(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
}

func TestARollbackCarriesWhatAnApplicationDoesOnTheNewLayout(t *testing.T) {
	t.Parallel()
	for _, sources := range []int{1, 2} {
		t.Run(fmt.Sprintf("sources %d", sources), func(t *testing.T) {
			t.Parallel()
			s := rollbackMove(t, sources)
			k := s.keep()
			s.shards[0].Exec(t, `insert into moved select g, $1::bigint, 'first' from generate_series(1, 300) g`, s.ofFirst())
			k.write()
			k.level()
			s.sameAsSources()
			k.following() // a stream may have been interrupted by a row that moved
			if _, err := k.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-k.done; err != nil {
				t.Fatal(err)
			}
			s.serving(1)
			s.sameAsSources()
			s.handsOutAbove()
			if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
				t.Fatal(err)
			}
			for _, db := range s.sources {
				left := db.Query(t, `select (select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication),
					(select count(*) from pg_namespace where nspname = 'pgreshard'), (select count(*) from pg_trigger where tgname like '%pgreshard%')`)
				if fmt.Sprint(left) != "[[0 0 0 0]]" {
					t.Errorf("left on %s by cancel: %v", db.Name, left)
				}
			}
		})
	}
}

func TestASlotOfTheWayBackThatKeepsTooMuchEndsTheWayBackAlone(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.Options{}) // what other tests write on a server its slots keep too
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, budgetSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{own.Database(t), own.Database(t)}, "id")
	s.config.Reverse = true
	ctx, stop := context.WithCancel(t.Context())
	k := s.keepUntil(ctx)
	stop()
	if err := <-k.done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.config.WALBudget = 8 << 20 // only now: the slot of the way forth is on a server of other tests
	k = s.keep()
	conn := s.sources[0].Conn(t)
	runOn(t, conn, `begin; lock items`)
	fill(t, s.shards[0], 12)
	lost := awaitStatus(t, "lost", k.Snapshot, func(st move.Status) bool { return st.Reverse.Lost != "" })
	if !strings.Contains(lost.Reverse.Lost, " kept ") || lost.Reverse.Rollback.OK || lost.Error != nil || lost.State != move.StateSwitched {
		t.Errorf("%+v, %+v", lost, lost.Reverse)
	}
	runOn(t, conn, `rollback`)
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
	written := int64(12 * 900) // of fill, and each row was updated
	for _, db := range s.shards {
		n, _ := strconv.ParseInt(db.Query(t, `select count(*) from items`)[0][0], 10, 64)
		written += n
	}
	counted := awaitStatus(t, "counted", k.Snapshot, func(st move.Status) bool { return st.Reverse.Written != nil && *st.Reverse.Written >= written })
	if got := *counted.Reverse.Written; got > written+written/10 { // servers tell up to a second late what was written before the switch
		t.Errorf("%d rows were written since the switch, by the status %d", written, got)
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

func TestAMoveThatKeepsFollowingIsCompletedWithoutItsWorker(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.config.Reverse = true
	ctx, stop := context.WithCancel(t.Context())
	k := s.keepUntil(ctx)
	s.shards[1].Exec(t, `update items set note = 'on the new layout'`)
	k.level()
	s.same("items", "id")
	stop()
	if err := <-k.done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := s.move().Cancel(t.Context(), move.CancelOptions{}); !errors.Is(err, move.ErrSwitched) {
		t.Errorf("cancel: %v", err)
	}
	if err := s.move().Complete(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	s.nothingLeft(false, slices.Concat(s.sources, s.shards)...)
}

func TestAPlanLooksWhetherShardsMadeByHandCanBeFollowedBackToSeveralSources(t *testing.T) {
	t.Parallel()
	s := rollbackMove(t, 2)
	s.config.CreateSchema = false
	for _, db := range s.shards {
		db.Exec(t, rollbackSchema+`; truncate tenants, items, log, wiped, moved, lonely; alter table moved replica identity full`)
	}
	for _, reverse := range []bool{true, false} {
		s.config.Reverse = reverse
		problems := s.problems()
		if got := containing(problems, "destination shard 1: public.items has a replica identity without the sharding key"); got != reverse {
			t.Errorf("reverse %v: items is named: %v", reverse, problems)
		}
		if containing(problems, "public.moved has a replica identity") || containing(problems, "public.tenants has a replica identity") {
			t.Errorf("what can be followed back is named: %v", problems)
		}
	}
}

func TestACutoverThatDoesNotSwitchLeavesNothingOfTheWayBack(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.config.Reverse = true
	ctx, stop := context.WithCancel(t.Context())
	h := s.hold(ctx, s.move())
	made := 0
	h.BeforeStep(func(step string) {
		if step == "seal" {
			made = len(s.shards[0].Query(t, `select from pg_replication_slots where slot_name = $1`, "pgreshard_"+s.config.Name+"_back_0"))
		}
	})
	awaitStatus(t, "safe", h.Snapshot, func(st move.Status) bool { return st.SafeToCutOver.OK })
	if _, err := h.Cutover(t.Context(), move.CutoverOptions{Rehearse: true}); err != nil || made != 1 {
		t.Errorf("a rehearsal with %d slots: %v", made, err)
	}
	left := func(after, but string) {
		t.Helper()
		for _, db := range s.shards {
			const sql = `select name from (select slot_name from pg_replication_slots where database = current_database() union select pubname from pg_publication) a (name) where strpos(name, $1) = 0`
			if left := db.Query(t, sql, but); len(left) > 0 {
				t.Errorf("slots and publications left by %s: %v", after, left)
			}
		}
	}
	left("a rehearsal", "_seen_") // what reads along for the next comparison stays
	stop()
	<-h.done
	if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
		t.Fatal(err)
	}
	left("a cancel", "pg_")
}

// An application moves a row by deleting it on one shard and inserting it on another: the second stream is ahead of the first.
func TestARowThatGoesFromOneShardToAnotherWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.config.Reverse = true
	k := s.keep()
	id := s.shards[0].Query(t, `select min(id) from items`)[0][0]
	conn := s.sources[0].Conn(t)
	runOn(t, conn, `begin; select from items where id = `+id+` for update`) // the delete waits there, the insert is refused
	s.shards[0].Exec(t, `delete from items where id = $1::bigint`, id)
	s.shards[1].Exec(t, `insert into items values ($1::bigint, 'moved')`, id)
	for s.shards[1].Query(t, `select active from pg_replication_slots where slot_name = $1`, "pgreshard_"+s.config.Name+"_back_1")[0][0] == "t" {
		k.alive()
	}
	runOn(t, conn, `commit`)
	k.level()
	s.same("items", "id")
	if err := k.CompleteNow(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
}

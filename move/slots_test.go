package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/replicator"
)

// slotCase is something done to a slot, or to what its move knows of it, behind the move's back.
type slotCase struct {
	running bool // while the move streams; else while it is stopped
	happens func(s *smallMove, slot string)
	known   error
	says    []string
	over    bool // it must be started over; else the same command goes on once mend was done
	mend    func(s *smallMove, slot string)
}

// dropSlot drops a slot whoever uses it: a worker that is thrown out comes again soon.
func dropSlot(s *smallMove, slot string) {
	s.t.Helper()
	conn := s.sources[0].Conn(s.t)
	for {
		_, _ = conn.Exec(s.t.Context(), `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active`, slot)
		if _, err := conn.Exec(s.t.Context(), `select pg_drop_replication_slot($1)`, slot); err == nil || pg.Code(err) == "42704" {
			return
		}
		if s.t.Context().Err() != nil {
			s.t.Fatal("the slot is never free")
		}
	}
}

func remake(s *smallMove, slot string) {
	dropSlot(s, slot)
	s.sources[0].Exec(s.t, `update items set note = 'between' where id = 1`)
	s.sources[0].Exec(s.t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
}

const shiftCheckpoint = `update pgreshard.checkpoint set lsn = lsn + $1::int`

var slotCases = map[string]slotCase{
	"dropped while it streams": {running: true, happens: dropSlot, known: replicator.ErrSlotMissing, over: true},
	"dropped while stopped":    {happens: dropSlot, known: replicator.ErrSlotMissing, over: true},
	"made again while it streams": {running: true, happens: remake, known: replicator.ErrConfirmedAhead, over: true,
		says: []string{"or dropped it and made it again"}},
	"made again while stopped": {happens: remake, known: replicator.ErrConfirmedAhead, over: true,
		says: []string{"or dropped it and made it again"}},
	"read by somebody": {known: replicator.ErrConfirmedAhead, over: true, says: []string{"somebody read from the slot", "the checkpoint at "},
		happens: func(s *smallMove, slot string) {
			s.sources[0].Exec(s.t, `update items set note = 'read elsewhere' where id = 1`)
			s.sources[0].Exec(s.t, `select pg_replication_slot_advance($1, pg_current_wal_lsn())`, slot)
		}},
	"of another plugin": {known: replicator.ErrSlotForeign, over: true, says: []string{`it belongs to plugin "" and database ""`},
		happens: func(s *smallMove, slot string) {
			dropSlot(s, slot)
			s.sources[0].Exec(s.t, `select pg_create_physical_replication_slot($1)`, slot)
		}, mend: dropSlot},
	"of another database": {known: replicator.ErrSlotForeign, over: true, says: []string{`it belongs to plugin "pgoutput" and database "`},
		happens: func(s *smallMove, slot string) {
			dropSlot(s, slot)
			s.sources[0].Cluster.Database(s.t).Exec(s.t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
		}, mend: dropSlot},
	"behind the checkpoints": {known: replicator.ErrServerBehind, says: []string{"the log ends at ", "this server has lost what others have"},
		happens: func(s *smallMove, _ string) { shift(s, 2e9, 0, 1) }, mend: func(s *smallMove, _ string) { shift(s, -2e9, 0, 1) }},
	"ahead of one checkpoint": {known: replicator.ErrConfirmedAhead, says: []string{"destination shard 1 is at ", " and another at ", "a fail-over to a standby that lagged"},
		happens: func(s *smallMove, _ string) { shift(s, -5000, 1) }, mend: func(s *smallMove, _ string) { shift(s, 5000, 1) }},
	"lost": {known: replicator.ErrSlotLost, over: true, says: []string{"raise max_slot_wal_keep_size"},
		happens: func(s *smallMove, slot string) {
			for s.sources[0].Query(s.t, `select wal_status from pg_replication_slots where slot_name = $1`, slot)[0][0] != "lost" {
				for _, sql := range []string{`update items set note = 'unread' where id = 1`, `select pg_switch_wal()`, `checkpoint`} {
					s.sources[0].Exec(s.t, sql)
				}
			}
		}},
}

func shift(s *smallMove, by int, shards ...int) {
	for _, n := range shards {
		s.shards[n].Exec(s.t, shiftCheckpoint, by)
	}
}

// stopped streams, and is stopped in order.
func (s *smallMove) stopped() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		cancel()
		return false, nil
	}})
	if !errors.Is(err, context.Canceled) {
		s.t.Fatal(err)
	}
}

// Whatever happens to a slot is told apart, at the start as well as while the move runs, with what to do about it; and doing
// that ends in a move that has lost nothing.
func TestWhateverHappensToASlotIsSaid(t *testing.T) {
	t.Parallel()
	for name, c := range slotCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.OneIn(t, 3)
			cluster := pgtest.Shared(t)
			if c.known == replicator.ErrSlotLost {
				cluster = pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}})
			}
			source := cluster.Database(t)
			source.Exec(t, failoverSchema)
			s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
			slot := "pgreshard_" + s.config.Name + "_0"
			var err error
			if c.running {
				err = s.interrupt(false, func() { c.happens(s, slot) })
			} else {
				s.stopped()
				c.happens(s, slot)
				err = s.interrupt(false, func() {}) // may be asked for before the stream has come to its slot
			}
			for range 2 { // and the next run says the same
				if !errors.Is(err, c.known) {
					t.Fatalf("got %v, want %v", err, c.known)
				}
				text := err.Error() + "; hint: " + move.Hint(err)
				if c.over && c.known != replicator.ErrSlotForeign {
					c.says = append(c.says, "pgreshard cancel --drop-data")
				}
				for _, part := range c.says {
					if !strings.Contains(text, part) {
						t.Errorf("no %q in %s", part, text)
					}
				}
				if c.over && strings.Contains(text, "destination shard") {
					t.Errorf("a shard is blamed: %s", text)
				}
				err = s.interrupt(false, func() {}) // may be asked for before the stream has come to its slot
			}
			t.Log(err)
			source.Exec(t, `update items set note = 'served all along' where id = 3`)
			if c.over {
				if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
					t.Fatal(err)
				}
			}
			left := "[[0]]"
			if c.known == replicator.ErrSlotForeign { // cancel leaves alone what is not the move's
				left = "[[1]]"
			}
			if got := source.Query(t, `select count(*) from pg_replication_slots where slot_name = $1`, slot); c.over && fmt.Sprint(got) != left {
				t.Errorf("slots left by cancel: %v, want %s", got, left)
			}
			if c.mend != nil {
				c.mend(s, slot)
			}
			s.run(func() { source.Exec(t, `delete from items where id % 5 = 0`) })
			s.same("items", "id")
			s.onItsShard("items", "id", "bigint")
		})
	}
}

// A slot that somebody else streams from is waited for, and whoever does so is named.
func TestASlotInUseIsWaitedForAndItsReaderNamed(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	slot := "pgreshard_" + s.config.Name + "_0"
	relay := pgtest.NewRelay(t, s.sources[0].Cluster.Addr())
	s.config.Source.Shards[0] = s.sources[0].Via(relay).Shard(0)
	copying := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Do: pgtest.Stall})
	worker, done := s.move(), make(chan error, 1)
	go func() { done <- worker.Migrate(t.Context(), move.MigrateOptions{}) }()
	select { // who reads the slot when a worker starts is ended, so this one comes between its copy and its stream
	case <-copying:
	case err := <-done:
		t.Fatalf("before the copy: %v", err)
	}
	at, err := pg.ParseLSN(s.sources[0].Query(t, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1`, slot)[0][0])
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	other, ended := replicator.New(replicator.Config{Shard: s.sources[0].Shard(0), Slot: slot, Publication: slot, Start: at}), make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	var pid string
	for pid == "" {
		for _, row := range s.sources[0].Query(t, `select active_pid from pg_replication_slots where slot_name = $1 and active`, slot) {
			pid = row[0]
		}
	}
	relay.Clear()
	relay.Resume(pgtest.ToClient)
	awaitStatus(t, "who reads named", worker.Snapshot, func(st move.Status) bool {
		return len(st.Waiting) == 1 && strings.Contains(st.Waiting[0], "is in use by pid "+pid+" (pgreshard stream, role postgres, from 127.0.0.1)")
	})
	s.sources[0].Exec(t, `update items set note = 'meanwhile' where id % 3 = 0`)
	end()
	for range other.Blocks() {
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

// A URL that comes to lead to another cluster, in the middle of a move and at a start, is not read or written.
func TestAnotherClusterBehindAURLIsRefused(t *testing.T) {
	t.Parallel()
	foreign := pgtest.Start(t, pgtest.Options{Foreign: true})
	for _, side := range []string{"source", "destination"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "id", failoverSchema)
			db, shards := s.sources[0], s.config.Source.Shards
			if side == "destination" {
				db, shards = s.shards[1], s.config.Destination.Shards
			}
			there, err := foreign.NewDatabase(t.Context(), db.Name)
			if err != nil {
				t.Fatal(err)
			}
			there.Exec(t, failoverSchema)
			relay := pgtest.NewRelay(t, db.Cluster.Addr())
			shards[len(shards)-1] = db.Via(relay).Shard(len(shards) - 1)
			err = s.interrupt(false, func() {
				relay.SetTarget(foreign.Addr())
				relay.Cut()
				s.sources[0].Exec(t, `update items set note = 'meanwhile' where id % 3 = 0`)
			})
			for run := range 2 {
				var other *pg.OtherSystemError
				if !errors.As(err, &other) || !strings.Contains(err.Error(), side+" shard ") || !strings.Contains(err.Error(), "hint: the URL leads to another database") {
					t.Fatalf("run %d: %v", run, err)
				}
				if errors.Is(err, move.ErrChangedConfig) != (run == 1) {
					t.Errorf("run %d: is it the configuration's? %v", run, err)
				}
				if got := there.Query(t, `select count(*) from pg_namespace where nspname = 'pgreshard'`)[0][0]; got != "0" {
					t.Errorf("run %d: something was written to the other cluster", run)
				}
				err = s.interrupt(false, func() {}) // may be asked for before the stream has come to its slot
			}
			relay.SetTarget(db.Cluster.Addr())
			relay.Cut()
			s.run(func() { s.sources[0].Exec(t, `delete from items where id % 5 = 0`) })
			s.same("items", "id")
		})
	}
}

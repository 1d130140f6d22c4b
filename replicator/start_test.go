package replicator

import (
	"errors"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestAStreamDoesNotStartFromAPositionThatIsNotTheSlots(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	tests := []struct {
		name   string
		change func(*Config)
		want   error
	}{
		{"a slot that is not there", func(c *Config) { c.Slot = "nowhere" }, ErrSlotMissing},
		{"a checkpoint below what was confirmed", func(c *Config) { c.Start-- }, ErrConfirmedAhead},
		{"a checkpoint beyond the end of the log", func(c *Config) { c.Start += 1 << 40 }, ErrServerBehind},
		{"another cluster", func(c *Config) { c.SystemID = "12345" }, ErrOtherSystem},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := s.config()
			test.change(&c)
			stream := New(c)
			if err := stream.Run(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("%v", err)
			}
			if _, open := <-stream.Blocks(); open {
				t.Error("blocks are still open")
			}
		})
	}
}

func TestALostSlotIsSaidToBeLost(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"}})
	db := cluster.Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	eventually(t, "the slot is lost", func() bool {
		db.Exec(t, `insert into a select coalesce(max(id), 0) + 1 from a`)
		db.Exec(t, `select pg_switch_wal()`)
		db.Exec(t, `checkpoint`)
		state, err := InspectSlot(t.Context(), db.Conn(t), slotOf(db))
		return err == nil && errors.Is(state.Check(), ErrSlotLost)
	})
	err := New(s.config()).Run(t.Context())
	if !errors.Is(err, ErrSlotLost) || pg.Transient(err) {
		t.Errorf("%v", err)
	}
	t.Log(err)
	if err := DropSlot(t.Context(), db.Conn(t), slotOf(db)); err != nil {
		t.Error(err)
	}
}

// A stopping server waits until everything it has sent is confirmed.
func TestAServerCanStopWhileItIsStreamedFrom(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{})
	db := cluster.Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	for _, test := range []struct {
		name, mode string
		confirms   bool
		limit      time.Duration
	}{
		{"smoothly when the consumer confirms", "fast", true, stopWait},
		{"when the consumer cannot confirm", "fast", false, 2 * stopWait},
		{"at once", "immediate", false, stopWait},
	} {
		t.Run(test.name, func(t *testing.T) {
			stream := New(s.config())
			done := make(chan error, 1)
			go func() { done <- stream.Run(t.Context()) }()
			eventually(t, "it streams", func() bool {
				return db.Query(t, `select active from pg_replication_slots where slot_name = $1`, slotOf(db))[0][0] == "t"
			})
			began, stopped := time.Now(), make(chan error, 1)
			go func() { stopped <- cluster.Stop(test.mode) }()
			for b := range stream.Blocks() {
				if test.confirms {
					stream.Confirm(b.Idle)
				}
				stream.Release(b)
			}
			err := <-done
			if !pg.Transient(err) {
				t.Errorf("not transient: %v", err)
			}
			if err := <-stopped; err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			if t.Logf("%s: %v", took, err); took > test.limit {
				t.Error("too slow")
			}
			if err := cluster.Start(); err != nil {
				t.Fatal(err)
			}
			s.start = max(s.start, stream.Stats().Confirmed)
		})
	}
}

func TestATerminatedWalsenderIsWorthAnotherTry(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	stream := New(s.config())
	done := make(chan error, 1)
	go func() { done <- stream.Run(t.Context()) }()
	eventually(t, "it is terminated", func() bool {
		return len(db.Query(t, `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and active`, slotOf(db))) > 0
	})
	if err := <-done; !pg.Transient(err) {
		t.Error(err)
	}
}

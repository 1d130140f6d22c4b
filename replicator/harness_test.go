package replicator

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// source is a database with a publication and a slot.
type source struct {
	db    *pgtest.DB
	start pg.LSN
}

// publish makes publication and slot, both named p, for tables of schema public.
func publish(t *testing.T, db *pgtest.DB, tables ...string) *source {
	t.Helper()
	var names []pg.Name
	for _, table := range tables {
		names = append(names, pg.Name{Schema: "public", Table: table})
	}
	if err := CreatePublication(t.Context(), db.Conn(t), "p", names); err != nil {
		t.Fatal(err)
	}
	slot, err := CreateSlot(t.Context(), db.Shard(0), slotOf(db), false)
	if err != nil {
		t.Fatal(err)
	}
	slot.Close()
	return &source{db: db, start: slot.ConsistentPoint}
}

// slotOf names a slot after its database, as slots belong to the whole cluster.
func slotOf(db *pgtest.DB) string { return db.Name }

func (s *source) config() Config {
	return Config{Shard: s.db.Shard(0), Slot: slotOf(s.db), Publication: "p", Start: s.start}
}

// following is a stream that runs.
type following struct {
	*Stream
	t     *testing.T
	block *pg.Block
	rest  []pg.Change
	idle  pg.LSN // of the last block taken
	stop  func() error
}

func follow(t *testing.T, c Config) *following {
	t.Helper()
	f := &following{Stream: New(c), t: t}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	ended := false
	f.stop = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		for range f.Blocks() {
		}
		return <-done
	}
	t.Cleanup(func() {
		if err := f.stop(); err != nil && !errors.Is(err, context.Canceled) && !t.Failed() {
			t.Errorf("the stream ended with %v", err)
		}
	})
	return f
}

// next is the next change; a block is released when all its changes were taken.
func (f *following) next() *pg.Change {
	f.t.Helper()
	for len(f.rest) == 0 {
		if !f.take() {
			f.t.Fatalf("the stream ended: %v", f.stop())
		}
	}
	c := &f.rest[0]
	f.rest = f.rest[1:]
	return c
}

func (f *following) take() bool {
	f.t.Helper()
	if f.block != nil {
		f.Release(f.block)
		f.block = nil
	}
	select {
	case b, ok := <-f.Blocks():
		if ok {
			f.block, f.rest, f.idle = b, b.Changes, b.Idle
		}
		return ok
	case <-time.After(patience):
		f.t.Fatal("nothing came")
		return false
	}
}

// transactions takes the changes of the next n transactions, and the end of the last one. Up to 14 servers send those
// in which nothing published changed too; they are passed over.
func (f *following) transactions(n int) (got []string, end pg.LSN) {
	f.t.Helper()
	begun := 0
	for n > 0 {
		c := f.next()
		if c.Op == pg.OpBegin {
			begun = len(got)
		}
		if c.Op == pg.OpCommit && len(got) == begun+1 {
			got = got[:begun]
			continue
		}
		got = append(got, line(c))
		if c.Op == pg.OpCommit {
			n--
			end = c.Tx.End
		}
	}
	return got, end
}

// eventually asks again and again.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// position asks for one log position.
func position(t *testing.T, db *pgtest.DB, sql string, args ...any) pg.LSN {
	t.Helper()
	lsn, err := pg.ParseLSN(db.Query(t, sql, args...)[0][0])
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func confirmedFlush(t *testing.T, db *pgtest.DB) pg.LSN {
	t.Helper()
	return position(t, db, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1`, slotOf(db))
}

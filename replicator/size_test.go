package replicator

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// Not parallel: it measures memory, and others' slots would have to wait for its transaction.
func TestATransactionOfAMillionRowsNeedsTheQueueAndNoMore(t *testing.T) {
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key, v text)`)
	s := publish(t, db, "a")
	db.Exec(t, `insert into a select i, 'row number ' || i from generate_series(1, 1000000) i`)
	c := s.config()
	c.QueueBytes = 4 << 20
	f := follow(t, c)
	began, rows, mostQueued, mostHeap := time.Now(), 0, int64(0), uint64(0)
	for {
		c := f.next()
		if c.Op == pg.OpCommit {
			break
		}
		if c.Op == pg.OpInsert {
			if rows++; fmt.Sprint("row number ", rows) != string(c.New[1].Bytes) {
				t.Fatalf("row %d is %s", rows, line(c))
			}
		}
		if rows%50000 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			mostHeap, mostQueued = max(mostHeap, m.HeapAlloc), max(mostQueued, f.Stats().Queued)
		}
	}
	t.Logf("%d rows in %s, queue at most %d bytes, heap %d", rows, time.Since(began), mostQueued, mostHeap)
	if rows != 1000000 || mostQueued > 4<<20 || mostHeap > 64<<20 {
		t.Error("rows are missing or memory is not bounded")
	}
}

func TestOneRowLargerThanTheQueuePasses(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key, v text)`)
	s := publish(t, db, "a")
	db.Exec(t, `insert into a select i, repeat('x', 3000000) from generate_series(1, 3) i`)
	c := s.config()
	c.QueueBytes = 1 << 20
	f := follow(t, c)
	for range 3 {
		c := f.next()
		for c.Op != pg.OpInsert {
			c = f.next()
		}
		if len(c.New[1].Bytes) != 3000000 {
			t.Errorf("%d bytes", len(c.New[1].Bytes))
		}
	}
}

func TestASlowConsumerKeepsTheConnection(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, fmt.Sprintf(`alter database %q set wal_sender_timeout = '1s'`, db.Name))
	db.Exec(t, `create table a (id int primary key, v text)`)
	s := publish(t, db, "a")
	db.Exec(t, `insert into a select i, repeat('x', 1000) from generate_series(1, 50000) i`) // far more than sockets hold
	c := s.config()
	c.QueueBytes = 64 << 10
	f := follow(t, c)
	f.next()
	<-time.After(3500 * time.Millisecond) // the slowness itself
	got, _ := f.transactions(1)
	if len(got) != 50001 {
		t.Errorf("%d changes", len(got))
	}
	db.Exec(t, `insert into a values (0, '')`)
	if got, _ := f.transactions(1); got[1] != `insert public.a [0 ""]` {
		t.Errorf("after the stall: %s", got)
	}
}

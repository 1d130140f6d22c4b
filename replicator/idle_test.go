package replicator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestIdlePositionsPassOverWhatIsNotPublished(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key); create table unpublished (v text)`)
	s := publish(t, db, "a")
	f := follow(t, s.config())
	db.Exec(t, `insert into unpublished select repeat('x', 100) from generate_series(1, 20000)`)
	end := position(t, db, `select pg_current_wal_flush_lsn()`)
	blocks := 0
	for f.idle < end {
		if !f.take() {
			t.Fatal("the stream ended")
		}
		blocks++
		for _, c := range f.block.Changes {
			if c.Op != pg.OpBegin && c.Op != pg.OpCommit || db.Cluster.Version > 14 { // 14 sends empty transactions
				t.Errorf("unexpected %s", line(&c))
			}
		}
		f.Confirm(f.block.Idle)
	}
	eventually(t, "the slot moves", func() bool { return confirmedFlush(t, db) >= end })
	t.Logf("%d blocks", blocks)
}

// Every idle position is a checkpoint: started again there, a stream must bring exactly what had not come before it.
func TestIdlePositionsAreInOrderWithChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key); create table unpublished (v text)`)
	s := publish(t, db, "a")
	f := follow(t, s.config())
	one, other := db.Conn(t), db.Conn(t)
	ctx := t.Context()
	done := make(chan error, 1)
	const last = 150
	go func() {
		var failed error
		for i := range last { // the log goes on while the transaction is open, and after it
			for _, exec := range []func() (pgconn.CommandTag, error){
				func() (pgconn.CommandTag, error) {
					return one.Exec(ctx, fmt.Sprintf(`begin; insert into a values (%d)`, i))
				},
				func() (pgconn.CommandTag, error) {
					return other.Exec(ctx, `insert into unpublished values ('x'); select pg_sleep(0.003)`)
				},
				func() (pgconn.CommandTag, error) { return one.Exec(ctx, `commit`) },
				func() (pgconn.CommandTag, error) {
					return other.Exec(ctx, `insert into unpublished values ('y'); select pg_sleep(0.003)`)
				},
			} {
				_, err := exec()
				failed = errors.Join(failed, err)
			}
		}
		done <- failed
	}()
	var idles []struct {
		at   pg.LSN
		seen int
	}
	seen, inside, rows, newest := 0, false, 0, s.start
	for seen < last {
		if !f.take() {
			t.Fatal("the stream ended")
		}
		for _, c := range f.block.Changes {
			switch c.Op {
			case pg.OpBegin:
				inside, rows = true, 0
				if c.Tx.Commit < newest {
					t.Errorf("a transaction at %s after the position %s", c.Tx.Commit, newest)
				}
			case pg.OpCommit:
				inside = false
				newest = max(newest, c.Tx.End)
				if rows > 0 { // 14 sends empty transactions
					seen++
				}
			default:
				rows++
			}
		}
		if at := f.block.Idle; at != 0 {
			if inside || at <= newest {
				t.Errorf("idle position %s after %s, inside a transaction: %v", at, newest, inside)
			}
			newest = at
			idles = append(idles, struct {
				at   pg.LSN
				seen int
			}{at, seen})
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	_ = f.stop()
	if t.Logf("%d idle positions", len(idles)); len(idles) == 0 {
		t.Error("none")
	}
	for i := 0; i < len(idles) && idles[i].seen < last; i += max(1, len(idles)/4) { // beyond the last nothing comes
		s.start = idles[i].at
		again := follow(t, s.config())
		got, _ := again.transactions(1)
		if want := fmt.Sprintf("insert public.a [%d]", idles[i].seen); got[1] != want {
			t.Errorf("from %s came %s, want %s", idles[i].at, got[1], want)
		}
		_ = again.stop()
	}
}

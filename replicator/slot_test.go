package replicator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestTheSnapshotOfASlotShowsWhatTheStreamDoesNotBring(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key); insert into a values (1)`)
	if err := CreatePublication(t.Context(), db.Conn(t), "p", []pg.Name{{Schema: "public", Table: "a"}}); err != nil {
		t.Fatal(err)
	}
	slot, err := CreateSlot(t.Context(), db.Shard(0), slotOf(db), false)
	if err != nil {
		t.Fatal(err)
	}
	defer slot.Close()
	db.Exec(t, `insert into a values (2)`)
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(
		`begin isolation level repeatable read; set transaction snapshot '%s'`, slot.Snapshot)); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), `select count(*) from a`).Scan(&n); err != nil || n != 1 {
		t.Errorf("the snapshot shows %d rows, error %v", n, err)
	}
	f := follow(t, Config{Shard: db.Shard(0), Slot: slotOf(db), Publication: "p", Start: slot.ConsistentPoint, SystemID: slot.SystemID})
	if got, _ := f.transactions(1); got[1] != "insert public.a [2]" {
		t.Errorf("the stream begins with %s", got)
	}
}

// Three transactions: the first two let the slot pass its phases, the third commits as the very next thing in the log.
func TestATransactionThatCommitsExactlyAtTheConsistentPointIsStreamed(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t, pgtest.Options{}).Database(t) // of its own: nobody else may write to the log in between
	db.Exec(t, `create table a (id int primary key); checkpoint`)
	if err := CreatePublication(t.Context(), db.Conn(t), "p", []pg.Name{{Schema: "public", Table: "a"}}); err != nil {
		t.Fatal(err)
	}
	first, second, third := db.Conn(t), db.Conn(t), db.Conn(t)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	waits := func(xid string) {
		t.Helper()
		eventually(t, "the slot waits for a transaction", func() bool {
			return db.Query(t, `select count(*) from pg_locks where not granted and transactionid::text = $1`, xid)[0][0] == "1"
		})
	}
	scan := func(row pgx.Row) (s string) {
		t.Helper()
		if err := row.Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	ctx := t.Context()
	const current = `select pg_current_xact_id()::text`
	must(first.Exec(ctx, `begin; insert into a values (1)`))
	made := make(chan *Slot, 1)
	go func() {
		slot, err := CreateSlot(ctx, db.Shard(0), slotOf(db), false)
		if err != nil {
			t.Error(err)
		}
		made <- slot
	}()
	waits(scan(first.QueryRow(ctx, current)))
	must(second.Exec(ctx, `begin; insert into a values (2)`))
	xid2 := scan(second.QueryRow(ctx, current))
	must(first.Exec(ctx, `commit`))
	waits(xid2)
	must(third.Exec(ctx, `begin; insert into a values (3)`))
	must(second.Exec(ctx, `commit`))
	slot := <-made
	if slot == nil {
		return
	}
	defer slot.Close()
	must(third.Exec(ctx, `commit`))
	reader := db.Conn(t)
	must(reader.Exec(ctx, fmt.Sprintf(`begin isolation level repeatable read; set transaction snapshot '%s'`, slot.Snapshot)))
	seen := scan(reader.QueryRow(ctx, `select string_agg(id::text, ' ' order by id) from a`))
	f := follow(t, Config{Shard: db.Shard(0), Slot: slotOf(db), Publication: "p", Start: slot.ConsistentPoint})
	begin := f.next()
	t.Logf("consistent point %s, snapshot shows %s, first commit %s", slot.ConsistentPoint, seen, begin.Tx.Commit)
	if begin.Tx.Commit != slot.ConsistentPoint {
		t.Error("the third transaction did not commit at the consistent point: the test proves nothing")
	}
	if got := line(f.next()); seen != "1 2" || got != "insert public.a [3]" {
		t.Errorf("the snapshot shows %s and the stream begins with %s", seen, got)
	}
}

func TestASlotThatHasToWaitTooLongNamesWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t, pgtest.Options{}).Database(t) // of its own: the transactions would hold up others
	db.Exec(t, `create table a (id int)`)
	db.Exec(t, `begin; insert into a values (1); prepare transaction 'forgotten'`)
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), `begin; insert into a values (1)`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := CreateSlot(ctx, db.Shard(0), slotOf(db), false)
	var blocked *BlockedError
	if !errors.As(err, &blocked) || len(blocked.Blockers) != 2 {
		t.Fatalf("%v", err)
	}
	t.Log(err)
	if b := blocked.Blockers; b[0].Prepared != "forgotten" || b[1].PID != int32(conn.PgConn().PID()) || b[1].Age <= 0 || b[1].Database != db.Name {
		t.Errorf("%+v", b)
	}
	blocked = nil
	err = New(Config{Shard: db.Shard(0), Slot: slotOf(db), Temporary: 400 * time.Millisecond}).Run(t.Context())
	if !errors.As(err, &blocked) || len(blocked.Blockers) != 2 {
		t.Errorf("a temporary one: %v", err)
	}
	eventually(t, "nothing of the slot is left", func() bool {
		return db.Query(t, `select count(*) from pg_replication_slots`)[0][0] == "0"
	})
	db.Exec(t, `rollback prepared 'forgotten'`)
}

func TestSlotsAreCreatedAndDroppedSafely(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Shared(t)
	db := cluster.Database(t)
	conn := db.Conn(t)
	ctx := t.Context()
	t.Run("a name that is none is refused", func(t *testing.T) {
		for _, name := range []string{"", "Upper", "with space", `quo"te`, strings.Repeat("x", 64)} {
			if _, err := CreateSlot(ctx, db.Shard(0), name, false); err == nil {
				t.Errorf("%q was accepted", name)
			}
		}
	})
	t.Run("a keyword is a name, and a name is taken only once", func(t *testing.T) {
		s, err := CreateSlot(ctx, db.Shard(0), "logical", true)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := CreateSlot(ctx, db.Shard(0), "logical", false); !errors.Is(err, ErrSlotExists) {
			t.Errorf("made again: %v", err)
		}
		state, err := InspectSlot(ctx, conn, "logical")
		if err != nil || !state.Temporary || state.Plugin != "pgoutput" || state.Database != db.Name ||
			state.ConfirmedFlush != s.ConsistentPoint || state.Restart == 0 || state.Check() != nil {
			t.Errorf("%+v %v", state, err)
		}
		s.Close()
		eventually(t, "a temporary slot goes with its connection", func() bool {
			_, err := InspectSlot(ctx, conn, "logical")
			return errors.Is(err, ErrSlotMissing)
		})
	})
	t.Run("dropping one that is not there is no error", func(t *testing.T) {
		if err := DropSlot(ctx, conn, "nothing"); err != nil {
			t.Error(err)
		}
	})
	t.Run("another database's or plugin's is not dropped", func(t *testing.T) {
		other := cluster.Database(t)
		s, err := CreateSlot(ctx, other.Shard(0), slotOf(other), false)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := DropSlot(ctx, conn, slotOf(other)); !errors.Is(err, ErrSlotForeign) {
			t.Errorf("%v", err)
		}
		physical := slotOf(other) + "_p"
		db.Exec(t, `select pg_create_physical_replication_slot($1)`, physical)
		defer db.Exec(t, `select pg_drop_replication_slot($1)`, physical)
		if err := DropSlot(ctx, conn, physical); !errors.Is(err, ErrSlotForeign) {
			t.Errorf("%v", err)
		}
	})
}

func TestASlotIsDroppedOnceItsWalsenderHasEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	f := follow(t, s.config())
	db.Exec(t, `insert into a values (1)`)
	f.transactions(1)
	second := New(s.config())
	if err := second.Run(t.Context()); !errors.Is(err, ErrSlotInUse) {
		t.Errorf("a second stream: %v", err)
	}
	conn := db.Conn(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := DropSlot(ctx, db.Conn(t), slotOf(db)); err == nil {
		t.Error("dropped while in use")
	}
	dropped := make(chan error, 1)
	go func() { dropped <- DropSlot(t.Context(), conn, slotOf(db)) }()
	_ = f.stop()
	if err := <-dropped; err != nil {
		t.Error(err)
	}
}

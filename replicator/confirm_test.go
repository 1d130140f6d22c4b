package replicator

import (
	"fmt"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestConfirmReachesTheSlotAndNeverGoesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	f := follow(t, s.config())
	var ends []pg.LSN
	for i := range 3 {
		db.Exec(t, `insert into a values ($1)`, i)
		_, end := f.transactions(1)
		ends = append(ends, end)
	}
	if at := confirmedFlush(t, db); at >= ends[0] {
		t.Errorf("the slot is at %s before anything was confirmed", at)
	}
	conn := db.Conn(t)
	began := time.Now()
	f.Confirm(ends[1])
	f.Confirm(ends[0])
	eventually(t, "the slot is confirmed", func() bool {
		state, err := InspectSlot(t.Context(), conn, slotOf(db))
		return err == nil && state.ConfirmedFlush == ends[1]
	})
	took := time.Since(began)
	t.Logf("confirmed within %s", took)
	if took > 2*time.Second {
		t.Error("a confirmation waits for the status interval")
	}
	if at := f.Stats().Confirmed; at != ends[1] {
		t.Errorf("statistics say %s", at)
	}
	f.Confirm(ends[2])
	_ = f.stop()
	eventually(t, "what was confirmed last is sent at the end", func() bool { return confirmedFlush(t, db) == ends[2] })
}

func TestAConfirmationBeyondWhatWasDeliveredWaitsForIt(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	f := follow(t, s.config())
	f.Confirm(s.start + 1<<40)
	db.Exec(t, `insert into a values (1)`)
	_, end := f.transactions(1)
	eventually(t, "what was delivered is confirmed", func() bool { return confirmedFlush(t, db) >= end })
	_ = f.stop()
	if at := confirmedFlush(t, db); at > end+1<<20 {
		t.Errorf("the slot is at %s, %s was delivered", at, end)
	}
}

func TestARestartGoesOnWithoutGapOrRepetition(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	const last = 60
	for i := range last {
		db.Exec(t, `insert into a values ($1)`, i)
	}
	next := 0
	for _, n := range []int{1, 7, 20, 32} {
		f := follow(t, s.config())
		var got []string
		got, s.start = f.transactions(n)
		for i := 1; i < len(got); i += 3 {
			if want := fmt.Sprintf("insert public.a [%d]", next); got[i] != want {
				t.Fatalf("got %s, want %s", got[i], want)
			}
			next++
		}
		if n == 7 { // sometimes confirmed, sometimes not
			f.Confirm(s.start)
		}
		_ = f.stop()
	}
	if next != last {
		t.Errorf("%d of %d", next, last)
	}
}

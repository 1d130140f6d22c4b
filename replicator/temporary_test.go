package replicator

import (
	"context"
	"errors"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// A temporary stream sends what commits once it has begun, and leaves no slot, however it ends.
func TestATemporarySlotLivesAsLongAsItsStream(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key); insert into a values (1)`)
	if err := CreatePublication(t.Context(), db.Conn(t), "p", []pg.Name{{Schema: "public", Table: "a"}}); err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	c := Config{Shard: db.Shard(0), Slot: slotOf(db), Publication: "p", Temporary: patience, Start: 1,
		Began: func(context.Context, int32) error { close(began); return nil }}
	f := follow(t, c)
	select {
	case <-began:
	case <-time.After(patience):
		t.Fatal("it did not begin")
	}
	db.Exec(t, `insert into a values (2)`)
	got, end := f.transactions(1)
	if len(got) != 3 {
		t.Errorf("got %v", got)
	}
	f.Confirm(end)
	eventually(t, "the slot moves", func() bool { return confirmedFlush(t, db) >= end })
	if state, err := InspectSlot(t.Context(), db.Conn(t), slotOf(db)); err != nil || !state.Temporary {
		t.Errorf("%+v, %v", state, err)
	}
	if err := f.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if _, err := InspectSlot(t.Context(), db.Conn(t), slotOf(db)); !errors.Is(err, ErrSlotMissing) {
		t.Errorf("afterwards: %v", err)
	}
}

// A slot that Run makes to last is there for the next run, which is sent again what was not confirmed.
func TestALastingSlotIsReadOnFrom(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	if err := CreatePublication(t.Context(), db.Conn(t), "p", []pg.Name{{Schema: "public", Table: "a"}}); err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{}, 2)
	c := Config{Shard: db.Shard(0), Slot: slotOf(db), Publication: "p", Temporary: patience, Lasting: true,
		Began: func(context.Context, int32) error { began <- struct{}{}; return nil }}
	f := follow(t, c)
	<-began
	from := f.Stats().Confirmed
	db.Exec(t, `insert into a values (1)`)
	if got, _ := f.transactions(1); len(got) != 3 {
		t.Errorf("got %v", got)
	}
	if err := f.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	eventually(t, "the slot is free", func() bool {
		state, err := InspectSlot(t.Context(), db.Conn(t), slotOf(db))
		return err == nil && state.ActivePID == 0 && !state.Temporary && state.ConfirmedFlush == from
	})
	c.Temporary, c.Lasting, c.Start = 0, false, from
	again := follow(t, c)
	if got, _ := again.transactions(1); len(got) != 3 || again.Stats().Confirmed != from {
		t.Errorf("got %v, confirmed %s of %s", got, again.Stats().Confirmed, from)
	}
	if err := again.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

package pgtest

import (
	"context"
	"fmt"
	"testing"

	"pgreshard/pg"
)

func TestAServerWhoseDiskIsFullHasRoomAgain(t *testing.T) {
	t.Parallel()
	c, err := New(t.Context(), Options{Room: 200 << 20, Settings: map[string]string{"max_wal_size": "64MB"}})
	if err != nil {
		t.Skipf("no file system of its own: %v", err)
	}
	t.Cleanup(c.Close)
	db := c.Database(t)
	db.Exec(t, `create table x (i int, s text); insert into x values (1, 'one')`)
	if err := c.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	write := func() error {
		conn, err := db.Connect(t.Context())
		if err == nil {
			defer conn.Close(context.WithoutCancel(t.Context()))
			_, err = conn.Exec(t.Context(), `insert into x select g, repeat('x', 1000) from generate_series(1, 10000) g`)
		}
		return err
	}
	if err := write(); pg.Code(err) != "53100" {
		t.Fatalf("10 MB into a full disk: %v", err)
	}
	if err := c.Free(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(db.Query(t, `select count(*) from x`)); got != "[[10001]]" {
		t.Errorf("%s rows", got)
	}
}

func TestAServerThatIsReadOnlyForAWhileKeepsItsTimeline(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	db := c.Database(t)
	db.Exec(t, `create table x (i int); insert into x values (1)`)
	if err := c.ReadOnly(true); err != nil {
		t.Fatal(err)
	}
	conn, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into x values (2)`); pg.Code(err) != "25006" {
		t.Errorf("a write was answered with %v", err)
	}
	if err := c.ReadOnly(false); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `insert into x values (3)`)
	if got := fmt.Sprint(db.Query(t, `select i, (select timeline_id from pg_control_checkpoint()) from x order by i`)); got != "[[1 1] [3 1]]" {
		t.Errorf("rows and timeline %s", got)
	}
}

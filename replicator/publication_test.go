package replicator

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestWhatAPublicationCoversIsSeenWhenItChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key, v text); create table b (id int primary key)`)
	db.Exec(t, `create table "Odd ""name" (id int) partition by list (id); create table "Odd leaf" partition of "Odd ""name" for values in (1)`)
	conn := db.Conn(t)
	ctx := t.Context()
	tables := []pg.Name{{Schema: "public", Table: "a"}, {Schema: "public", Table: "Odd leaf"}}
	if err := CreatePublication(ctx, conn, `the "p"`, tables); err != nil {
		t.Fatal(err)
	}
	if err := CreatePublication(ctx, conn, `the "p"`, tables); !errors.Is(err, ErrPublicationExists) {
		t.Errorf("made again: %v", err)
	}
	describe := func() *Publication {
		t.Helper()
		p, err := DescribePublication(ctx, conn, `the "p"`)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	then := describe()
	if then.OID == 0 || len(then.Tables) != 2 || len(then.Filters) != 0 {
		t.Errorf("%+v", then)
	}
	if diff := then.Changed(describe()); diff != "" {
		t.Error(diff)
	}
	for _, test := range []struct{ change, undo, want string }{
		{`alter table a add w int`, `alter table a drop w`, ""},
		{`alter publication "the ""p""" add table b`, `alter publication "the ""p""" drop table b`, "its tables were changed"},
		{`alter publication "the ""p""" set (publish = 'insert')`,
			`alter publication "the ""p""" set (publish = 'insert, update, delete, truncate')`, "its options were changed"},
		{`alter publication "the ""p""" set table a where (id > 1), "Odd leaf"`,
			`alter publication "the ""p""" set table a, "Odd leaf"`, "a row filter or column list was changed"},
		{`drop publication "the ""p"""; create publication "the ""p""" for table a, "Odd leaf"`, `select 1`, "it was dropped and made again"},
	} {
		if strings.Contains(test.change, "where") && db.Cluster.Version < 15 {
			continue // row filters came with 15
		}
		db.Exec(t, test.change)
		if got := then.Changed(describe()); got != test.want {
			t.Errorf("%s: %q, want %q", test.change, got, test.want)
		}
		db.Exec(t, test.undo)
	}
	if err := DropPublication(ctx, conn, `the "p"`); !errors.Is(err, ErrPublicationForeign) {
		t.Errorf("the one somebody else has made: %v", err)
	}
	db.Exec(t, `drop publication "the ""p"""`)
	if err := CreatePublication(ctx, conn, `the "p"`, tables); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := DropPublication(ctx, conn, `the "p"`); err != nil {
			t.Error(err)
		}
	}
	if _, err := DescribePublication(ctx, conn, `the "p"`); !errors.Is(err, ErrPublicationMissing) {
		t.Errorf("after the drop: %v", err)
	}
}

// PostgreSQL looks the publications of a table up one by one, without a lock, when a session first writes to it.
func TestWritersDoNotMeetThePublicationThatIsDropped(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	tables := []pg.Name{{Schema: "public", Table: "a"}, {Schema: "public", Table: "b"}}
	db.Exec(t, `create table a (id serial primary key, v int); create table b (id serial primary key, v int)`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var writers errgroup.Group
	var written atomic.Int64
	for range 8 {
		conn := db.Conn(t)
		writers.Go(func() error {
			for ctx.Err() == nil {
				for _, sql := range []string{`insert into a (v) values (1)`, `update b set v = v + 1 where id = 1`, `begin; insert into b (v) values (1)`, `commit`} {
					if _, err := conn.Exec(t.Context(), sql); err != nil {
						return err
					}
					written.Add(1)
				}
			}
			return nil
		})
	}
	conn := db.Conn(t)
	for range 300 {
		if err := CreatePublication(t.Context(), conn, "p", tables); err != nil {
			t.Fatal(err)
		}
		if err := DropPublication(t.Context(), conn, "p"); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := writers.Wait(); err != nil || written.Load() == 0 {
		t.Errorf("after %d statements: %v", written.Load(), err)
	}
}

func TestAPublicationThatIsGoneEndsTheStream(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table a (id int primary key)`)
	s := publish(t, db, "a")
	db.Exec(t, `drop publication p; insert into a values (1)`)
	stream := New(s.config())
	err := stream.Run(t.Context())
	if !errors.Is(err, ErrPublicationMissing) || pg.Transient(err) {
		t.Errorf("%v", err)
	}
	t.Log(err)
}

// What version 18 does instead of ending the stream; the text depends on lc_messages.
func TestAWarningThatChangesAreLeftOutEndsTheStream(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		notice pgconn.Notice
		ends   bool
	}{
		{"in English", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Message: `skipped loading publication "p"`}, true},
		{"in another language", pgconn.Notice{Severity: "WARNUNG", SeverityUnlocalized: "WARNING", Code: "55000", Message: `übersprungen`}, true},
		{"another warning", pgconn.Notice{SeverityUnlocalized: "WARNING", Code: "01000", Message: "collation version mismatch"}, false},
		{"a notice", pgconn.Notice{SeverityUnlocalized: "NOTICE", Code: "55000", Message: "something"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := connection{stream: New(Config{}), decoder: newDecoder()}
			c.notice(&test.notice)
			err := c.handle(t.Context(), &pgproto3.NoticeResponse{})
			if got := errors.Is(err, ErrPublicationMissing); got != test.ends {
				t.Errorf("%v", err)
			}
		})
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// pages is a table of two chunks: rows are as wide as they can be without leaving the table.
const pages = `create table pages (id int primary key, tenant int, v text, pad text) with (fillfactor = 90); alter table pages alter pad set storage plain;
	insert into pages select g, g % 5, 'v' || g, repeat('x', 1500) from generate_series(1, 7000) g;`

// rewrites are what gives a table another file, and what an application does at the same time.
var rewrites = map[string]string{
	"VACUUM FULL": `vacuum full pages`,
	"CLUSTER":     `cluster pages using pages_pkey`,
	"TRUNCATE":    `begin; truncate pages; insert into pages select g, g % 5, 'again', 'p' from generate_series(6000, 8000) g; commit`,
	"ALTER":       `alter table pages alter v type text using v || ''`,
}

// halfCopied lets a worker copy until a row is on its way, and stalls it there: v2000 is in the first of two chunks, v6000
// in the second.
func halfCopied(t *testing.T, row string) (s *smallMove, ended chan error, stop func(), goOn func()) {
	s = newSmallMove(t, 2, "tenant", pages)
	relay := pgtest.NewRelay(t, s.sources[0].Cluster.Addr())
	direct := s.config.Source.Shards
	s.config.CopyWorkers = 1
	s.config.Source.Shards = []pg.Shard{s.sources[0].Via(relay).Shard(0)}
	stalled := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Contains: row + "\x00", Do: pgtest.Stall})
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	m := s.move()
	s.config.Source.Shards = direct
	go func() {
		ended <- m.Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			s.sources[0].Exec(t, `update pages set v = 'stream' where id % 100 = 0; update pages set tenant = tenant + 1 where id % 70 = 0; delete from pages where id % 130 = 0`)
			return true, nil
		}})
	}()
	select {
	case <-stalled:
	case err := <-ended:
		t.Fatalf("the copy was not stopped: %v", err)
	}
	return s, ended, stop, func() { relay.Clear(); relay.Resume(pgtest.ToClient) }
}

func TestCase05aATableRewrittenBetweenTwoChunks(t *testing.T) {
	t.Parallel()
	for name, rewrite := range rewrites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ended, stop, goOn := halfCopied(t, "v2000")
			defer stop()
			conn := s.sources[0].Conn(t)
			done := make(chan error, 1)
			go func() { // it waits for the chunk that is being read, and the next chunk waits for it
				_, err := conn.PgConn().Exec(t.Context(), rewrite).ReadAll()
				done <- err
			}()
			waits := `select 1 from pg_locks where relation = 'pages'::regclass and mode = 'AccessExclusiveLock' and not granted`
			for len(s.sources[0].Query(t, waits)) == 0 {
				time.Sleep(5 * time.Millisecond)
			}
			goOn()
			if err := errors.Join(<-done, <-ended); err != nil {
				t.Fatal(err)
			}
			s.same("pages", "id")
			s.onItsShard("pages", "tenant", "int")
		})
	}
}

func TestCase05aATableRewrittenBetweenAKillAndTheResume(t *testing.T) {
	t.Parallel()
	for name, rewrite := range rewrites {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, ended, stop, goOn := halfCopied(t, "v6000")
			stop()
			goOn()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if marks := s.shards[0].Query(t, `select count(*) from pgreshard.chunk`); fmt.Sprint(marks) != "[[1]]" {
				t.Fatalf("chunks held by shard 0: %v", marks)
			}
			runOn(t, s.sources[0].Conn(t), rewrite)
			s.run(s.steps(`update pages set v = 'stream' where id % 100 = 0; update pages set tenant = tenant + 1 where id % 70 = 0; delete from pages where id % 130 = 0`))
			s.same("pages", "id")
			s.onItsShard("pages", "tenant", "int")
		})
	}
}

// A rewrite that leaves a column's type and changes its values is in no log; the catalog tells it from VACUUM FULL.
func TestCase05aAnAlterThatChangesValuesAndNothingElseIsFoundBeforeTheSwitch(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant int, v text); insert into notes select g, g % 5, 'v' || g from generate_series(1, 50) g`)
	s.config.Attempts = 1
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		s.sources[0].Exec(t, `alter table notes alter v type text using upper(v)`)
		return true, nil
	}})
	var ddl *move.DDLError
	if !errors.As(err, &ddl) || !strings.Contains(err.Error(), `an ALTER of column "v"`) {
		t.Errorf("went on with %v", err)
	}
	if serving := s.sources[0].Query(t, `select count(*) from pgreshard.serving where version = 2`); fmt.Sprint(serving) != "[[0]]" {
		t.Errorf("layout 2 serves: %v", serving)
	}
}

package move_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// rogue is a writer that ignores every hint: it inserts rows into one database, whichever layout serves.
type rogue struct {
	name  string
	first int64 // of its ids, which are every second

	// once it has ended
	acked   []int64
	refused int
	err     error
}

// rogues are one on the first source and one on the first shard, with rows of a tenant that lives on both.
type rogues struct {
	*rig
	all    [2]*rogue
	tenant int
	stop   func()
}

// beRogue begins to write on the source, and on the shard as soon as a move has made the table there, and closed it.
func (r *rig) beRogue() *rogues {
	r.t.Helper()
	for _, db := range r.sources {
		db.Exec(r.t, `create table rogues (id bigint, tenant_id bigint, primary key (id, tenant_id))`)
	}
	for _, side := range []*layout.Spec{&r.config.Source.Spec, &r.config.Destination.Spec} {
		side.Tables = append(side.Tables, layout.ShardedTable{Database: side.Tables[0].Database, Name: "rogues", Columns: []string{"tenant_id"}})
	}
	w, places := &rogues{rig: r}, newPlaces(r.t)
	for lives := false; !lives; {
		w.tenant++
		lives = true
		for _, shards := range []int{len(r.sources), len(r.shards)} {
			at, err := places.of(r.t.Context(), "bigint", strconv.Itoa(w.tenant), shards)
			if err != nil {
				r.t.Fatal(err)
			}
			lives = lives && at == 0
		}
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	var ended sync.WaitGroup
	for i, db := range []*pgtest.DB{r.sources[0], r.shards[0]} {
		w.all[i] = &rogue{name: "the rogue on " + db.Name, first: int64(i)}
		conn := db.Conn(r.t)
		ended.Go(func() { w.all[i].write(ctx, conn, w.tenant) })
	}
	w.stop = func() { cancel(); ended.Wait() }
	r.t.Cleanup(w.stop)
	return w
}

const isClosed = `select exists (select from pg_trigger where tgrelid = to_regclass('rogues') and tgname = '!pgreshard_fence')`

// write goes on until ctx ends. What is refused is not written.
func (g *rogue) write(ctx context.Context, conn *pgx.Conn, tenant int) {
	const pause = 5 * time.Millisecond
	for there := g.first == 0; !there && ctx.Err() == nil; time.Sleep(pause) {
		if g.err = conn.QueryRow(ctx, isClosed).Scan(&there); g.err != nil {
			return
		}
	}
	for id := g.first; ctx.Err() == nil; id += 2 {
		_, err := conn.Exec(context.WithoutCancel(ctx), `insert into rogues values ($1, $2)`, id, tenant)
		switch {
		case err == nil:
			g.acked = append(g.acked, id)
		case pg.Code(err) == "25006":
			g.refused++
		default:
			g.err = err
			return
		}
		time.Sleep(pause)
	}
}

// check ends them. Each of their rows that was acknowledged is there once, on the first of these databases, and no other is.
func (w *rogues) check(serving []*pgtest.DB) {
	w.t.Helper()
	w.stop()
	var want, got []int64
	for _, g := range w.all {
		w.t.Logf("%s wrote %d rows and was refused %d times", g.name, len(g.acked), g.refused)
		if g.err != nil || g.refused == 0 || len(g.acked) == 0 {
			w.t.Errorf("%s: %d rows, refused %d times, %v", g.name, len(g.acked), g.refused, g.err)
		}
		want = append(want, g.acked...)
	}
	for n, db := range serving {
		for _, row := range db.Query(w.t, `select id, tenant_id from rogues`) {
			id, err := strconv.ParseInt(row[0], 10, 64)
			if err != nil || n > 0 || row[1] != fmt.Sprint(w.tenant) {
				w.t.Errorf("%s has row %v, %v", db.Name, row, err)
			}
			got = append(got, id)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		w.t.Errorf("the rogues were told that %d rows are written, and %d are there", len(want), len(got))
	}
}

// Somebody writes to a shard's table before the move closes it: the move ends before it copies anything, and says what to do.
func TestAWriteToAShardBeforeItIsClosedIsFoundBeforeTheCopy(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.shards[1].Exec(t, `create function early() returns event_trigger language plpgsql as $$ begin
			if to_regclass('public.items') is not null then insert into public.items values (-1, 'early'); end if;
		end $$;
		create event trigger early on ddl_command_end when tag in ('CREATE TABLE') execute function early()`)
	err := s.move().Migrate(t.Context(), move.MigrateOptions{})
	const mend = `set session_replication_role = replica; truncate "public"."items"`
	if err == nil || !strings.Contains(err.Error(), "public.items holds rows of somebody who wrote to it before the move closed it: destination shard 1; hint: ") || !strings.Contains(err.Error(), mend) {
		t.Fatalf("it ended with %v", err)
	}
	if state := s.shards[0].Query(t, `select state from pgreshard.move`); fmt.Sprint(state) != "[[schema]]" {
		t.Errorf("the move is %v", state)
	}
	s.shards[1].Exec(t, mend)
	s.run(func() {})
	s.same("items", "id")
}

package move_test

import (
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"pgreshard/copier"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// A trial of tables of every kind reads all of what is small, and leaves nothing behind.
func TestAPlanForetellsByATrialThatIsTakenBack(t *testing.T) {
	t.Parallel()
	const schema = `create type mood as enum ('glad', 'sad'); create domain cents as bigint check (value >= 0);
		create table notes (id bigint primary key, feels mood, cost cents, at timestamptz default now(), tags jsonb, text text, twice bigint generated always as (id * 2) stored);
		create index on notes (feels, at); create index on notes using gin (tags); create index on notes (lower(text)); create unique index on notes (id, cost);
		create table "Odd ""name""" (id bigint not null, "a b" text) partition by range (id);
		create table odd_1 partition of "Odd ""name""" for values from (0) to (1000); create table odd_2 partition of "Odd ""name""" for values from (1000) to (9000);
		create table bare (id bigint);
		create table void (id bigint primary key)`
	const rows = `insert into notes select g, 'glad', g, now(), '{"a": 1}', repeat('x', 2000) from generate_series(%d, %d) g;
		insert into "Odd ""name""" select g, 'y' from generate_series(1, 3000) g; insert into bare select 1 from generate_series(1, 500)`
	r := &rig{t: t}
	for n := range 2 {
		db := pgtest.Shared(t).Database(t)
		db.Exec(t, schema+";"+fmt.Sprintf(rows, 1+n*2000, 2000+n*2000))
		r.sources = append(r.sources, db)
	}
	s := smallMoveOf(t, r.sources[0], []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.Source.Shards = append(s.config.Source.Shards, r.sources[1].Shard(1))
	writer := r.sources[1].Conn(t) // a transaction that writes for longer than a freeze would wait
	s.config.LockTimeout = 10 * time.Millisecond
	if _, err := writer.Exec(t.Context(), `begin; insert into bare values (2)`); err != nil {
		t.Fatal(err)
	}
	const catalog = `select md5(string_agg(c::text, '' order by oid)) from pg_class c where relnamespace::regnamespace::text !~ '^pg_'`
	before := s.shards[0].Query(t, catalog)
	plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{})
	if err != nil || plan.Forecast == nil {
		t.Fatalf("%v, %q", err, plan.Notes)
	}
	f := plan.Forecast
	const all = 4000 + 2*3000 + 2*500
	// Of the indexes of notes three have a column; that over an expression alone counts for nothing. What is of a type the shard
	// does not have yet is text there.
	if m := f.Measured; m.Rows != all || m.IndexRows != 3*4000 || m.Streams != 4 || m.Bytes == 0 || m.Log == 0 || m.IndexLog == 0 || m.Changes != 4000 {
		t.Errorf("measured %+v", m)
	}
	if f.Copy.Seconds <= 0 || f.Indexes.Seconds <= 0 || f.Freeze.Seconds < 0.01 || len(f.Log) != 2 || f.Log[0].Room == 0 {
		t.Errorf("foretold %+v", f)
	}
	found := false
	for _, w := range f.Warnings {
		found = found || w.Hint == "[cutover] on_blockers, or end it before the cutover"
	}
	if !found {
		t.Errorf("the open transaction is not warned of: %+v", f.Warnings)
	}
	for n, db := range s.shards {
		if left := db.Query(t, `select nspname from pg_namespace where nspname ~ 'pgreshard'`); len(left) != 0 {
			t.Errorf("shard %d has %v", n, left)
		}
	}
	if after := s.shards[0].Query(t, catalog); after[0][0] != before[0][0] {
		t.Error("the catalog is not as it was")
	}
}

// PGRESHARD_TEST_FORECAST=1 moves three sets of data that differ in all that costs time, and holds what was foretold against it.
func TestAForecastComesTrue(t *testing.T) {
	if os.Getenv("PGRESHARD_TEST_FORECAST") == "" {
		t.Skip("make forecast runs it: it needs a machine that does nothing else")
	}
	for name, schema := range map[string]string{
		"wide": `create table items (id bigint primary key, a text, b text, c text, d numeric, e timestamptz, f uuid, g jsonb);
			insert into items select g, md5(g::text) || repeat('a', 300), repeat('b', 300), md5(g::text), g * 1.5, now(), gen_random_uuid(), '{"k": [1, 2, 3]}' from generate_series(1, 800000) g`,
		"narrow with many indexes": `create table items (id bigint primary key, a bigint, b bigint, c int, d int);
			insert into items select g, hashint8(g), g % 1000, hashint8(g + 7), g % 77 from generate_series(1, 3000000) g;
			create index on items (a); create index on items (b, id); create index on items (c); create index on items (d, a)`,
		"toast": `create table items (id bigint primary key, doc text); alter table items alter doc set storage external;
			insert into items select g, repeat(md5(g::text), 300) from generate_series(1, 80000) g`,
	} {
		t.Run(name, func(t *testing.T) {
			source := pgtest.Start(t, pgtest.Options{Durable: true}).Database(t)
			var shards []*pgtest.DB
			for range 4 {
				shards = append(shards, pgtest.Start(t, pgtest.Options{Durable: true}).Database(t))
			}
			source.Exec(t, schema)
			source.Exec(t, `vacuum (freeze, analyze) items`)
			source.Exec(t, `checkpoint`)
			s := smallMoveOf(t, source, shards, "id")
			s.config.CopyWorkers, s.config.CopyFormat = 4, copier.Auto
			began := time.Now()
			plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{})
			if err != nil || plan.Forecast == nil {
				t.Fatalf("%v, %v", err, plan)
			}
			took := time.Since(began)
			written := func() (all float64) {
				for _, db := range s.shards {
					var n float64
					fmt.Sscan(db.Query(t, `select pg_current_wal_insert_lsn() - '0/0'`)[0][0], &n)
					all += n
				}
				return all
			}
			at := written()
			_, goOn, ended := s.holding()
			log := written() - at
			seconds := func(from, to string) (n float64) {
				const sql = `select extract(epoch from b.at - a.at) from pgreshard.journal a, pgreshard.journal b where a.step = $1 and b.step = $2`
				fmt.Sscan(s.shards[0].Query(t, sql, from, to)[0][0], &n)
				return n
			}
			f := plan.Forecast
			hold := func(what string, foretold, real float64) {
				t.Logf("%s: foretold %.2f, it was %.2f (%+.0f %%)", what, foretold, real, 100*(foretold/real-1))
				if math.Abs(foretold/real-1) > 0.3 {
					t.Errorf("%s is foretold worse than within 30 %%", what)
				}
			}
			t.Logf("the plan took %.1f s", took.Seconds())
			hold("seconds of the copy", f.Copy.Seconds, seconds(move.StateCopying, move.StateIndexing))
			hold("MB of log on the shards", float64(f.ShardsLog)/(1<<20), log/(1<<20))
			t.Logf("seconds of indexes and vacuum: foretold %.2f, they were %.2f", f.Indexes.Seconds, seconds(move.StateIndexing, move.StateStreaming))
			goOn()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			s.same("items", "id")
		})
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// hashedSchema has types that only servers hash, and what they are made of.
const hashedSchema = `create schema app; create type app.pair as (a int, "b c" text); create domain app.tags as int[] check (value <> '{9999}');
	create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
	create table outside (id int primary key, k int[], v text); create table of_full (id int primary key, k jsonb, v text); alter table of_full replica identity full;
	create table keyless (id int, k int8range, v text); alter table keyless replica identity full;`

// hashedKeys are those types, and an SQL expression of number g's value.
var hashedKeys = []struct{ name, typ, value string }{
	{"ints", "int[]", `case g % 4 when 0 then array[g, null] when 1 then array[[g], [g + 1]] else array[g] end`}, {"chars", "character(5)[]", `array['k' || g, null]::character(5)[]`},
	{"range", "int8range", `int8range(g, g + 5)`}, {"times", "tstzrange", `tstzrange('2000-01-01 12:00:00.25+05:30'::timestamptz + g * interval '1 day', 'infinity', '[)')`},
	{"multirange", "int4multirange", `int4multirange(int4range(g, g + 1), int4range(g + 10, g + 20))`}, {"pair", "app.pair", `row(g, 'x, "' || g)::app.pair`}, {"pairs", "app.pair[]", `array[row(g, null)::app.pair, null]`},
	{"json", "jsonb", `jsonb_build_object('a', g, 'b', array[g, null], 'c', 'é"')`}, {"tags", "app.tags", `array[g]::app.tags`}, {"xid8", "xid8", `(18446744073709551615 - g)::text::xid8`},
	{"blind", "text collate blind", `'Key' || g`}, {"citext", "app.citext", `('Key' || g)::app.citext`}, {"hstore", "app.hstore", `app.hstore('k' || g, null)`},
}

// hashedMove has a table for each of hashedKeys, of which its key is the sharding key, with rows of numbers 1 to 40.
func hashedMove(t *testing.T, shards int) (s *smallMove, tables []string) {
	s = newSmallMove(t, shards, "k", hashedSchema)
	s.sources[0].Exec(t, `insert into outside select g, array[case when g < 20 then 1 else g end], 'v' from generate_series(1, 40) g; insert into of_full select g, to_jsonb(g % 9), 'v' from generate_series(1, 40) g;
		insert into keyless select g % 20, int8range(g % 9, 10), 'v' from generate_series(1, 40) g`)
	icu := `select coalesce(pg_collation_actual_version('pg_catalog."und-x-icu"'::regcollation), '')`
	for _, k := range hashedKeys {
		_, extension, own := strings.Cut(k.typ, "app.")
		switch {
		case own && (extension == "citext" || extension == "hstore"):
			if !has(t, extension) {
				continue
			}
			s.sources[0].Exec(t, "create extension "+extension+" schema app")
		case k.name == "blind" && s.sources[0].Query(t, icu)[0][0] != s.shards[0].Query(t, icu)[0][0]:
			t.Log("both servers' collations are not of one version")
			continue
		}
		s.sources[0].Exec(t, fmt.Sprintf(`create table k_%[1]s (k %[2]s primary key, n int, v text); insert into k_%[1]s select %[3]s, g, 'v' from generate_series(1, 40) g`, k.name, k.typ, k.value))
		tables = append(tables, "k_"+k.name)
	}
	return s, tables
}

// hashedChanges are rows that come, change, move and go, from numbers above first on.
func hashedChanges(first int, tables []string) (list []string) {
	for _, k := range hashedKeys {
		if table := "k_" + k.name; slices.Contains(tables, table) {
			list = append(list, fmt.Sprintf(`insert into %[1]s select %[2]s, g, 'w' from generate_series(%[3]d, %[3]d + 19) g; update %[1]s set v = 'u' where n %% 3 = 0;
				update %[1]s set k = (select %[2]s from generate_series(%[3]d + 400, %[3]d + 400) g) where n = %[3]d + 4; delete from %[1]s where n in (%[3]d + 7, %[3]d + 8)`, table, k.value, first),
				fmt.Sprintf(`update %[1]s set k = x.k from (select %[2]s as k, g from generate_series(%[3]d + 500, %[3]d + 519) g) x where n = x.g - 500; update %[1]s set v = v || '!' where n > %[3]d + 10`, table, k.value, first))
		}
	}
	return list
}

func (s *smallMove) hashedRight(tables []string) {
	s.t.Helper()
	for _, k := range hashedKeys {
		if table := "k_" + k.name; slices.Contains(tables, table) {
			s.sameRows(pgtest.RowsOptions{}, table)
			s.onItsShard(table, "k", k.typ)
		}
	}
	s.sameRows(pgtest.RowsOptions{}, "outside", "of_full", "keyless")
	for table, typ := range map[string]string{"outside": "int[]", "of_full": "jsonb", "keyless": "int8range"} {
		s.onItsShard(table, "k", typ)
	}
}

// Keys that pgreshard does not hash itself are placed by what the servers' own hash partitioning makes of them: in the copy, in
// the stream, by route, by a plan, on the way back, and as verification sees it.
func TestCase10KeysThatOnlyServersHash(t *testing.T) {
	t.Parallel()
	s, tables := hashedMove(t, 3)
	s.config.Reverse, s.config.Exclude = true, []string{"placed"}
	plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{Placements: true, ShowKeys: true})
	if err != nil || len(plan.Problems) > 0 {
		t.Fatalf("%v, %+v", err, plan.Problems)
	}
	shares := map[string][3]float64{}
	for _, r := range plan.Surveys {
		shares[strings.TrimPrefix(r.Table, "public.")] = [3]float64{r.Shares[0].Rows, r.Shares[1].Rows, r.Shares[2].Rows}
		if r.Table == "public.outside" && (len(r.Largest) == 0 || !strings.HasPrefix(r.Largest[0].Key, "{")) {
			t.Errorf("the largest keys are told otherwise than they are: %+v", r.Largest)
		}
	}
	k := &kept{rig: s.rig, Move: s.move(), done: make(chan error, 1)}
	go func() {
		k.done <- k.Migrate(t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			for _, table := range tables { // what was copied stands as foretold
				for n, db := range s.shards {
					rows := db.Query(t, "select count(*) from "+table)[0][0]
					if want := fmt.Sprintf("%.0f", 40*shares[table][n]); rows != want {
						t.Errorf("%s: shard %d holds %s rows, foretold were %s", table, n, rows, want)
					}
				}
			}
			s.steps(append(hashedChanges(101, tables), `update outside set v = 'u' where id % 2 = 0; update outside set k = array[id, id] where id % 3 = 0; insert into outside values (100, null, 'n'), (101, '{}', 'e')`,
				`update outside set k = '{5}' where id = 100; update outside set k = null where id = 1; delete from outside where id in (2, 3, 101)`,
				`update of_full set k = k || '"x"' where id % 3 = 0; update of_full set v = 'u' where id % 2 = 0; update of_full set k = null where id = 5; update of_full set k = '{}' where id = 5; delete from of_full where id = 7`,
				`update keyless set k = int8range(id, 50) where id % 3 = 0; update keyless set v = 'u' where id % 2 = 0; delete from keyless where id = 7; insert into keyless values (1, null, 'n'), (1, 'empty', 'e')`,
				`begin; truncate of_full; insert into of_full select g, to_jsonb(g), 'again' from generate_series(1, 20) g; commit`)...)()
			return true, nil
		}})
	}()
	k.following()
	s.hashedRight(tables)
	for _, r := range s.shards[1].Query(t, `select k::text from k_pair limit 3`) {
		if to, err := s.move().Route(t.Context(), "k_pair", r[:1]); err != nil || fmt.Sprint(to.Shards) != "[shard 1]" || to.Translated != "" {
			t.Errorf("%s: %+v, %v", r[0], to, err)
		}
	}
	if _, err := s.move().Route(t.Context(), "k_range", []string{"x"}); err == nil || !strings.Contains(err.Error(), "not a value of the type of k") {
		t.Errorf("no range: %v", err)
	}

	for n, db := range s.shards { // a row is written where it belongs
		for _, h := range hashedKeys {
			if table := "k_" + h.name; slices.Contains(tables, table) {
				db.Exec(t, fmt.Sprintf(`create table placed (k %[2]s) partition by hash (k); insert into %[1]s select * from (select %[3]s as k, g, 'back' from generate_series(1000, 1030) g) x
					where satisfies_hash_partition('placed'::regclass, 3, %[4]d, x.k); drop table placed; update %[1]s set v = 'back' where n %% 2 = 0; delete from %[1]s where n %% 5 = 0`, table, h.typ, h.value, n))
			}
		}
	}
	k.level()
	s.hashedRight(tables)
	k.following() // what follows the switch may not be done before
	if _, err := k.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-k.done; err != nil {
		t.Fatal(err)
	}
}

// A key is hashed alike for both layouts: rows stand on two sources as their hash says, or by another column.
func TestCase10KeysThatOnlyServersHashFromTwoSources(t *testing.T) {
	t.Parallel()
	schema := `create type pair as (a int, b text); create table same (k int[] primary key, n int, v text); create table other (k jsonb, tenant xid8, v text, primary key (k, tenant)); create table plain (k pair, tenant bigint, v text, primary key (k, tenant))`
	s := newSmallMove(t, 3, "k", schema)
	s.addSource(schema)
	s.config.Source.Spec.Tables = append(s.config.Source.Spec.Tables, layout.ShardedTable{Database: "app", Name: "other", Columns: []string{"tenant"}}, layout.ShardedTable{Database: "app", Name: "plain", Columns: []string{"tenant"}})
	s.config.Exclude = []string{"of_*"}
	write := func(first, last int) {
		for n, db := range s.sources {
			db.Exec(t, fmt.Sprintf(`create table if not exists of_ints (k int[]) partition by hash (k); create table if not exists of_xid8 (k xid8) partition by hash (k); create table if not exists of_bigint (k bigint) partition by hash (k);
				insert into same select array[g, g], g, 'v' from generate_series(%[1]d, %[2]d) g where satisfies_hash_partition('of_ints'::regclass, 2, %[3]d, array[g, g]);
				insert into other select to_jsonb(g %% 50), (g %% 60)::text::xid8, 'v' from generate_series(%[1]d, %[2]d) g where satisfies_hash_partition('of_xid8'::regclass, 2, %[3]d, (g %% 60)::text::xid8) on conflict do nothing;
				insert into plain select row(g, 'x')::pair, t, 'v' from generate_series(%[1]d, %[2]d) g, lateral (select g %% 10::bigint) x (t) where satisfies_hash_partition('of_bigint'::regclass, 2, %[3]d, t)`, first, last, n))
		}
	}
	write(1, 60)
	s.run(func() {
		write(100, 160)
		for _, db := range s.sources {
			db.Exec(t, `update same set v = 'u' where n % 3 = 0; delete from same where n % 7 = 0; update other set v = 'u' where k::int % 3 = 0; update other set k = to_jsonb(k::int + 1000) where k::int % 2 = 0; delete from other where k::int % 7 = 0;
				update plain set k.b = 'moved' where (k).a % 2 = 0; delete from plain where (k).a % 7 = 0`)
		}
		s.sources[1].Exec(t, `truncate plain, other`)
	})
	s.sameRows(pgtest.RowsOptions{}, "same", "other", "plain")
	s.onItsShard("same", "k", "int[]")
	s.onItsShard("other", "k", "jsonb")
	s.onItsShard("plain", "k", "pair")
}

// What no server can hash, or each database in its own way, is refused with the reason and a way out, which is one.
func TestCase10KeysThatNoServerCanHashAreRefused(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "k", `create type mood as enum ('c', 'b', 'a', 'violet', 'red'); create domain feeling as mood; create type states as (a int, m mood[]); create type dots as (a int, p point);
		create table k_enum (id int primary key, k mood); create table k_domain (id int primary key, k feeling); create table k_states (id int primary key, k states); create table k_class (id int primary key, k regclass[]);
		create table k_acl (id int primary key, k aclitem); create table k_money (id int primary key, k money); create table k_json (id int primary key, k json); create table k_points (id int primary key, k point[]);
		create table k_dots (id int primary key, k dots[]); create table k_bits (id int primary key, k bit(3)); create table k_ints (id int primary key, k int[]);
		insert into k_enum select g, (enum_range(null::mood))[g % 5 + 1] from generate_series(1, 30) g; insert into k_domain select id, k from k_enum; insert into k_states select id, row(id % 5, array[k])::states from k_enum`)
	got := s.problems()
	for table, why := range map[string]string{"k_enum": "hash of public.mood is one of OIDs", "k_domain": "hash of public.mood is one of OIDs", "k_states": "hash of public.mood is one of OIDs", "k_class": "hash of regclass is one of OIDs", "k_acl": "hash of aclitem is one of OIDs",
		"k_money": "no server can hash it", "k_json": "no server can hash it", "k_points": "no server can hash it", "k_dots": "no server can hash it", "k_bits": "no server can hash it"} {
		if n := slices.IndexFunc(got, func(p string) bool { return strings.HasPrefix(p, "public."+table+": ") }); n < 0 || !strings.Contains(got[n], why) || !strings.Contains(got[n], "lookup_query") {
			t.Errorf("%s is not refused for its reason: %q", table, got)
		}
	}
	if len(got) != 10 {
		t.Errorf("%d problems: %q", len(got), got)
	}
	if err := s.move().Migrate(t.Context(), move.MigrateOptions{}); err == nil || !strings.Contains(err.Error(), "hash of public.mood is one of OIDs") {
		t.Errorf("a move of them: %v", err)
	}

	s.config.Destination.Spec.Tables = []layout.ShardedTable{{Database: "app_sharded", Columns: []string{"k"}, LookupQuery: "select $1::text", DataType: "text"}}
	s.config.Include = []string{"k_enum", "k_domain", "k_states"}
	tables := []string{"k_enum", "k_domain", "k_states"}
	s.run(s.steps(`insert into k_enum values (100, 'a'), (101, 'b'); update k_enum set k = 'c' where id % 2 = 0; delete from k_enum where id in (3, 4)`,
		`update k_domain set k = 'a' where id % 2 = 0; delete from k_domain where id = 5`, `update k_states set k.m = array['a', 'b']::mood[] where id % 2 = 0; insert into k_states values (100, '(1,"{a}")')`))
	s.sameRows(pgtest.RowsOptions{}, tables...)
	for _, table := range tables {
		s.onItsShard(table, "k::text", "text")
	}
}

// A hash that goes by what databases are set to is refused where they are not alike.
func TestCase10KeysThatDatabasesHashEachInItsWayAreRefused(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "k", `create table k_words (id int primary key, k text[])`)
	if len(s.problems()) != 0 {
		t.Errorf("alike: %q", s.problems())
	}
	latin := encoded(t, pgtest.Shared(t), "LATIN1")
	latin.Exec(t, `create table k_words (id int primary key, k text[])`)
	if got := smallMoveOf(t, latin, s.shards, "k").problems(); len(got) != 1 || !strings.Contains(got[0], "source shard 0 has its text in LATIN1") {
		t.Errorf("another encoding: %q", got)
	}
	if !has(t, "citext") {
		return
	}
	s.sources[0].Exec(t, `create extension citext; create type named as (name citext); create table k_citext (id int primary key, k named[])`)
	if got := s.problems(); len(got) != 0 {
		t.Errorf("alike: %q", got)
	}
	other := *s.shards[1]
	other.Name += "_other"
	locale := "locale 'C'"
	if other.Cluster.Version > 14 {
		locale = "locale_provider icu icu_locale 'tr' locale 'C'"
	}
	s.shards[1].Exec(t, "create database "+other.Name+" template template0 encoding 'UTF8' "+locale)
	t.Cleanup(func() { _ = other.Drop(context.Background()) })
	s.config.Destination.Shards[1] = other.Shard(1)
	if got := s.problems(); len(got) != 1 || !strings.Contains(got[0], "public.k_citext: column k is hashed by the servers, that of public.citext goes by the database's locale, and destination shard 1 has") {
		t.Errorf("another locale: %q", got)
	}
}

// A type change that rewrites nothing may give the sharding key another hash, by which no row stands.
func TestCase13AShardingKeyOfWhichTheHashChangesStops(t *testing.T) {
	t.Parallel()
	if !has(t, "citext") {
		return
	}
	s := newSmallMove(t, 2, "k", `create extension citext; create table words (id int primary key, k citext); insert into words select g, 'Key' || g from generate_series(1, 50) g`)
	s.config.OnDDL = move.DDLExec
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var once sync.Once
	err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		once.Do(s.steps(`alter table words alter k type text`, `insert into words values (100, 'Key100')`))
		return false, nil
	}})
	var stopped *move.DDLError
	if !errors.As(err, &stopped) || !strings.Contains(err.Error(), `column "k" was public.citext and is text (it is the sharding key`) {
		t.Errorf("got %v", err)
	}
}

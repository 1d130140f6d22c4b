package move_test

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/pgtest"
)

// toastTables are one history of rows with columns stored out of line, under each identity.
const toastTables = `
create table of_default (id int primary key, tenant bigint not null, a int, big text, doc jsonb);
create table of_index (like of_default including all); create unique index of_index_i on of_index (tenant, id); alter table of_index replica identity using index of_index_i;
create table of_full (like of_default including all); alter table of_full replica identity full;
create table of_key (id int, tenant bigint, a int, big text, doc jsonb, primary key (tenant, id));`

func TestCase01UnchangedToastUnderEveryIdentity(t *testing.T) {
	t.Parallel()
	tables := []string{"of_default", "of_index", "of_full", "of_key"}
	const big = `(select string_agg(md5(g::text || s), '') from generate_series(1, 650) s)`
	fill := stepsOf(tables, `alter table %T alter big set storage external`,
		`insert into %T select g, g % 5, 0, `+big+`, jsonb_build_object('k', `+big+`, 'n', g) from generate_series(1, 30) g`)
	s := newSmallMove(t, 3, "tenant", toastTables+strings.Join(fill, ";"))
	s.run(s.steps(stepsOf(tables,
		`insert into %T select g, g % 5, 0, `+big+`, jsonb_build_object('k', `+big+`, 'n', g) from generate_series(101, 120) g; update %T set a = 1 where id > 100; update %T set doc = '{}' where id = 110`,
		`update %T set a = a + 1`, `update %T set big = big || 'x' where id % 3 = 0`, `update %T set doc = jsonb_set(doc, '{n}', '0') where id % 4 = 0`,
		`update %T set tenant = tenant + 1 where id % 2 = 0`, `update %T set tenant = tenant + 1, a = -1 where id % 5 = 0`,
		`begin; update %T set tenant = tenant + 2 where id < 9; update %T set a = 7 where id < 9; update %T set tenant = tenant - 1 where id < 9; commit`,
		`update %T set id = id + 1000 where id in (3, 4, 103)`, `update %T set id = id + 1000, tenant = tenant + 3 where id in (5, 6, 105)`,
		`update %T set big = null where id = 7; delete from %T where id % 10 = 9`)...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
	}
}

func TestCase03TextThatLooksLikeCopyAndRowsBeyond64kB(t *testing.T) {
	t.Parallel()
	const odd = `values (%[1]d, '\N', '\.', E'\\\\N'), (%[1]d + 1, 'NULL', 'null', ''), (%[1]d + 2, null, '', ' '), (%[1]d + 3, E'a\tb', E'\n', E'\r\n\\.\n'), (%[1]d + 4, E'\\', E'\\\\', E'\b\f\v'),
		(%[1]d + 5, '"', '{}', '(,)'), (%[1]d + 6, repeat('y', 65535), repeat(E'\n', 65536), repeat(E'\\', 70000)), (%[1]d + 7, repeat('é', 3000000), repeat(md5('a'), 9000), null)`
	for _, format := range []string{"auto", "text"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "id", `create table odd (id int primary key, a text, b text, c text); create table keyless (id int not null, a text, b text, c text); alter table keyless replica identity full;`+
				fmt.Sprintf(`insert into odd `+odd+`; insert into keyless `+odd, 0))
			s.config.CopyFormat = copier.Format(format)
			s.run(s.steps(stepsOf([]string{"odd", "keyless"},
				fmt.Sprintf(`insert into %%T `+odd, 100), `update %T set a = b, b = a, c = coalesce(c, 'n') where id % 2 = 0`, `update %T set a = '\N', b = null, c = 'NULL' where id in (3, 103)`,
				`delete from %T where id in (5, 6, 105)`)...))
			for _, table := range []string{"odd", "keyless"} {
				s.same(table, "id")
				s.onItsShard(table, "id", "int")
			}
		})
	}
}

// Of 100 MB under `make memory`.
func TestCase03AVeryLargeRow(t *testing.T) {
	t.Parallel()
	sixteens := 1_000_000
	if largeToo() {
		sixteens = 6_553_600
	}
	s := newSmallMove(t, 2, "id", fmt.Sprintf(`create table huge (id int primary key, n int, big bytea); alter table huge alter big set storage external;
		insert into huge select g, 0, decode(repeat(md5(g::text), 2000), 'hex') from generate_series(1, 20) g;
		insert into huge values (21, 0, decode(repeat(md5('a'), %d), 'hex'))`, sixteens))
	s.run(s.steps(fmt.Sprintf(`insert into huge values (22, 0, decode(repeat(md5('b'), %d), 'hex'))`, sixteens), `update huge set n = 1`, `update huge set id = 23 where id = 22`))
	s.sameRows(pgtest.RowsOptions{}, "huge")
	s.onItsShard("huge", "id", "int")
}

// Case 4 where the shards are made by the move: a column dropped, and every kind that is computed.
func TestCase04ColumnsDroppedGeneratedAndIdentity(t *testing.T) {
	t.Parallel()
	const rows = `insert into %[1]s (id, tenant, a, b) select g, g %% 7, g, 'b' || g from generate_series(%[2]d, %[2]d + 50) g;`
	schema, virtual := "", ""
	if oldestServer(t) >= 18 { // a table with one cannot have REPLICA IDENTITY FULL and be published
		virtual = ", virtual bigint generated always as (tenant * 3) virtual"
	}
	var list []string
	tables := []string{"keyed", "of_full", "keyless"}
	for _, table := range tables {
		key := "primary key"
		if table == "keyless" {
			key = "not null"
		}
		if table != "keyed" {
			virtual = ""
		}
		schema += fmt.Sprintf(`create table %s (gone1 text, id int %s, a int, gone2 int default 4, tenant bigint, double int generated always as (a * 2) stored, b text, gone3 int,
			always bigint generated always as identity (start with 100 increment by 7), by_default int generated by default as identity, s serial, long text generated always as (repeat(b, 3000)) stored%s);`, table, key, virtual)
		if table != "keyed" {
			schema += fmt.Sprintf("alter table %s replica identity full;", table)
		}
		schema += fmt.Sprintf(rows, table, 1) + fmt.Sprintf("alter table %s drop gone1, drop gone2;", table) + fmt.Sprintf(rows, table, 100) + fmt.Sprintf("alter table %s drop gone3;", table)
		list = append(list, fmt.Sprintf(rows, table, 200))
	}
	s := newSmallMove(t, 3, "tenant", schema)
	s.run(s.steps(append(list, stepsOf(tables, `update %T set a = a + 1 where id % 2 = 0`, `update %T set b = 'new' || b where id % 3 = 0`, `update %T set tenant = tenant + 1 where id % 5 = 0`,
		`insert into %T (id, tenant, a, always, by_default) overriding system value values (900, 1, 9, -5, -6), (901, 2, null, 12345678901, 5)`,
		`update %T set always = default, a = 1 where id in (7, 8)`, `update %T set by_default = id + 1000, tenant = 3 where id = 9`, `delete from %T where id % 11 = 0`)...)...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
		for n, db := range s.shards {
			if want, got := s.sources[0].Query(t, catalogOf, table), db.Query(t, catalogOf, table); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("shard %d, %s: %v, want %v", n, table, got, want)
			}
		}
	}
}

// Since 18 the application's own UPDATE of a table whose replica identity has a generated column fails, unless the
// publication has that column too.
func TestCase04GeneratedColumnsInTheReplicaIdentity(t *testing.T) {
	t.Parallel()
	tables := []string{"of_full", "in_key", "in_index"}
	s := newSmallMove(t, 2, "tenant", `create table of_full (id int primary key, tenant bigint, d int generated always as (id * 2) stored, v text); alter table of_full replica identity full;
		create table in_key (id int, tenant bigint, d int generated always as (id * 2) stored, v text, primary key (d, id));
		create table in_index (id int not null, tenant bigint not null, d int generated always as (id * 2) stored not null, v text, unique (tenant, d, id)); alter table in_index replica identity using index in_index_tenant_d_id_key;`+
		strings.Join(stepsOf(tables, `insert into %T (id, tenant, v) select g, g % 5, 'v' from generate_series(1, 30) g`), ";"))
	s.run(s.steps(stepsOf(tables, `update %T set v = 'u' where id % 2 = 0`, `update %T set tenant = tenant + 1 where id % 3 = 0`, `update %T set id = id + 100 where id < 6`, `delete from %T where id in (9, 10)`, `insert into %T (id, tenant) values (200, 3)`)...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
	}
}

// Case 4 where a hand has made the shards: other column order, dropped columns, and columns only they have.
func TestCase04ColumnsReorderedAndAddedOnTheDestination(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table wide (id int primary key, tenant bigint, gone int, a int, b text, big text); alter table wide drop gone; alter table wide alter big set storage external;
		create table keyless (tenant bigint, a int, id int not null, b text, big text); alter table keyless replica identity full; alter table keyless alter big set storage external;
		insert into wide (id, tenant, a, b, big) select g, g % 7, g, 'b', repeat('z' || g, 2000) from generate_series(1, 40) g;
		insert into keyless (id, tenant, a, b, big) select g, g % 7, g, 'b', repeat('z' || g, 2000) from generate_series(1, 40) g`)
	const there = ` (extra int, gone text, big text, b text, with_default text default 'filled', a int, stamp timestamptz default now() not null, gone2 int,
		triple int generated always as (a * 3) stored, n bigint generated always as identity, tenant bigint, id int not null %s);
		alter table %s drop gone, drop gone2;`
	s := smallMoveOf(t, source, emptyShards(t, 3, "create table wide"+fmt.Sprintf(there, "primary key", "wide")+
		"create table keyless"+fmt.Sprintf(there, "", "keyless")+"alter table keyless replica identity full"), "tenant")
	s.config.CreateSchema = false
	tables := []string{"wide", "keyless"}
	s.run(s.steps(stepsOf(tables, `insert into %T (id, tenant, a, b, big) select g, g % 7, g, 'c', repeat('y' || g, 2000) from generate_series(100, 120) g`,
		`update %T set a = a + 1 where id % 2 = 0`, `update %T set tenant = tenant + 1 where id % 3 = 0`, `update %T set b = null, tenant = tenant + 1 where id = 4`, `delete from %T where id % 7 = 1`)...))
	for _, table := range tables {
		s.sameRows(pgtest.RowsOptions{Columns: []string{"id", "tenant", "a", "b", "big"}}, table)
		s.onItsShard(table, "tenant", "bigint")
		for n, db := range s.shards {
			if bad := db.Query(t, "select count(*) from "+table+" where extra is not null or with_default is distinct from 'filled' or triple is distinct from a * 3 or stamp is null or n is null"); bad[0][0] != "0" {
				t.Errorf("shard %d, %s: %s rows without the destination's own values", n, table, bad[0][0])
			}
		}
	}
}

func TestCase04APlanNamesColumnsThatCannotBeFilled(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table wide (id int primary key, a int, b int generated always as (a + 1) stored, c varchar(10), d int)`)
	s := smallMoveOf(t, source, emptyShards(t, 1, `create table wide (id bigint primary key, a int not null, b int, more int not null, c varchar(10))`), "id")
	s.config.CreateSchema = false
	got := s.problems()
	for _, want := range []string{"column id is bigint there and integer here", "column a is NOT NULL there", "column b is generated on one side only", "column d does not exist there",
		"column more exists only there, is NOT NULL and has no default"} {
		if !containing(got, want) {
			t.Errorf("a plan does not say %q: %q", want, got)
		}
	}
}

func TestCase04A1600ColumnTableAndOneWithoutColumns(t *testing.T) {
	t.Parallel()
	var columns, some strings.Builder
	for n := 1; n < 1600; n++ {
		fmt.Fprintf(&columns, ", c%d int", n)
		if n%2 == 0 {
			fmt.Fprintf(&some, ", c%d = %d", n, n)
		}
	}
	schema := `create table nothing (); alter table nothing replica identity full; insert into nothing default values; insert into nothing default values;`
	tables := []string{"widest", "widest_full", "widest_keyless"}
	for _, table := range tables {
		key := "primary key"
		if table == "widest_keyless" {
			key = "not null"
		}
		schema += fmt.Sprintf(`create table %s (id int %s%s); insert into %s (id, c1, c1599) select g, g, -g from generate_series(1, 20) g; update %s set id = id%s where id %% 2 = 0;`, table, key, columns.String(), table, table, some.String())
		if table != "widest" {
			schema += "alter table " + table + " replica identity full;"
		}
	}
	s := newSmallMove(t, 2, "id", schema)
	s.omni("nothing")
	s.run(s.steps(append(stepsOf(tables, `insert into %T select g, g, 3 from generate_series(100, 110) g`, `update %T set c801 = id`+some.String()+` where id % 3 = 0`, `update %T set c5 = 1, id = id + 1000 where id in (2, 4, 101)`,
		`delete from %T where id in (1, 6, 102)`), `insert into nothing default values; insert into nothing default values`, `delete from nothing where ctid in (select ctid from nothing limit 1)`)...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "id", "int")
	}
	s.sameRows(pgtest.RowsOptions{Omni: true, Columns: []string{}}, "nothing")
}

// oddNames are names as a table, a schema, a column or a type may have them.
var oddNames = []string{"MiXed", "a space", "a.dot", `quo"te`, `it's`, "new\nline", "tab\tand \\ back", "Ünï ☃ 日本", "select", "user", "table", "%d $1 :x ;--", strings.Repeat("n", 63), strings.Repeat("é", 31) + "x"}

func TestCase05OddNamesInTwoSchemas(t *testing.T) {
	t.Parallel()
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	schema := `create schema "S ""1"".x"; create schema "user";`
	var list, tables []string
	for i, name := range oddNames {
		for _, in := range []string{"public", `"S ""1"".x"`} {
			table, column, other := in+"."+quote(name), quote(oddNames[(i+1)%len(oddNames)]), quote(oddNames[(i+2)%len(oddNames)])
			typ := `"user".` + quote("type "+name[:min(len(name), 10)]+fmt.Sprint(i))
			if in == "public" {
				schema += fmt.Sprintf("create type %s as enum ('%s', 'b');", typ, strings.ReplaceAll(name, "'", "''"))
			}
			schema += fmt.Sprintf("create table %s (%s int primary key, %s text unique, tenant bigint generated by default as identity, e %s, l text[] default array[%s]);", table, column, other, typ, "'"+strings.ReplaceAll(name, "'", "''")+"'")
			if i%3 == 0 {
				schema += fmt.Sprintf("alter table %s replica identity full;", table)
			}
			schema += fmt.Sprintf("insert into %s (%s, %s, tenant, e) select g, 'x' || g, g %% 7, 'b' from generate_series(1, 15) g;", table, column, other)
			list = append(list, fmt.Sprintf("insert into %s (%s, %s, tenant, e) select g, 'y' || g, g %% 7, 'b' from generate_series(100, 105) g", table, column, other),
				fmt.Sprintf("update %s set %s = 'z' || %s, tenant = tenant + 1, e = '%s' where %s %% 3 = 0; delete from %s where %s = 5", table, other, column, strings.ReplaceAll(name, "'", "''"), column, table, column))
			tables = append(tables, table)
		}
	}
	s := newSmallMove(t, 2, "tenant", schema)
	s.run(s.steps(list...))
	s.sameRows(pgtest.RowsOptions{}, tables...)
	for _, table := range tables {
		s.onItsShard(table, "tenant", "bigint")
	}
}

// One table name in two schemas, each with a rule of its own.
func TestCase05OneTableNameInTwoSchemas(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create schema other; create table same (id int primary key, tenant bigint, v text); create table other.same (tenant text, id int, w int, primary key (id));
		insert into same select g, g % 7, 'v' from generate_series(1, 30) g; insert into other.same select 't' || g % 5, g, g from generate_series(1, 30) g`)
	s.config.Destination.Spec.Tables = []layout.ShardedTable{{Database: "app_sharded", Schema: "public", Name: "same", Columns: []string{"tenant"}},
		{Database: "app_sharded", Schema: "other", Name: "same", Columns: []string{"id"}}}
	s.run(s.steps(`insert into same values (100, 4, 'n'); insert into other.same values ('n', 100, 4)`, `update same set tenant = tenant + 1; update other.same set tenant = 'x', w = 0 where id % 2 = 0; update other.same set id = id + 100 where id < 5`,
		`delete from same where id = 7; delete from other.same where id = 8`, `begin; truncate other.same; insert into other.same select 'a', g, g from generate_series(1, 9) g; commit`))
	s.sameRows(pgtest.RowsOptions{}, "public.same", "other.same")
	s.onItsShard("public.same", "tenant", "bigint")
	s.onItsShard("other.same", "id", "int")
}

package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// Every kind of type, with its awkward values. Each value is written on both sides; then each column is changed to
// another value of its list and must be found.
var typed = []struct {
	typ    string
	values []string // the first two look equal to some comparison and are not
}{
	{"bool", []string{"true", "false"}},
	{"smallint", []string{"-1", "1"}},
	{"int", []string{"2147483647", "-2147483648"}},
	{"bigint", []string{"1", "4294967296", "-1"}},
	{"oid", []string{"1", "2"}},
	{"numeric", []string{"1.0", "1.00", "'NaN'", "'Infinity'", "repeat('9', 1000)::numeric"}},
	{"numeric(10,2)", []string{"1.01", "1.02"}},
	{"real", []string{"'-0'", "0", "'NaN'", "1.0000001"}},
	{"float8", []string{"'-0'", "0", "0.1", "0.1::float8 + 2e-17", "'NaN'"}},
	{"money", []string{"'1.00'", "'2.00'"}},
	{"text", []string{"''", "' '", `'\N'`, "'NULL'", "E'a\\tb\\nc\\\\'", "repeat(md5('x'), 1000)"}},
	{"varchar(9)", []string{"'a'", "'a '"}},
	{"char(5)", []string{"'a'", "'b'"}},
	{`"char"`, []string{"'a'", "'b'"}},
	{"name", []string{"'a'", "'b'"}},
	{`text collate "C"`, []string{"'a'", "'A'"}},
	{"text collate nocase", []string{"'a'", "'A'"}},
	{"citext", []string{"'a'", "'A'"}},
	{"bytea", []string{`'\x00ff'`, `'\x00fe'`, "''"}},
	{"date", []string{"'infinity'", "'-infinity'", "'0044-03-15 BC'", "'12026-01-01'"}},
	{"time", []string{"'00:00'", "'24:00'"}},
	{"timetz", []string{"'12:00+00'", "'13:00+01'"}},
	{"timestamp", []string{"'2000-01-01'::timestamp + interval '1 us'", "'2000-01-01'::timestamp + interval '1 us' * 4294967296", "'infinity'"}},
	{"timestamptz", []string{"'0044-03-15 BC'", "'10000-01-01'", "'-infinity'"}},
	{"interval", []string{"'1 month'", "'30 days'", "'720 hours'"}},
	{"uuid", []string{"'00000000-0000-0000-0000-000000000000'", "'00000000-0000-0000-0000-000000000001'"}},
	{"json", []string{`'{"a":1}'`, `'{"a": 1}'`}},
	{"jsonb", []string{`'{"a":1.0}'`, `'{"a":1.00}'`, `'"\u00e9\"\\"'`}},
	{"xml", []string{"'<a/>'", "'<a></a>'"}},
	{"inet", []string{"'10.0.0.1'", "'10.0.0.1/8'"}},
	{"cidr", []string{"'10.0.0.0/8'", "'10.0.0.0/9'"}},
	{"macaddr", []string{"'08:00:2b:01:02:03'", "'08:00:2b:01:02:04'"}},
	{"macaddr8", []string{"'08:00:2b:01:02:03:04:05'", "'08:00:2b:01:02:03:04:06'"}},
	{"bit(3)", []string{"B'101'", "B'100'"}},
	{"varbit", []string{"B'1'", "B'01'"}},
	{"point", []string{"'(0,0)'", "'(-0,0)'"}},
	{"box", []string{"'(1,1),(0,0)'", "'(2,1),(0,0)'"}},
	{"tsvector", []string{"'a:1'", "'a:2'"}},
	{"tsquery", []string{"'a & b'", "'a | b'"}},
	{"pg_lsn", []string{"'0/1'", "'1/0'"}},
	{"txid_snapshot", []string{"'10:20:'", "'10:20:15'"}},
	{"int4range", []string{"'[1,2]'", "'empty'"}},
	{"numrange", []string{"'[1.0,2]'", "'[1.00,2]'"}},
	{"nummultirange", []string{"'{[1.0,2]}'", "'{[1.00,2]}'"}},
	{"mood", []string{"'sad'", "'happy'"}},
	{"positive", []string{"1", "2"}},
	{"pair", []string{"row(1.0, null)", "row(1.00, null)", "row(null, null)", "null"}},
	{"int[]", []string{"'{1,2}'", "'{{1},{2}}'", "'[0:1]={1,2}'", "'{1,NULL}'", "'{}'"}},
	{"numeric[]", []string{"'{1.0}'", "'{1.00}'"}},
	{"text[]", []string{"'{NULL}'", `'{"NULL"}'`, `'{""}'`}},
	{"mood[]", []string{"'{sad}'", "'{happy}'"}},
	{"positive[]", []string{"'{1}'", "'{2}'"}},
	{"pair[]", []string{"array[row(1.0, 'a')::pair]", "array[row(1.00, 'a')::pair]"}},
	{"hstore", []string{"'a=>1'", "'a=>NULL'"}},
	{"ltree", []string{"'a.b'", "'a.c'"}},
	{"regclass", []string{"'pg_class'", "'pg_type'"}},
}

// objects makes the types a second time under other OIDs when pad is set.
func objects(pad string) string {
	return pad + `create extension citext; create extension hstore; create extension ltree;
		create collation nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create type mood as enum ('sad', 'happy');
		create domain positive as int check (value > 0);
		create type pair as (n numeric, t text);`
}

func TestEveryTypeIsComparedToTheLastBit(t *testing.T) {
	t.Parallel()
	var columns []string
	equal, source, dest := "", "", ""
	differ := map[string]string{} // key of a row that differs: its column
	for i, one := range typed {
		columns = append(columns, fmt.Sprintf("c%d %s", i, one.typ))
		for j, value := range append(one.values, "null") {
			insert := "insert into every (id, c%d) values (%d, %s);"
			equal += fmt.Sprintf(insert, i, i*100+j, value)
			if value != one.values[0] {
				source += fmt.Sprintf(insert, i, i*100+50+j, one.values[0])
				dest += fmt.Sprintf(insert, i, i*100+50+j, value)
				differ[fmt.Sprintf("id=%d", i*100+50+j)] = fmt.Sprintf("c%d", i)
			}
		}
	}
	table := "create table every (id int primary key, " + strings.Join(columns, ", ") + ");"
	b := &bench{sources: []*pgtest.DB{pgtest.Shared(t).Database(t)}, shards: []*pgtest.DB{pgtest.Shared(t).Database(t)}}
	b.sources[0].Exec(t, objects("")+table+equal)
	b.shards[0].Exec(t, objects("create type filler as enum ('x', 'y', 'z');")+table+equal)
	for _, setting := range []string{"lc_monetary = 'C.UTF-8'", "datestyle = 'SQL, DMY'", "extra_float_digits = -3", "intervalstyle = 'iso_8601'"} {
		b.shards[0].Exec(t, "alter database "+b.shards[0].Name+" set "+setting)
	}

	r := b.request(t)
	r.Limit = 1_000
	if report := run(t, r); !report.Clean() {
		t.Fatalf("%+v", report.Tables[0])
	}
	b.sources[0].Exec(t, source)
	b.shards[0].Exec(t, dest)
	got := run(t, r).Tables[0]
	if int(got.Different) != len(differ) || got.Differences() != got.Different {
		t.Errorf("%d rows differ, found %+v", len(differ), got)
	}
	for _, f := range got.Keys {
		if len(f.Columns) != 1 || f.Columns[0] != differ[f.Key] {
			t.Errorf("%s: columns %q, want %s", f.Key, f.Columns, differ[f.Key])
		}
		delete(differ, f.Key)
	}
	for key, column := range differ {
		t.Errorf("not found: %s in %s", key, column)
	}
}

func TestAWidenedColumnIsEqualByItsText(t *testing.T) {
	t.Parallel()
	b := &bench{sources: []*pgtest.DB{pgtest.Shared(t).Database(t)}, shards: []*pgtest.DB{pgtest.Shared(t).Database(t)}}
	const insert = "insert into w select g, g, 'n' || g, now()::date from generate_series(1, 100) g"
	b.sources[0].Exec(t, "create table w (id int primary key, a int, b varchar(20), c date);"+insert)
	b.shards[0].Exec(t, "create table w (a bigint, id bigint primary key, c text, b text, more int);"+
		"insert into w select g, g, now()::date, 'n' || g from generate_series(1, 100) g")
	r := b.request(t)
	if report := run(t, r); !report.Clean() {
		t.Errorf("%+v", report.Tables[0])
	}
	b.shards[0].Exec(t, "update w set a = a + 4294967296 where id = 5")
	if one := run(t, r).Tables[0]; one.Different != 1 || one.Keys[0].Columns[0] != "a" {
		t.Errorf("%+v", one)
	}
}

func TestAnotherServerEncodingIsNoDifference(t *testing.T) {
	t.Parallel()
	b := &bench{sources: []*pgtest.DB{latin1(t)}, shards: []*pgtest.DB{pgtest.Shared(t).Database(t)}}
	// é takes one byte there and two in UTF-8, so that the parts of what is ordered by length stand in another order.
	const ddl = `create extension hstore; create domain jd as jsonb;
		create table w (id text primary key, b varchar, c text[], j jsonb, js jsonb[], d jd, h hstore, hs hstore[], v tsvector, vs tsvector[], lexeme tsvector);
		insert into w values (chr(233), chr(252), array[chr(223)], ('{"zz": 1, "' || chr(233) || '": {"yy": [1.0, null, "' || chr(233) || '"], "' || chr(233) || '": 2}}')::jsonb,
			array[('{"zz": 1, "' || chr(233) || '": []}')::jsonb, null, '{}'], ('{"zz": 1, "' || chr(233) || '": null}')::jsonb, hstore(array['zz', chr(233)], array['1', null]),
			array[hstore(array['zz', chr(233)], array['1', null]), null], (chr(233) || ':2A zz:1,3')::tsvector, array[(chr(233) || ' zz')::tsvector, null, ''], chr(233)::tsvector),
			('a', 'b', null, 'null', '{}', null, '', null, '', null, null), ('b', null, null, null, null, '[]', null, null, null, null, null)`
	b.sources[0].Exec(t, ddl)
	b.shards[0].Exec(t, ddl)
	r := b.request(t)
	if report := run(t, r); !report.Clean() || report.Tables[0].Rows != 3 {
		t.Errorf("%+v", report.Tables[0])
	}
	for _, change := range []string{`j = jsonb_set(j, '{zz}', '2')`, `j = ('{"zz": {"yy": [1.0, null, "' || chr(233) || '"], "' || chr(233) || '": 2}, "' || chr(233) || '": 1}')::jsonb`,
		`js[1] = js[3]`, `js[2] = 'null'`, `d = '{}'`, `h = h || 'zz=>NULL'`, `h = null`, `hs[2] = ''`, `v = setweight(v, 'B')`, `v = ''`, `v = null`, `vs[2] = ''`, `vs = vs[1:2]`, `lexeme = 'x'`} {
		b.shards[0].Exec(t, "create table was as select * from w; update w set "+change+" where id = chr(233)")
		if one := run(t, r).Tables[0]; one.Different != 1 || one.Differences() != 1 {
			t.Errorf("%s: %+v", change, one)
		}
		b.shards[0].Exec(t, "delete from w; insert into w select * from was; drop table was")
	}
	b.shards[0].Exec(t, "update w set b = 'u' where id = chr(233)")
	if one := run(t, r).Tables[0]; one.Different != 1 || one.Keys[0].Key != "id=é" {
		t.Errorf("%+v", one)
	}
}

// latin1 is a database whose server encoding is not UTF8.
func latin1(t *testing.T) *pgtest.DB {
	t.Helper()
	maker := pgtest.Shared(t).Database(t)
	db := *maker
	db.Name = maker.Name + "_latin1"
	maker.Exec(t, "create database "+db.Name+" encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
	t.Cleanup(func() { _ = db.Drop(context.Background()) })
	return &db
}

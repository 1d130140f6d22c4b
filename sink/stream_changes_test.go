package sink_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// change is a table (called %[1]s in every statement) and what is done to it on the source, a transaction a step.
type change struct {
	name  string
	table string // its definition: "(id int primary key, …)"
	also  string // more DDL
	key   string // sharding columns; empty: omnisharded
	steps []string
}

// wide is a value that is stored out of line and not compressed, so that the log leaves it out where it did not change.
const wide = `(select string_agg(md5(g::text || '%[1]s'), '') from generate_series(1, 200) g)`

const (
	byKey   = `(id int primary key, tenant bigint, a int, big text)`
	uncomp  = `alter table %[1]s alter big set storage external;`
	full    = `alter table %[1]s replica identity full;`
	byIndex = `create unique index %[1]s_i on %[1]s (tenant, id); alter table %[1]s alter tenant set not null; alter table %[1]s replica identity using index %[1]s_i;`
)

// toast is one history of rows with an out-of-line column, for each identity.
var toast = []string{
	`insert into %[1]s select g, g, 0, ` + wide + ` from generate_series(1, 12) g`,
	`update %[1]s set a = a + 1`,
	`update %[1]s set big = big || 'x' where id %% 3 = 0`,
	`update %[1]s set tenant = tenant + 1`,
	`update %[1]s set tenant = tenant + 1, a = 7 where id %% 2 = 0`,
	`insert into %[1]s values (20, 1, 1, ` + wide + `); update %[1]s set a = 2 where id = 20; update %[1]s set tenant = 5 where id = 20`,
	`update %[1]s set id = id + 100 where id < 5`,
	`update %[1]s set id = id + 100, tenant = tenant + 3 where id < 9`,
	`begin; update %[1]s set tenant = tenant + 1; update %[1]s set tenant = tenant - 1; commit`,
	`begin; update %[1]s set id = -1 where id = 10; update %[1]s set id = 10 where id = 11; update %[1]s set id = 11 where id = -1; commit`,
	`update %[1]s set big = null where id = 12`,
	`delete from %[1]s where id %% 2 = 0`,
	`begin; delete from %[1]s where id = 9; insert into %[1]s values (9, 77, 3, ` + wide + `); commit`,
	`update %[1]s set a = 99`,
}

var changes = []change{
	{"a wide column unchanged, identity DEFAULT without the key", byKey, uncomp, "tenant", toast},
	{"a wide column unchanged, identity FULL", byKey, uncomp + full, "tenant", toast},
	{"a wide column unchanged, identity INDEX with the key", byKey, uncomp + byIndex, "tenant", toast},
	{"a wide column unchanged, key in the primary key", `(id int, tenant bigint, a int, big text, primary key (tenant, id))`, uncomp, "tenant", toast},
	{"a wide column unchanged, placed by its primary key", byKey, uncomp, "id", toast},
	{"a wide column unchanged, everywhere", byKey, uncomp, "", toast},
	{"a wide column unchanged, everywhere, FULL", byKey, uncomp + full, "", toast},
	{"rows equal in every column", `(id int, tenant bigint, n numeric, j json, f float8, big text)`, full + uncomp, "tenant", []string{
		`insert into %[1]s select 1, 1, 1.0, '{"a": 1}', 0, ` + wide + ` from generate_series(1, 4)`,
		`insert into %[1]s values (1, 1, 1.00, '{"a":1}', '-0', null), (1, 1, 1.0, null, 0, null), (null, null, null, null, null, null), (null, null, null, null, null, null)`,
		`delete from %[1]s where ctid = (select min(ctid) from %[1]s)`,
		`update %[1]s set n = 2 where ctid = (select min(ctid) from %[1]s)`,
		`update %[1]s set tenant = 2 where ctid = (select min(ctid) from %[1]s)`,
		`update %[1]s set id = 5 where n::text = '1.00'`,
		`update %[1]s set tenant = null where id = 5; update %[1]s set tenant = 8 where n is null and ctid = (select max(ctid) from %[1]s where n is null)`,
		`delete from %[1]s where n is null`,
		`update %[1]s set f = '-0'; update %[1]s set f = 0 where id = 5; delete from %[1]s where f::text = '-0' and id = 1`,
	}},
	{"all columns are the key", `(a int, b bigint, c text, primary key (a, b, c))`, "", "b", []string{
		`insert into %[1]s select g, g, 'x' from generate_series(1, 9) g`,
		`update %[1]s set a = a where a = 1; update %[1]s set c = 'y' where a = 2; update %[1]s set b = b + 1 where a > 5`,
		`delete from %[1]s where a = 3; insert into %[1]s values (3, 3, 'x')`,
		`update %[1]s set a = a, b = b, c = c`,
	}},
	{"only the key, which is wide and stored out of line", `(k text, tenant bigint, primary key (k, tenant))`, `alter table %[1]s alter k set storage external;`, "tenant", []string{
		`insert into %[1]s select string_agg(md5(g::text || i), ''), i from generate_series(1, 75) g, generate_series(1, 4) i group by i`,
		`update %[1]s set k = k`,
		`update %[1]s set tenant = tenant + 1`,
		`delete from %[1]s where tenant = 3`,
	}},
	{"a wide sharding key stored out of line", `(k text primary key, a int)`, `alter table %[1]s alter k set storage external;`, "k", []string{
		`insert into %[1]s select string_agg(md5(g::text || i), ''), i from generate_series(1, 75) g, generate_series(1, 6) i group by i`,
		`update %[1]s set a = a + 1`,
		`update %[1]s set k = k || 'x' where a < 4`,
		`delete from %[1]s where a = 5`,
	}},
	{"a join table with a composite sharding key", `(a int not null, b int not null, c int, unique (a, b))`, `alter table %[1]s replica identity using index %[1]s_a_b_key;`, "a, b", []string{
		`insert into %[1]s select g, g %% 3, g from generate_series(1, 20) g`,
		`update %[1]s set c = 0 where a > 10; update %[1]s set b = 5 where a < 5`,
		`delete from %[1]s where b = 1`,
	}},
	{"an identity column GENERATED ALWAYS that is the key", `(id bigint generated always as identity primary key, tenant bigint, a int, big text)`, uncomp, "tenant", []string{
		`insert into %[1]s (tenant, a, big) select g, g, ` + wide + ` from generate_series(1, 9) g`,
		`update %[1]s set a = 0; update %[1]s set big = big; update %[1]s set tenant = tenant + 1 where id < 4`,
		`update %[1]s set id = default where id = 5`,
		`update %[1]s set id = default, tenant = 9 where id = 6`,
		`insert into %[1]s (id, tenant) overriding system value values (5, 5); delete from %[1]s where id = 7`,
	}},
	{"an identity column GENERATED ALWAYS with nothing else but a wide column", `(id bigint generated always as identity primary key, big text)`, uncomp, "id", []string{
		`insert into %[1]s (big) select ` + wide + ` from generate_series(1, 5) g`,
		`update %[1]s set big = big`,
		`update %[1]s set id = default where id = 2`,
	}},
	{"an identity column GENERATED ALWAYS beside the key", `(id int primary key, tenant bigint, n int generated always as identity unique, big text)`, uncomp, "tenant", []string{
		`insert into %[1]s (id, tenant, big) select g, g, ` + wide + ` from generate_series(1, 9) g`,
		`update %[1]s set n = default where id in (1, 2)`,
		`update %[1]s set tenant = tenant; update %[1]s set n = default, tenant = 4 where id = 3`,
		`update %[1]s set n = default, id = 50 where id = 4`,
		`delete from %[1]s where id = 9; insert into %[1]s (id, tenant) values (9, 9); update %[1]s set n = default where id = 9`,
	}},
	{"an identity column GENERATED ALWAYS in a table without key", `(tenant bigint, n int generated always as identity, a int)`, full, "tenant", []string{
		`insert into %[1]s (tenant, a) select g, g from generate_series(1, 5) g`,
		`update %[1]s set n = default where a = 2; update %[1]s set a = 9 where a = 3`,
	}},
	{"identity BY DEFAULT and generated columns", `(id bigint generated by default as identity primary key, a int, twice int generated always as (a * 2) stored)`, "", "id", []string{
		`insert into %[1]s (a) values (1), (2), (3)`, `update %[1]s set a = a + 1; update %[1]s set id = id + 10 where a = 3`, `delete from %[1]s where a = 2`,
	}},
	{"NULLs, quotes, newlines and backslashes", `(id int primary key, a text, b text)`, "", "id", []string{
		`insert into %[1]s values (1, null, 'NULL'), (2, '', 'null'), (3, '\N', E'a\nb\tc\r'), (4, '\\', '"'), (5, '{', '}'), (6, ',', '"",\"'), (7, ' ', ' x '), (8, '''', '$1'), (9, 'é☃', E'\x01')`,
		`update %[1]s set a = b, b = a; update %[1]s set a = null where id > 6`,
		`update %[1]s set b = null where id < 4; delete from %[1]s where a is null and id %% 2 = 0`,
	}},
	{"keys of text with every kind of character", `(k text primary key, a int)`, "", "k", []string{
		`insert into %[1]s values ('', 1), (' ', 2), ('NULL', 3), ('\', 4), ('"', 5), ('{a,b}', 6), (E'\n', 7), ('a', 8), ('A', 9), ('é', 10)`,
		`update %[1]s set a = a + 1; update %[1]s set k = k || '"' where a > 5`, `delete from %[1]s where a < 5`,
	}},
	{"bytea, arrays, json and ranges", `(id int primary key, b bytea, i int[], t text[], m int[][], j json, jb jsonb, r int4range, mr nummultirange, tsv tsvector, bi bit(3), vb varbit, u uuid, p point, x xml, box box, boxes box[])`, "", "id", []string{
		`insert into %[1]s values (1, '\x00ff275c', '{1,null,3}', array['a,b','NULL',null,'','{}'], '{{1,2},{3,4}}', '{"a" : "\"x\\"}', '{"b": [1.0, 1.00]}', '[1,5)', '{[1,2],(3,4)}', 'a:1 b''c', '101', '1', '00000000-0000-0000-0000-000000000001', '(1,-0)', '<a>"</a>', '((0,0),(1,1))', array[box '((0,0),(1,1))', null])`,
		`insert into %[1]s (id) values (2), (3); update %[1]s set b = '', i = '{}', t = '{}', m = '[2:3]={1,2}', j = 'null', jb = 'null', r = 'empty', mr = '{}', tsv = '' where id = 2`,
		`update %[1]s x set b = y.b, i = y.i, t = y.t, m = y.m, j = y.j, jb = y.jb, r = y.r, mr = y.mr, tsv = y.tsv, bi = y.bi, vb = y.vb, u = y.u, p = y.p, x = y.x, box = y.box, boxes = y.boxes from %[1]s y where x.id = 3 and y.id = 1`,
		`update %[1]s set id = 4 where id = 1`,
	}},
	{"numbers", `(id int primary key, n numeric, f float8, g float4, m money, n2 numeric(10,2))`, "", "id", []string{
		`insert into %[1]s values (1, 'NaN', 'NaN', 'Infinity', 1, 1), (2, 1.0, '-0', '-0', -2.5, 1.10), (3, 1.00, 0.1, 0.1, 0, 0), (4, repeat('9', 500)::numeric, 1e308, 1e-40, 0, 0), (5, 'Infinity', '-Infinity', 0, 0, null)`,
		`update %[1]s set n = 1.00, f = 0 where id = 2; update %[1]s set n = 1.0, f = 0.30000000000000004 where id = 3; update %[1]s set m = m + '1'`,
	}},
	{"times", `(id int primary key, d date, t timestamp, tz timestamptz, i interval, ti time, tt timetz, i0 interval day to second(2))`, "", "id", []string{
		`insert into %[1]s values (1, 'infinity', '-infinity', 'infinity', '1 mon', '24:00', '12:00+05:30', '1 day 1.239'), (2, '0044-03-15 BC', '99999-01-01', '2020-01-01 12:00:00.000001+02', '-1 day +02:03', '00:00:00.1', '00:00-12', null)`,
		`update %[1]s set d = '2020-02-29', i = '30 days'; update %[1]s set i = '1 mon' where id = 2`,
	}},
	{"enum, domain, composite and bool", `(id %[1]s_dom primary key, e %[1]s_enum, c %[1]s_row, es %[1]s_enum[], cs %[1]s_row[], ds %[1]s_dom[], b bool, ch char(5), q "char", nm name, box %[1]s_box)`, "", "id", []string{
		`insert into %[1]s values (1, 'a b', '(1,"x,""y")', '{"a b",c}', array[row(1, 'x')::%[1]s_row, null], '{1,2}', true, 'ab', 'z', 'n', '((0,0),(1,1))'), (2, 'c', '(,)', '{}', '{}', '{}', false, '', '', '', null), (3, null, null, null, null, null, null, null, null, null, null)`,
		`update %[1]s set e = 'c', b = not b, c = row(2, null)::%[1]s_row, box = null; update %[1]s set id = id + 10 where b; delete from %[1]s where id = 3`,
	}},
	{"a key of each awkward type", `(n numeric, ch char(6), e %[1]s_enum, d date, f float8, b bytea, i interval, r int4range, ar int[], c %[1]s_row, tenant bigint, a int, primary key (n, ch, e, d, f, b, i, r, ar, c))`, "", "tenant", []string{
		`insert into %[1]s values (1.0, 'ab', 'c', 'infinity', '-0', '\x00', '1 mon', '[1,2)', '{1,null}', '(1,x)', 1, 1), (2.50, '', 'a b', '0001-01-01 BC', 'NaN', '', '1 day', 'empty', '{}', '(1,)', 2, 1)`,
		`update %[1]s set a = 2`,
		`update %[1]s set n = 1.00 where n = 1.0`,
		`begin; update %[1]s set i = '30 days' where n = 1; update %[1]s set a = 3 where n = 1; commit`,
		`update %[1]s set tenant = tenant + 1, f = 0 where n = 1`,
		`delete from %[1]s where n = 1; insert into %[1]s values (1.000, 'ab', 'c', 'infinity', '0', '\x00', '1 mon', '[1,2)', '{1,null}', '(1,x)', 1, 1)`,
		`delete from %[1]s where n = 2.5`,
	}},
	{"keys and values of extensions' types", `(k citext, l ltree, a int, h hstore, c cube, ls ltree[], tenant bigint, primary key (k, l))`, full, "tenant", []string{
		`insert into %[1]s values ('Aa', 'a.b', 1, 'x=>"a b", y=>NULL', '(1,2)', '{a.b,c}', 1), ('bB"', '', 2, '', null, null, 2), ('x', 'y', 3, null, null, '{}', 3)`,
		`update %[1]s set a = a + 1`, `update %[1]s set k = 'AA' where a = 2; update %[1]s set h = h || 'z=>1', tenant = tenant + 1`,
		`delete from %[1]s where k = 'BB"'; insert into %[1]s values ('BB"', '', 2)`, `update %[1]s set l = 'q.r' where k = 'X'`,
	}},
	{"equal rows of extensions' types", `(k citext, h hstore, tenant bigint)`, full, "tenant", []string{
		`insert into %[1]s values ('a', 'x=>1', 1), ('A', 'x=>1', 1), ('a', 'x=>1', 1)`, `delete from %[1]s where ctid = (select max(ctid) from %[1]s)`, `update %[1]s set k = 'b' where k::text = 'A'`,
	}},
	{"primary keys changed, swapped and handed on", `(id int primary key, tenant bigint, a int)`, "", "tenant", []string{
		`insert into %[1]s select g, g, g from generate_series(1, 8) g`,
		`begin; update %[1]s set id = -1 where id = 1; update %[1]s set id = 1 where id = 2; update %[1]s set id = 2 where id = -1; commit`,
		`begin; delete from %[1]s where id = 3; update %[1]s set id = 3 where id = 4; insert into %[1]s values (4, 9, 9); commit`,
		`begin; update %[1]s set id = id + 100; update %[1]s set id = id - 99; commit`,
		`begin; delete from %[1]s where id = 5; insert into %[1]s values (5, 1, 1); update %[1]s set tenant = 6 where id = 5; delete from %[1]s where id = 5; insert into %[1]s values (5, 2, 2); commit`,
	}},
	{"unique values handed on", `(id int primary key, u int unique, v text)`, "", "id", []string{
		`insert into %[1]s select g, g from generate_series(1, 20) g`,
		`begin; delete from %[1]s where id = 1; insert into %[1]s values (101, 1); commit`,
		`begin; update %[1]s set u = null where id = 2; update %[1]s set u = 2 where id = 3; commit`,
		`begin; update %[1]s set u = -5 where id = 5; update %[1]s set u = 5 where id = 6; update %[1]s set u = 6 where id = 5; commit`,
		`begin; update %[1]s set u = u + 1000; update %[1]s set u = 2001 - u; commit`,
		`begin; update %[1]s set id = 300, u = 7777 where id = 7; update %[1]s set id = 7, u = 8888 where id = 8; commit`,
	}},
	{"a DEFERRABLE unique column swapped by one statement", `(id int primary key, u int unique deferrable)`, "", "id", []string{
		`insert into %[1]s select g, g from generate_series(1, 20) g`,
		`update %[1]s set u = 21 - u`, `update %[1]s set u = u + 1`,
		`begin; set constraints all deferred; update %[1]s set u = 3 where id = 4; delete from %[1]s where u = 3 and id <> 4; commit`,
	}},
	{"a table whose only key is DEFERRABLE", `(id int primary key deferrable, a int)`, full, "id", []string{
		`insert into %[1]s select g, g from generate_series(1, 9) g`, `update %[1]s set id = id + 1`, `update %[1]s set a = 0 where id = 4; delete from %[1]s where id = 5`,
	}},
	{"the sharding key set to NULL and back", `(id int primary key, tenant bigint, a int)`, full, "tenant", nullable},
	{"the sharding key set to NULL and back, identity without it", `(id int primary key, tenant bigint, a int)`, "", "tenant", nullable},
	{"savepoints rolled back and empty transactions", byKey, "", "tenant", []string{
		`begin; insert into %[1]s values (1, 1); savepoint s; insert into %[1]s values (2, 2); update %[1]s set a = 1; rollback to s; insert into %[1]s values (3, 3); commit`,
		`begin; select txid_current(), null::%[1]s; commit`, `begin; insert into %[1]s values (4, 4); rollback`,
		`begin; savepoint a; insert into %[1]s values (2, 9); savepoint b; delete from %[1]s; rollback to b; release a; update %[1]s set a = 5 where id = 2; commit`,
	}},
	{"a table emptied among inserts", byKey, `create table %[1]s_more (like %[1]s including all);`, "id", []string{
		`insert into %[1]s select g, g from generate_series(1, 9) g; insert into %[1]s_more select g, g from generate_series(1, 9) g`,
		`begin; insert into %[1]s values (20, 1); truncate %[1]s; insert into %[1]s values (20, 2), (21, 1); insert into %[1]s_more values (30, 30); commit`,
		`begin; insert into %[1]s_more values (31, 31); truncate %[1]s, %[1]s_more; insert into %[1]s_more values (1, 1); update %[1]s_more set a = 4; commit`,
		`insert into %[1]s select g, g from generate_series(1, 9) g; truncate %[1]s restart identity cascade; truncate %[1]s`,
	}},
	{"names with everything", `("Id ""x" int primary key, "a.b" text, "select" int, "Ünï" bigint)`, "", "Ünï", []string{
		`insert into %[1]s select g, 'x', g, g from generate_series(1, 5) g`, `update %[1]s set "a.b" = 'y', "Ünï" = 7 where "select" > 2`, `delete from %[1]s where "select" = 3; update %[1]s set "Id ""x" = 9 where "select" = 1`,
	}},
	{"a table without columns", `()`, full, "", []string{`insert into %[1]s default values; insert into %[1]s default values; insert into %[1]s default values`}},
	{"an omnisharded table", byKey, uncomp, "", append(slices.Clone(toast), `truncate %[1]s`, `insert into %[1]s values (1)`)},
	{"an omnisharded table without key", `(a int, b text)`, full, "", []string{
		`insert into %[1]s values (1, 'x'), (1, 'x'), (null, null)`, `delete from %[1]s where ctid = (select min(ctid) from %[1]s)`, `update %[1]s set b = 'y'`,
	}},
}

var nullable = []string{
	`insert into %[1]s select g, g, g from generate_series(1, 9) g; insert into %[1]s values (20, null, 1)`,
	`update %[1]s set tenant = null where id < 4`, `update %[1]s set a = 5 where tenant is null`, `update %[1]s set tenant = 3 where id = 2 or id = 20`,
	`begin; update %[1]s set tenant = null where id > 5; update %[1]s set tenant = id where id > 5; commit`,
	`begin; update %[1]s set tenant = 8 where tenant is null; update %[1]s set tenant = null where tenant = 8; delete from %[1]s where tenant is null and id = 1; commit`,
}

// prepare is the DDL of all changes, the steps by change, and their rules.
func prepare(list []change) (schema string, steps [][]string, r rules) {
	r.sharded = map[string]string{}
	var ddl strings.Builder
	ddl.WriteString("create extension citext; create extension hstore; create extension ltree; create extension cube;\n")
	for i, c := range list {
		name := fmt.Sprintf("t%d", i)
		if strings.Contains(c.table, "_enum") {
			fmt.Fprintf(&ddl, `create type %[1]s_enum as enum ('a b', 'c'); create type %[1]s_row as (x int, y text); create domain %[1]s_dom as int check (value > 0); create domain %[1]s_box as box;`, name)
		}
		fmt.Fprintf(&ddl, "create table %s %s; %s\n", name, strings.ReplaceAll(c.table, "%[1]s", name), strings.ReplaceAll(c.also, "%[1]s", name))
		var mine []string
		for _, s := range c.steps {
			mine = append(mine, fmt.Sprintf(s, name))
		}
		steps = append(steps, mine)
		names := []string{name}
		if strings.Contains(c.also, "%[1]s_more") {
			names = append(names, name+"_more")
		}
		for _, n := range names {
			if c.key == "" {
				r.omni = append(r.omni, n)
			} else {
				r.sharded[n] = c.key
			}
		}
	}
	return ddl.String(), steps, r
}

func TestEachKindOfChangeArrives(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3} {
		t.Run(fmt.Sprintf("one by one on %d shards", n), func(t *testing.T) {
			t.Parallel()
			schema, steps, r := prepare(changes)
			f := follow(t, n, schema, "", r)
			f.run()
			for i, c := range changes {
				t.Run(c.name, func(t *testing.T) {
					for n, step := range steps[i] {
						f.exec(step)
						f.catchUp()
						if n%4 == 3 || n == len(steps[i])-1 {
							f.compareIn(t, i)
						}
					}
				})
			}
		})
		for _, bytes := range []int{0, 2000} {
			t.Run(fmt.Sprintf("gathered into batches of %d bytes on %d shards", bytes, n), func(t *testing.T) {
				t.Parallel()
				schema, steps, r := prepare(changes)
				f := follow(t, n, schema, "", r)
				f.stream.BatchBytes = bytes
				for i := range steps {
					for _, step := range steps[i] {
						f.exec(step)
					}
				}
				f.run()
				f.catchUp()
				for i, c := range changes {
					t.Run(c.name, func(t *testing.T) { f.compareIn(t, i) })
				}
			})
		}
	}
}

// compareIn compares the tables of one change.
func (f *following) compareIn(t *testing.T, i int) {
	t.Helper()
	name := fmt.Sprintf("t%d", i)
	f.compareUnder(t, slices.DeleteFunc(slices.Collect(maps.Keys(f.tables)), func(n string) bool { return n != name && n != name+"_more" })...)
}

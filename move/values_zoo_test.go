package move_test

import (
	"fmt"
	"slices"
	"strings"
)

// zooColumn is a type with the values at its edges, as SQL expressions; those that only a newer server knows are in
// since, by its major version.
type zooColumn struct {
	typ    string
	values []string
	since  map[int][]string
}

// plainZoo is every built-in type whose binary form COPY may carry.
var plainZoo = []zooColumn{
	{typ: "bool", values: []string{"true", "false"}},
	{typ: "bytea", values: []string{`(select string_agg(set_byte('\x00', 0, g), '' order by g) from generate_series(0, 255) g)`, "''", `'\x00'`, `'\x5c6e0a09'`}},
	{typ: `"char"`, values: []string{"'a'", "''", `'\'`, "' '", "'\"'", "chr(127)"}},
	{typ: "name", values: []string{"repeat('é', 31) || 'x'", "''", `'a\b "c"'`}},
	{typ: "int2", values: []string{"-32768", "32767", "0"}},
	{typ: "int4", values: []string{"-2147483648", "2147483647"}},
	{typ: "int8", values: []string{"-9223372036854775808", "9223372036854775807"}},
	{typ: "float4", values: []string{"'-0'", "0", "'NaN'", "'Infinity'", "'-Infinity'", "1.17549435e-38", "3.4028235e38", "1.0000001", "1e-45", "16777217"}},
	{typ: "float8", values: []string{"'-0'", "0", "'NaN'", "'Infinity'", "'-Infinity'", "0.1", "0.1::float8 + 2e-17", "1.7976931348623157e308", "5e-324", "1.2345678901234567"}},
	{typ: "numeric", values: []string{"'NaN'", "'Infinity'", "'-Infinity'", "1.0", "1.00", "-0.0000", "(repeat('9', 1000) || '.' || repeat('7', 1000))::numeric",
		"1e131071", "1e-16383", "0"}},
	{typ: "numeric(1000,500)", values: []string{"1", "(repeat('8', 499) || '.' || repeat('1', 499))::numeric", "'NaN'"}},
	{typ: "money", values: []string{"'-92233720368547758.08'", "'92233720368547758.07'", "'0.01'", "'-1234.50'"}},
	{typ: "text", values: textEdges},
	{typ: "varchar(40)", values: []string{"'trailing   '", "''", `'\N'`, "'é😀'", "'NULL'"}},
	{typ: "char(6)", values: []string{"'a'", "''", "'  b'", "'éé'", `'\N'`}},
	{typ: "json", values: []string{`'{"a" :  "\u0041\n\"\\ é", "a":1e400 , "b":[ ]}'`, "'null'", `'  "x"  '`, `'"\u0000"'`, "'-0'"}},
	{typ: "jsonb", values: []string{`'{"a":"\u0041\n\"\\/ é\u2028", "b":[1.00, 1.0, null, {}]}'`, "'null'", `'"\\N"'`, `('{"k":"' || repeat('x', 70000) || '"}')::jsonb`, "'1e300'", "'-0'"}},
	{typ: "jsonpath", values: []string{`'$.a[*] ? (@.b == "\"x\\")'`, "'strict $'"}},
	{typ: "point", values: []string{"'(-0,0)'", "'(NaN,Infinity)'", "'(1e-300,-1.7976931348623157e308)'"}},
	{typ: "lseg", values: []string{"'[(0,0),(1,-0)]'", "'[(NaN,1),(2,3)]'"}},
	{typ: "path", values: []string{"'[(0,0),(1,1)]'", "'((0,0),(1,1))'", "'[(0.1,0.2)]'"}},
	{typ: "box", values: []string{"'(1,1),(-0,0)'", "'(Infinity,2),(0,-Infinity)'"}},
	{typ: "polygon", values: []string{"'((0,0),(1,0),(0.1,1))'", "'((5,5))'"}},
	{typ: "line", values: []string{"'{1,-2,3}'", "'{0.1,-0,0}'"}},
	{typ: "circle", values: []string{"'<(0,-0),0>'", "'<(1,2),Infinity>'"}},
	{typ: "inet", values: []string{"'10.0.0.1/8'", "'10.0.0.1'", "'::ffff:1.2.3.4/128'", "'2001:db8::1/0'", "'0.0.0.0/0'"}},
	{typ: "cidr", values: []string{"'0.0.0.0/0'", "'10.0.0.0/8'", "'2001:db8::/32'", "'::/0'"}},
	{typ: "macaddr", values: []string{"'ff:ff:ff:ff:ff:ff'", "'00:00:00:00:00:00'"}},
	{typ: "macaddr8", values: []string{"'ff:ff:ff:ff:ff:ff:ff:ff'", "'08:00:2b:ff:fe:01:02:03'"}},
	{typ: "bit(9)", values: []string{"B'101010101'", "B'000000000'"}},
	{typ: "varbit", values: []string{"B''", "B'1'", "B'01'", "repeat('10', 5000)::varbit"}},
	{typ: "date", values: []string{"'infinity'", "'-infinity'", "'4714-11-24 BC'", "'0044-03-15 BC'", "'12026-01-01'", "'5874897-12-31'", "'2000-02-29'"}},
	{typ: "time", values: []string{"'00:00'", "'24:00'", "'23:59:59.999999'"}},
	{typ: "time(3)", values: []string{"'23:59:59.9994'", "'24:00:00'"}},
	{typ: "timetz", values: []string{"'24:00:00-15:59:59'", "'00:00:00+15:59:59'", "'12:00:00.000001+05:30'", "'12:00+00'"}},
	{typ: "timestamp", values: []string{"'infinity'", "'-infinity'", "'4714-11-24 00:00 BC'", "'294276-12-31 23:59:59.999999'", "'0001-01-01 00:00:00.000001 BC'", "'10000-01-01'"}},
	{typ: "timestamptz", values: []string{"'infinity'", "'-infinity'", "'4714-11-24 00:00+00 BC'", "'294276-12-31 23:59:59.999999+00'", "'1883-11-18 12:03:57-07:52:58'", "'2024-03-31 01:30:00 Europe/Berlin'"}},
	{typ: "timestamptz(0)", values: []string{"'2024-10-27 00:30:00+00'", "'10000-01-01 00:00+00'"}},
	{typ: "interval", values: []string{"'1 mon'", "'30 days'", "'720:00:00'", "'-1 year -2 mons +3 days -04:05:06.000007'", "'178956970 years 7 mons'",
		"'-178956970 years'", "'2147483647 hours 59 minutes 59.999999 seconds'", "'-2147483648 days'", "'0'"}, since: map[int][]string{17: {"'infinity'", "'-infinity'"}}},
	{typ: "interval year to month", values: []string{"'-1-2'", "'13 months'"}},
	{typ: "interval second(2)", values: []string{"'1.999'", "'-0.011'"}},
	{typ: "uuid", values: []string{"'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"}},
	{typ: "oid", values: []string{"0", "4294967295"}},
	{typ: "xid", values: []string{"'0'", "'4294967295'"}},
	{typ: "tid", values: []string{"'(4294967295,65535)'", "'(0,0)'"}},
	{typ: "xid8", values: []string{"'18446744073709551615'", "'0'"}},
	{typ: "pg_lsn", values: []string{"'FFFFFFFF/FFFFFFFF'", "'0/0'"}},
	{typ: "txid_snapshot", values: []string{"'10:20:10,14,15'", "'1:1:'"}},
	{typ: "pg_snapshot", values: []string{"'10:20:10,14,15'"}},
	{typ: "tsvector", values: []string{`$$'a''b' 'c\\d':1A,2B,16383 'é':3$$`, "''", `array_to_tsvector(array['tab' || chr(9), '"'])`}},
	{typ: "int4range", values: []string{"'empty'", "'(,)'", "'[-2147483648,2147483646]'", "'(,5]'"}},
	{typ: "int8range", values: []string{"'[-9223372036854775808,)'", "'[1,1]'"}},
	{typ: "numrange", values: []string{"'[1.0,1.00]'", "'(-Infinity,NaN)'", "'(,1.000)'"}},
	{typ: "tsrange", values: []string{`'["0044-03-15 BC",infinity]'`, "'[-infinity,)'"}},
	{typ: "tstzrange", values: []string{`'["10000-01-01 00:00+00","20000-01-01 00:00+00")'`, "'empty'"}},
	{typ: "daterange", values: []string{"'[infinity,infinity]'", "'[2024-01-01,12024-01-01)'"}},
	{typ: "int4multirange", values: []string{"'{}'", "'{[1,2],[5,)}'"}},
	{typ: "int8multirange", values: []string{"'{(,)}'"}},
	{typ: "nummultirange", values: []string{"'{[1.0,2),[3.00,4]}'"}},
	{typ: "tsmultirange", values: []string{`'{[-infinity,"2000-01-01 00:00"),["10000-01-01 00:00",)}'`}},
	{typ: "tstzmultirange", values: []string{`'{["2000-01-01 00:00+00",infinity]}'`}},
	{typ: "datemultirange", values: []string{"'{[2000-01-01,2000-01-02),[2001-01-01,)}'"}},
	{typ: "int4[]", values: []string{"'{}'", "'{1,NULL,-2147483648}'", "'{{1,2},{3,NULL}}'", "'[0:1]={1,2}'", "'[-3:-2][5:6]={{1,2},{3,4}}'"}},
	{typ: "text[]", values: []string{`array['', 'NULL', 'null', NULL, '\N', '"', '\', ',', '{', '}', ' ', E'\t\n', 'é😀', 'a b']`, "'{}'", "array[array['a'], array['b']]", "array[repeat('long', 30000)]"}},
	{typ: "varchar(5)[]", values: []string{"array['12345', '']"}},
	{typ: "char(3)[]", values: []string{"array['a', '   ']::char(3)[]"}},
	{typ: `"char"[]`, values: []string{`array['a', '', '\', NULL]::"char"[]`}},
	{typ: "name[]", values: []string{"array['a', '']::name[]"}},
	{typ: "bool[]", values: []string{"'{t,f,NULL}'"}},
	{typ: "bytea[]", values: []string{`array['\x00'::bytea, '', '\x5c6e', NULL]`}},
	{typ: "numeric[]", values: []string{"'{NaN,Infinity,1.0,1.00}'"}},
	{typ: "float8[]", values: []string{"'{-0,NaN,-Infinity,5e-324}'"}},
	{typ: "money[]", values: []string{"'{1.00,-2.50}'"}},
	{typ: "date[]", values: []string{"array['infinity', '0044-03-15 BC']::date[]"}},
	{typ: "timestamptz[]", values: []string{"array['-infinity', '10000-01-01 00:00+00']::timestamptz[]"}},
	{typ: "interval[]", values: []string{"array['1 mon', '-30 days']::interval[]"}},
	{typ: "timetz[]", values: []string{"array['24:00:00-15:59:59']::timetz[]"}},
	{typ: "uuid[]", values: []string{"array['ffffffff-ffff-ffff-ffff-ffffffffffff', NULL]::uuid[]"}},
	{typ: "jsonb[]", values: []string{`array['{"a":"\"\\"}', 'null', NULL]::jsonb[]`}},
	{typ: "inet[]", values: []string{"array['::1', '10.0.0.0/8']::inet[]"}},
	{typ: "box[]", values: []string{"'{(1,1),(0,0);(2,2),(-0,-0)}'", "'{}'"}},
	{typ: "point[]", values: []string{"array['(0,-0)', null]::point[]"}},
	{typ: "varbit[]", values: []string{"array[B'', B'101']"}},
	{typ: "tsvector[]", values: []string{"array['a:1', 'b']::tsvector[]"}},
	{typ: "numrange[]", values: []string{"array['[1.0,2)', 'empty', NULL]::numrange[]"}},
	{typ: "nummultirange[]", values: []string{"array['{[1.0,2)}']::nummultirange[]"}},
}

var textEdges = []string{`'\N'`, "'NULL'", "'null'", "''", `E'\t'`, `E'\n'`, `E'\r\n'`, `E'\\'`, `E'\\.'`, `E'\b\f\x0b\x01\x7f'`, `'{}'`, `'{"a",NULL}'`, `'"'`,
	`E'a"b\\c''d'`, "','", "' both '", "U&'\\+01F600\\0301\\200F\\FEFF'", "repeat(md5('x'), 5000)", "(select string_agg(md5(g::text), '') from generate_series(1, 40000) g)"}

// textZoo is what always travels as text: types that the two sides may number otherwise, or that have no binary form.
var textZoo = []zooColumn{
	{typ: "int2vector", values: []string{"'1 2 -3'", "''"}},
	{typ: "oidvector", values: []string{"'1 4294967295'", "''"}},
	{typ: "tsquery", values: []string{`$$!'a''b':*A & ('c\\d' <-> 'é' | 'x' <3> 'y')$$`, "''"}},
	{typ: "xml", values: []string{"'<a b=\"&quot;\">é&amp;<![CDATA[<x>]]></a>'", `'<?xml version="1.0" encoding="UTF-8" standalone="yes"?><a/>'`, "'text &amp; only'", "'<!DOCTYPE a><a/>'",
		`E'<a>\n\t</a>\n'`, "''"}},
	{typ: "xml[]", values: []string{"array['<a/>', 'b']::xml[]"}},
	{typ: "cid", values: []string{"'0'", "'4294967295'"}},
	{typ: "refcursor", values: []string{`'my "cursor"'`, "''"}},
	{typ: "regclass", values: []string{"'pg_class'", "'odd.\"Odd \"\"T\"'"}},
	{typ: "regtype", values: []string{"'int4'", "'mood'", "'mood[]'"}},
	{typ: "regproc", values: []string{"'now'"}},
	{typ: "regprocedure", values: []string{"'abs(int8)'"}},
	{typ: "regoperator", values: []string{"'+(int4,int4)'"}},
	{typ: "regnamespace", values: []string{"'odd'"}},
	{typ: "regrole", values: []string{"'postgres'"}},
	{typ: "regconfig", values: []string{"'english'"}},
	{typ: "regcollation", values: []string{"'\"C\"'"}},
	{typ: "regclass[]", values: []string{"array['pg_type', 'odd.\"Odd \"\"T\"']::regclass[]"}},
	{typ: "aclitem", values: []string{"makeaclitem('postgres'::regrole, 'postgres'::regrole, 'select', true)"}},
	{typ: "mood", values: []string{"'sad'", "''", `'a,b"c''d\ e{}'`, "repeat('é', 31)", "'NULL'"}},
	{typ: "mood[]", values: []string{"enum_range(null::mood)", "'{}'", "array[null]::mood[]", "'[2:3]={sad,NULL}'"}},
	{typ: "positive", values: []string{"1", "2147483647"}},
	{typ: "positive[]", values: []string{"'{1,2}'", "array[null, 5]::positive[]"}},
	{typ: "short", values: []string{"'a'", "''", "'  '"}},
	{typ: "tiny", values: []string{"1", "7"}},
	{typ: "fixed", values: []string{"'ab'", "''"}},
	{typ: "cents", values: []string{"1.50", "0"}},
	{typ: "numbers", values: []string{"'{1,2}'", "'[0:0]={NULL}'", "'{{1},{2}}'"}},
	{typ: "pair", values: []string{"row(1.00, null)::pair", `row(null, '')::pair`, `row('NaN', E'a"b\\c,(d)\n')::pair`, "row(null, null)::pair"}},
	{typ: "pair[]", values: []string{`array[row(1.0, 'a"b\c,')::pair, null, row(null, null)::pair]`, "'{}'"}},
	{typ: "goodpair", values: []string{"row(1, 'x')::pair::goodpair"}},
	{typ: "nest", values: []string{`row(row(1.0, E'"\\'), array['sad', null]::mood[], '[1.0,2)', 5)::nest`, "row(null, null, null, null)::nest"}},
	{typ: "nest[]", values: []string{`array[row(row(null, '"'), '{}', 'empty', 1)::nest]`}},
	{typ: "nothing", values: []string{"row()::nothing"}},
	{typ: "floats", values: []string{"'[-0,NaN)'", "'empty'", "'(,Infinity]'"}},
	{typ: "floats[]", values: []string{"array['[1,2)', null]::floats[]"}},
	{typ: "floats_multirange", values: []string{"'{[1,2),[3,4)}'", "'{}'"}},
	{typ: "words", values: []string{`words(',z)', 'a"b\', '[]')`, "'(,)'", `words('', 'é')`}},
	{typ: "moods", values: []string{"'[sad,NULL]'", "'empty'"}},
	{typ: `odd."Odd ""T"`, values: []string{`row('x y', 1)::odd."Odd ""T"`, "null"}},
	{typ: `odd."Odd ""T"[]`, values: []string{`array[row('x''y', 1)::odd."Odd ""T"]`}},
	{typ: `odd."mood"`, values: []string{"'sad'", "'glad'"}},
	{typ: `text collate "C"`, values: []string{"'a'", "'Ä'"}},
}

// zooTypes makes what textZoo needs. pad makes other types before, so that the same names get other OIDs.
func zooTypes(pad int) string {
	var b strings.Builder
	if pad > 0 {
		b.WriteString("create schema junk;")
	}
	for i := range pad {
		fmt.Fprintf(&b, "create type junk.e%d as enum ('x', 'y', 'z'); create domain junk.d%[1]d as text; create type junk.c%[1]d as (a int);", i)
	}
	return b.String()
}

const zooDDL = `
create type mood as enum ('sad', '', 'a,b"c''d\ e{}', 'ééééééééééééééééééééééééééééééé', 'NULL');
alter type mood add value 'between' before '';
create domain positive as int check (value > 0);
create domain short as varchar(3) collate "C" not null default '' constraint no_x check (value <> 'x');
create domain tiny as positive check (value < 10);
create domain fixed as char(4);
create domain cents as numeric(10, 2);
create domain numbers as int[] check (cardinality(value) < 10);
create type pair as (n numeric, t text);
create domain goodpair as pair check ((value).n > 0);
create type floats as range (subtype = float8, subtype_diff = float8mi);
create type words as range (subtype = text, collation = "C");
create type moods as range (subtype = mood);
create type nest as (p pair, m mood[], r numrange, d positive);
create type nothing as ();
create schema odd;
create type odd.mood as enum ('glad', 'sad');
create type odd."Odd ""T" as ("a b" text, "C" int);`

// extensionZoo has the types of extensions a server may lack.
var extensionZoo = map[string][]zooColumn{
	"hstore":   {{typ: "hstore", values: []string{`'"a\"b\\"=>"c,d=>", n=>NULL, e=>""'`, "''"}}, {typ: "hstore[]", values: []string{"array['a=>1', null]::hstore[]"}}},
	"citext":   {{typ: "citext", values: []string{"'aB'", "'Ab'", "''", `'\N'`}}, {typ: "citext[]", values: []string{"array['A', 'a', '']::citext[]"}}},
	"ltree":    {{typ: "ltree", values: []string{"'Top.Science'", "''"}}, {typ: "ltree[]", values: []string{"array['a.b', 'c']::ltree[]"}}, {typ: "lquery", values: []string{"'*.a|b@.!c*{1,2}'"}}, {typ: "ltxtquery", values: []string{"'a & !b@*'"}}},
	"cube":     {{typ: "cube", values: []string{"'(1,2,-0),(3,4,5)'", "'(0.1)'"}}},
	"seg":      {{typ: "seg", values: []string{"'1.0 .. 2.00'", "'~5'"}}},
	"isn":      {{typ: "isbn13", values: []string{"'978-0-306-40615-7'"}}},
	"intarray": {{typ: "query_int", values: []string{"'1&(2|!3)'"}}},
}

// zoo is one table: its columns, and every value of each in some row.
type zoo struct {
	name    string
	columns []zooColumn
	values  [][]string // by column, for the version at hand
}

func newZoo(name string, major int, columns ...zooColumn) *zoo {
	z := &zoo{name: name, columns: columns}
	for _, c := range columns {
		values := slices.Clone(c.values)
		for version, more := range c.since {
			if major >= version {
				values = append(values, more...)
			}
		}
		z.values = append(z.values, values)
	}
	return z
}

// rows is the number of rows in which every value stands at least once.
func (z *zoo) rows() (n int) {
	for _, v := range z.values {
		n = max(n, len(v))
	}
	return n
}

// ddl makes the table; pad is what an update may change alone.
func (z *zoo) ddl(options string) string {
	parts := []string{"id bigint " + options, "pad int default 0"}
	for i, c := range z.columns {
		parts = append(parts, fmt.Sprintf("c%d %s", i, c.typ))
	}
	return fmt.Sprintf("create table %s (%s);", z.name, strings.Join(parts, ", "))
}

// row is a row's values: column i has its (n + shift × i)th.
func (z *zoo) row(n, shift int) []string {
	out := make([]string, len(z.values))
	for i, v := range z.values {
		out[i] = v[(n+shift*i)%len(v)]
		if !strings.HasPrefix(out[i], "'") { // an expression needs its type said
			out[i] = "(" + out[i] + ")::" + strings.TrimSuffix(z.columns[i].typ, ` collate "C"`)
		}
	}
	return out
}

func (z *zoo) insert(id, n, shift int) string {
	return fmt.Sprintf("insert into %s values (%d, 0, %s);", z.name, id, strings.Join(z.row(n, shift), ", "))
}

func (z *zoo) insertNull(id int) string {
	return fmt.Sprintf("insert into %s (id, pad) values (%d, null);", z.name, id)
}

func (z *zoo) update(id, n, shift int) string {
	var set []string
	for i, v := range z.row(n, shift) {
		set = append(set, fmt.Sprintf("c%d = %s", i, v))
	}
	return fmt.Sprintf("update %s set %s where id = %d;", z.name, strings.Join(set, ", "), id)
}

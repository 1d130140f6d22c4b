package layout

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// What layout does not hash itself is hashed by the server as its hash partitions do, whatever the type is made of.
func TestKeysThatOnlyServersHashArePlacedAsTheirPartitionsHold(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create schema app; create type app."Pair" as (a int, b text); create domain app.tags as text[] check (value <> '{}');
		create domain short as varchar(3); create type spans as range (subtype = text, collation = "C");
		create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	if len(db.Query(t, `select from pg_available_extensions where name in ('citext', 'hstore')`)) == 2 {
		db.Exec(t, `create extension citext schema app; create extension hstore`)
	}
	citext := len(db.Query(t, `select from pg_extension where extname = 'citext'`)) == 1
	conn := reader(t, db)
	const shards = 7
	for n, test := range []struct{ typ, keys string }{
		{"int[]", `array['{}', '{1}', '{1,null,3}', '{{1,2},{3,4}}', '[5:6]={1,2}']`}, {"text[]", `array['{a,é,"b c",NULL,"NULL"}', '{""}']`}, {"character(3)[]", `array['{a,ab,abc}']`},
		{"varchar(2)[]", `array['{a,ab}']`}, {"float8[]", `array['{-0}', '{0}', '{NaN,Infinity,1e-320}']`}, {"timestamptz[]", `array['{infinity,"2000-01-01 00:00:00+05:30"}']`},
		{"int4range", `array['empty', '[1,5)', '(,)', '[3,)']`}, {"tstzrange", `array['["2000-01-01 00:00:00+00","2000-01-02 00:00:00+00"]', '(,)']`}, {"int8multirange", `array['{}', '{[1,3),[5,8)}']`},
		{"spans", `array['[a,b)', '("A B",)']`}, {`app."Pair"`, `array['(1,"x y")', '(,)', '(2,"")']`}, {`app."Pair"[]`, `array['{"(1,a)","(,)"}']`}, {"app.tags", `array['{a,b}', '{NULL}']`}, {"short[]", `array['{abc}']`},
		{"jsonb", `array['{"a": [1, 2.50, null], "b": {}}', '"text"', 'null', '[]']`}, {"xid8", `array['0', '18446744073709551615']`}, {"xid", `array['4294967295']`}, {"tid", `array['(4294967295,65535)']`},
		{"oidvector", `array['1 2 3', '']`}, {"text collate blind", `array['abc', 'ABC', 'Ä']`}, {"app.citext", `array['Foo', 'fOO', 'É']`}, {"hstore", `array['"a"=>"1", "b"=>NULL', '']`},
	} {
		if !citext && (test.typ == "app.citext" || test.typ == "hstore") {
			t.Logf("PostgreSQL %d has no %s here", db.Cluster.Version, test.typ)
			continue
		}
		table := fmt.Sprintf("by_server_%d", n)
		db.Exec(t, fmt.Sprintf(`create table %s (k %s) partition by hash (k)`, table, test.typ))
		catalog, err := pg.ReadCatalog(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		rule := ruleOf(t, Spec{Shards: shards, Tables: []ShardedTable{{Column: "k"}}}, catalog.Table(pg.Name{Schema: "public", Table: table}))
		plain, _, _ := strings.Cut(test.typ, " collate")
		want := db.Query(t, fmt.Sprintf(`select k::text, (select r from generate_series(0, %d) r where satisfies_hash_partition('%s'::regclass, %[1]d + 1, r, k::%[3]s)) from unnest(%[4]s) k`,
			shards-1, table, plain, test.keys))
		for _, w := range want {
			answer := conn.PgConn().ExecParams(t.Context(), rule.HashQuery, [][]byte{[]byte(w[0])}, nil, nil, nil).Read()
			if answer.Err != nil {
				t.Fatalf("%s: %v", test.typ, answer.Err)
			}
			if got := place(t, rule, text(string(answer.Rows[0][0]))); fmt.Sprint(int(got)) != w[1] {
				t.Errorf("%s %s: %s, the server's partition is %s", test.typ, w[0], got, w[1])
			}
		}
		if want := db.Query(t, fmt.Sprintf(`select r from generate_series(0, %d) r where satisfies_hash_partition('%s'::regclass, %[1]d + 1, r, null::%[3]s)`, shards-1, table, plain)); fmt.Sprint(int(place(t, rule, null()))) != want[0][0] {
			t.Errorf("%s: NULL is on partition %s", test.typ, want[0][0])
		}
		if strings.Contains(rule.HashQuery, "(2)") || strings.Contains(rule.HashQuery, "(3)") {
			t.Errorf("%s: a longer key, of after an ALTER, would be cut: %s", test.typ, rule.HashQuery)
		}
		if rule.BinaryKey() {
			t.Errorf("%s: a key in binary form is not asked for", test.typ)
		}
	}
}

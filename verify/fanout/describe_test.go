package fanout

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

const describedTable = `
create type mood as enum ('sad', 'glad');
create table part (id bigint primary key, region text, name varchar(20), code char(3), amount numeric(12, 2), price float8, paid money, took interval, at timestamptz, what jsonb, doc json, m mood, tags text[], "Odd (one)" int);
create table other (id bigint);
create function mine(bigint) returns boolean language sql stable as 'select true';`

func TestWhatAServerSaysAgainstAQuestionIsTold(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, describedTable)
	table := tableOf(t, db, "part")
	for name, test := range map[string]struct {
		aggregates, groupBy []string
		where               string
		keys                [][]string
		want                string // of the problem and its hint; empty: there is none
	}{
		"what can be merged":              {aggregates: []string{"count", "count(doc)", "sum(amount)", "sum(paid)", "avg(took)", "min(m)", "max(tags)", "min(code)", "avg(Odd (one))"}, groupBy: []string{"region", "m", "at"}},
		"a condition":                     {where: "amount > 10 and m = 'sad' and lower(region) in ('eu', 'us') -- of these"},
		"stable functions of PostgreSQL":  {where: "to_char(at, 'YYYY') = '2026'"},
		"keys":                            {keys: [][]string{{"1"}, {"-7"}}},
		"no such column":                  {aggregates: []string{"sum(amont)"}, want: `has no column "amont"; its columns: id, region`},
		"no such group":                   {groupBy: []string{"Region"}, want: `has no column "Region"`},
		"an aggregate of no merge":        {aggregates: []string{"median(amount)"}, want: "cannot be merged over shards; count, sum(column)"},
		"a sum of text":                   {aggregates: []string{"sum(region)"}, want: "sum does not take region, which is of type text: function sum(text)"},
		"an average of money":             {aggregates: []string{"avg(paid)"}, want: "avg does not take paid"},
		"the least jsonb":                 {aggregates: []string{"min(what)"}, want: "min does not take what"},
		"groups of json":                  {groupBy: []string{"doc"}, want: "rows cannot be grouped by doc"},
		"no condition":                    {where: "amount", want: "argument of WHERE must be type boolean"},
		"no SQL":                          {where: "amount >", want: "where: the server does not take it: syntax error"},
		"two statements":                  {where: "true; drop table other", want: `where: the server does not take it: syntax error at or near ";"`},
		"two statements that both parse":  {where: "true); drop table other; select (true", want: "cannot insert multiple commands into a prepared statement"},
		"a union":                         {where: "true) union all select count(*) from other where (true", aggregates: []string{"count"}, want: `syntax error at or near "union"`},
		"a group of its own":              {where: "true) group by (id", want: "syntax error at or near"},
		"an end of the condition's place": {where: "true) then 1 end from part; end; drop table other --", want: "syntax error"},
		"another table":                   {where: "id in (select id from other)", want: "where reads other as well; a shard has only its own rows"},
		"the time":                        {where: "at > now() - interval '1 day'", want: "where asks for now(), whose answer need not be the same on both sides; write a value"},
		"the date":                        {where: "at > current_date", want: "where asks for the time, or who asks"},
		"chance":                          {where: "random() < 0.5", want: "where asks for random()"},
		"a function of somebody's own":    {where: "mine(id)", want: "where asks for mine(bigint)"},
		"a parameter":                     {where: "id = $1", want: "where has a parameter"},
		"keys of another type":            {keys: [][]string{{"1"}, {"eu"}}, want: "keys: one is no value of id, which is of type bigint"},
	} {
		t.Run(name, func(t *testing.T) {
			q := Question{Table: table, From: "only public.part", Aggregates: test.aggregates, GroupBy: test.groupBy, Where: test.where, KeyColumns: []string{"id"}, Keys: test.keys}
			if q.Aggregates == nil {
				q.Aggregates = []string{"count"}
			}
			query, problems := described(t, db, q)
			var got []string
			for _, p := range problems {
				got = append(got, p.What+"; "+p.Hint)
			}
			switch {
			case test.want == "" && len(got) > 0, test.want != "" && (len(got) != 1 || !strings.Contains(got[0], test.want)):
				t.Errorf("%q, want %q", got, test.want)
			case test.want == "":
				if a, err := Ask(t.Context(), Request{Query: *query, Shards: []Shard{shardOf(db, 0)}, Consistency: Strong}); err != nil || a.Partial() {
					t.Errorf("it cannot be asked: %v, %+v", err, a)
				}
			}
		})
	}
	if got := db.Query(t, `select count(*) from pg_class where relname = 'other'`); got[0][0] != "1" {
		t.Error("a condition has done something")
	}
}

// Values whose equality or order is the type's own, or a locale's, come out the same over shards as in one table.
func TestTypesKeepTheirEqualityAndOrderOverShards(t *testing.T) {
	t.Parallel()
	rows := []string{
		`(1, 'B', 'x', 'ab', 1.10, 0.1, '$1.50', '1 mon', '2026-01-01', '{}', '{}', 'glad', '{a,"b ,}"}', 1)`,
		`(2, 'a', 'y', 'ab ', 1.1, 0.2, '$-0.25', '30 days', '2026-01-02', '{}', '{}', 'sad', '{"x\\y"}', null)`,
		`(3, 'a', 'y', 'c', 'NaN', 'Infinity', null, '-1 day', null, null, null, 'glad', '{}', 5)`,
		`(4, null, '', null, 3, -1e-20, '$7', '00:00:00.1', 'infinity', null, null, null, null, 7)`,
	}
	whole, dbs := pgtest.Shared(t).Database(t), []*pgtest.DB{pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)}
	whole.Exec(t, describedTable)
	whole.Exec(t, `do $$ begin execute format('alter database %I set timezone = UTC', current_database()); execute format('alter database %I set lc_monetary = "C"', current_database()); end $$`)
	var shards []Shard
	for n, db := range dbs {
		db.Exec(t, describedTable)
		shards = append(shards, shardOf(db, n))
	}
	for i, row := range rows {
		for _, db := range []*pgtest.DB{whole, dbs[i%2]} {
			db.Exec(t, `insert into part values `+row)
		}
	}
	for _, by := range []string{"", "m", "took", "code", "amount", "tags", "region"} {
		q := Question{Table: tableOf(t, whole, "part"), From: "only public.part", Aggregates: []string{"count", "sum(paid)", "sum(took)", "avg(took)", "min(took)", "max(region)",
			"min(m)", "max(tags)", "max(code)", "sum(amount)", "avg(price)", "max(price)", "min(at)", "max(at)", "avg(Odd (one))"}}
		plain := `select count(*), sum(paid), sum(took), avg(took), min(took), max(region collate "C"), min(m), max(tags collate "C"), max(code collate "C"), sum(amount),
			avg(price::text::numeric), max(price), min(at), max(at), avg("Odd (one)") from part`
		if by != "" {
			q.GroupBy = []string{by}
			plain = strings.Replace(plain, "select", "select "+by+",", 1) + " group by 1 order by 1"
			if by == "region" {
				plain = strings.Replace(plain, "select region,", `select region collate "C",`, 1)
			}
		}
		a, err := Ask(t.Context(), Request{Query: *describe(t, whole, q), Shards: shards, Consistency: Strong})
		if err != nil || a.Partial() {
			t.Fatal(err, a)
		}
		var got [][]string
		for _, row := range a.Rows {
			var texts []string
			for _, v := range append(row.Group, row.Values...) {
				if v == nil {
					texts = append(texts, `\N`)
				} else {
					texts = append(texts, *v)
				}
			}
			got = append(got, texts)
		}
		want := whole.Query(t, plain)
		if by == "took" { // of equal values, which one is shown does not matter
			for i := range want {
				want[i], got[i] = want[i][1:], got[i][1:]
			}
		}
		if by == "amount" { // 1.1 and 1.10 likewise
			for i := range want {
				want[i][0], got[i][0] = strings.TrimRight(want[i][0], "0"), strings.TrimRight(got[i][0], "0")
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("by %q:\n%v\n%v", by, got, want)
		}
	}
}

package verify

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
)

func text(value string) pg.Datum { return pg.Datum{Kind: pg.Text, Bytes: []byte(value)} }

// only narrows a request's table to rows of some keys, by the text of their one column.
func only(table *Table, keys ...string) {
	table.Only = &Only{}
	for _, key := range keys {
		table.Only.Keys.Add([]pg.Datum{text(key)})
	}
}

// sameByKeys asks once more for the rows of table orders that were found to differ, and of others, by their keys: the report
// must be the same; and for others alone, of which nothing is wrong.
func (b *bench) sameByKeys(t *testing.T, whole *Report) {
	t.Helper()
	r := b.request(t)
	i := slices.IndexFunc(r.Tables, func(t Table) bool { return t.Source.Name.Table == "orders" })
	r.Tables = r.Tables[i : i+1]
	was := whole.Tables[i]
	if was.State == Clean {
		return
	}
	only(&r.Tables[0], "3", "10", "17", "-5", "-10", "999999")
	one := run(t, r).Tables[0]
	if one.Rows != 3 {
		t.Errorf("%d rows were compared", one.Rows)
	}
	one.Rows = was.Rows
	want, _ := json.Marshal(was)
	got, _ := json.Marshal(one)
	if string(got) != string(want) {
		t.Errorf("by keys %s\n  whole %s", got, want)
	}
	only(&r.Tables[0], "24", "4", "999999")
	if one := run(t, r).Tables[0]; one.State != Clean || one.Rows != 2 {
		t.Errorf("of other keys: %+v", one)
	}
}

// Keys of every kind are found by what the servers print of them, once each.
func TestRowsAreFoundByTheirKeys(t *testing.T) {
	t.Parallel()
	for _, key := range []struct{ typ, value string }{
		{"int", "g"}, {"bigint", "g * 10000000000"}, {"text", `'a"b\\c,{}'' ' || g`}, {"char(9)", "'k' || g"}, {"varchar(9)", "'k' || g"}, {`text collate "C"`, "'k' || g"},
		{"numeric", "g * 1.10"}, {"float8", "g / 3.0"}, {"uuid", "md5(g::text)::uuid"}, {"bytea", `'\x00'::bytea || int4send(g)`}, {"timestamptz", "'2026-01-01'::timestamptz + g * interval '1 us'"},
		{"date", "'2026-01-01'::date + g"}, {"int[]", "array[g, null]"}, {"int4range", "int4range(g, g + 1)"}, {"inet", "'10.0.0.0'::inet + g"}, {"mood", "(enum_range(null::mood))[g]"}, {"positive", "g"},
	} {
		t.Run(key.typ, func(t *testing.T) {
			t.Parallel()
			ddl := fmt.Sprintf(`create type mood as enum ('sad', 'it''s \"ok\"'); create domain positive as int check (value > 0);
				create table m (other int, id %s not null, note text, k int, primary key (id, other)); create table omni (id int primary key, note text);
				insert into omni select g, 'n' from generate_series(1, 100) g; insert into m select 7, %s, repeat('x', 500), g from generate_series(1, %d) g; analyze`,
				key.typ, key.value, map[bool]int{true: 2, false: 400}[key.typ == "mood"])
			b := setUp(t, 1, 2, ddl)
			for n, db := range b.shards {
				db.Exec(t, fmt.Sprintf("delete from m where k %% 2 <> %d", n))
			}
			b.shards[1].Exec(t, "update m set note = 'harmed' where k = 1")
			b.shards[0].Exec(t, "delete from omni where id = 7")
			r := b.request(t)
			m, omni := &r.Tables[0], &r.Tables[1]
			only(omni, "6", "7", "1000")
			m.Only = &Only{}
			for _, row := range b.sources[0].Query(t, "select id, other from m where k in (1, 2, 5)") {
				m.Only.Keys.Add([]pg.Datum{text(row[0]), text(row[1])})
				m.Only.Keys.Add([]pg.Datum{text(row[0]), text(row[1])})
			}
			if key.typ == "numeric" { // the same key, printed otherwise
				m.Only.Keys.Add([]pg.Datum{text("1.1"), text("7")})
			}
			report := run(t, r)
			got, _ := json.Marshal([][]Finding{report.Tables[0].Keys, report.Tables[1].Keys})
			if one := report.Tables[0]; one.Rows != int64(len(b.sources[0].Query(t, "select from m where k in (1, 2, 5)"))) || one.Different != 1 || one.Differences() != 1 ||
				!slices.Equal(one.Keys[0].Columns, []string{"note"}) {
				t.Errorf("%+v", one)
			}
			if one := report.Tables[1]; one.Rows != 2 || one.Missing != 1 || one.Differences() != 1 {
				t.Errorf("%+v", one)
			}
			if !strings.HasSuffix(string(got), `[{"what":"missing","key":"id=7","source":0}]]`) {
				t.Errorf("%s", got)
			}
		})
	}
}

// Rows whose places alone may have changed are placed again by their sharding key, and none is told twice.
func TestRowsAreFoundByTheirSharding(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 2, orders)
	b.spread(t, 100)
	b.shards[1].Exec(t, "delete from orders where k = 5")
	b.shards[0].Exec(t, `insert into orders select g % 7, g, 'note ' || g, g * 1.5, g / 3.0, '2026-01-01'::timestamptz + g * interval '1 s', g
		from generate_series(1, 100) g where g % 7 = 5`)
	for name, test := range map[string]struct{ keys, placed []string }{
		"by their sharding key": {nil, []string{"5", "6"}},
		"by both":               {[]string{"5", "12", "6"}, []string{"5"}},
	} {
		r := b.request(t)
		r.Tables = slices.DeleteFunc(r.Tables, func(t Table) bool { return t.Source.Name.Table != "orders" })
		only(&r.Tables[0], test.keys...)
		for _, k := range test.placed {
			r.Tables[0].Only.Placed.Add([]pg.Datum{text(k)})
		}
		one := run(t, r).Tables[0]
		got, _ := json.Marshal(one.Keys)
		if want := `[{"what":"misplaced","key":"k=5","shard":0,"want":1,"rows":14}]`; string(got) != want || one.Differences() != 14 {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

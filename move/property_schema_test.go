package move_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
)

// What the random schemas are built of. Every table has id, tenant and a; what else it has, its key, its identity, its
// partitions and its rule are drawn.

// propertyTypes are made on both sides before the tables, with something in between that lets their OIDs differ.
const propertyTypes = `create type mood as enum ('sad', 'ok', 'happy'); create domain positive as int check (value > 0);
	create type pair as (x int, y text); create type span as range (subtype = numeric);`

// valueTypes are a column's type and an SQL expression of a random value, %[1]d a random number.
var valueTypes = []struct{ typ, value string }{
	{"int", "%[1]d"},
	{"bigint", "9223372036854775807 - %[1]d"},
	{"numeric", "(%[1]d || '.' || repeat('7', %[1]d %% 40))::numeric"},
	{"numeric", "case %[1]d %% 4 when 0 then 'NaN' when 1 then '1.00' when 2 then '1' else '-0.000' end::numeric"},
	{"double precision", "case %[1]d %% 3 when 0 then '-0' when 1 then 'NaN' else '0.1' end::float8 + %[1]d %% 2"},
	{"real", "%[1]d::real / 3"},
	{"text", "repeat(md5('%[1]d'), 100)"},
	{"text", `E'\\N\t\n\\' || %[1]d`},
	{"varchar(40)", "nullif('%[1]d', '1')"},
	{"char(9)", "'c%[1]d'"},
	{"bytea", `decode(md5('%[1]d'), 'hex') || '\x00ff5c'`},
	{"boolean", "%[1]d %% 2 = 0"},
	{"jsonb", `jsonb_build_object('a', %[1]d, 'b', array[repeat(md5('%[1]d'), 90), null, E'"\\'])`},
	{"json", `json_build_object('n', %[1]d)`},
	{"uuid", "md5('%[1]d')::uuid"},
	{"date", "date '2000-01-01' + %[1]d"},
	{"timestamptz", "case %[1]d %% 5 when 0 then 'infinity' else timestamptz '2000-01-01 00:00:00.000001+03' + %[1]d * interval '1 hour' end"},
	{"interval", "%[1]d * interval '1 month -2 days 3.000004 seconds'"},
	{"int[]", "array[%[1]d, null, 3]"},
	{"text[][]", `array[['a', null], [E'"{},\\', '%[1]d']]`},
	{"mood", "(enum_range(null::mood))[%[1]d %% 3 + 1]"},
	{"mood[]", "enum_range(null::mood, (enum_range(null::mood))[%[1]d %% 3 + 1])"},
	{"positive", "%[1]d + 1"},
	{"pair", `row(%[1]d, E'a "b\\ (')::pair`},
	{"pair[]", `array[row(%[1]d, null)::pair, null]`},
	{"span", "span(%[1]d, %[1]d + 1.50, '(]')"},
	{"int4multirange", "int4multirange(int4range(%[1]d, %[1]d + 3))"},
	{"inet", "'10.0.0.0/8'::inet + %[1]d"},
	{"bit varying", "%[1]d::bit(20)::bit varying"},
	{"tsvector", "to_tsvector('simple', 'word%[1]d other')"},
	{"xml", "xmlelement(name a, %[1]d)"},
	{"point", "point(%[1]d, -0.0)"},
	{"money", "%[1]d::money"},
}

// shape is one random table.
type shape struct {
	name      string
	columns   []string // definitions, in the source's order
	values    []value  // those a writer fills
	key       string   // its primary key's columns; empty: none
	also      string   // statements after it
	rule      layout.ShardedTable
	omni      bool
	keyType   string // of the sharding key after translation
	keySQL    string // the sharding key of a row r, translated, as SQL
	partition string
	leaves    []string
}

type value struct{ column, expression string }

func (s *shape) create(columns []string, partitioned bool) string {
	all := columns
	if s.key != "" {
		all = append(append([]string(nil), columns...), "primary key ("+s.key+")")
	}
	sql := fmt.Sprintf("create table %s (%s)", s.name, strings.Join(all, ", "))
	if partitioned && s.partition != "" {
		return sql + s.partition + ";" + strings.Join(s.leaves, ";") + ";"
	}
	return sql + ";"
}

// randomShape draws a table. lookups says that tenants translates keys.
func randomShape(r *rand.Rand, n int) *shape {
	s := &shape{name: fmt.Sprintf("t%d", n), keyType: "bigint", keySQL: "r.tenant"}
	if r.IntN(4) == 0 {
		s.name = fmt.Sprintf(`"T %d.x"`, n)
	}
	kind := r.IntN(9)
	partitioned := r.IntN(3) == 0
	tenant := "tenant bigint"
	switch kind {
	case 0, 1:
		s.key = "id"
	case 2:
		s.key, tenant = "tenant, id", "tenant bigint not null"
	case 3:
		s.key, s.also = "id", "alter table %[1]s replica identity full;"
	case 4:
		s.key, s.also, tenant = "id", "create unique index on %[1]s (id, tenant); alter table %[1]s replica identity using index %[2]s_id_tenant_idx;", "tenant bigint not null"
	case 5, 6:
		s.also = "alter table %[1]s replica identity full;"
	case 7:
		s.key, s.also = "id", "alter table %[1]s drop constraint %[2]s_pkey, add primary key (id) deferrable initially deferred, replica identity full;"
	case 8:
		s.key, tenant = "id, tenant, a", "tenant bigint not null" // with no other column below it is all key
	}
	if kind == 4 || kind == 7 { // what is altered afterwards goes by a plain table's names
		partitioned, s.name = false, fmt.Sprintf("t%d", n)
	}
	s.also = strings.ReplaceAll(s.also, "%[1]s", s.name)
	s.also = strings.ReplaceAll(s.also, "%[2]s", s.name)
	s.columns = []string{"id int not null", tenant, "a int not null default 0"}
	if kind != 8 {
		s.randomColumns(r)
	}
	if r.IntN(3) == 0 {
		s.also += fmt.Sprintf("alter table %s drop column if exists gone;", s.name)
		s.columns = append([]string{"gone text default 'x'"}, s.columns...)
	}
	if partitioned {
		s.randomPartitions(r)
	}
	switch c := r.IntN(8); {
	case c == 0:
		s.rule.Columns, s.keyType, s.keySQL = []string{"id"}, "int", "r.id"
	case c < 3 && tenant != "tenant bigint":
		s.rule.Columns = []string{"tenant"}
		s.rule.LookupQuery = "select coalesce(parent, id) from tenants where id = $1"
		s.keySQL = "(select coalesce(t.parent, t.id) from tenants t where t.id = r.tenant)"
	case c == 3:
		s.omni = true
	default:
		s.rule.Columns = []string{"tenant"}
	}
	s.rule.Name = strings.Trim(s.name, `"`)
	return s
}

func (s *shape) randomColumns(r *rand.Rand) {
	for i := range r.IntN(7) {
		v := valueTypes[r.IntN(len(valueTypes))]
		column := fmt.Sprintf("v%d", i)
		if r.IntN(5) == 0 {
			column = fmt.Sprintf(`"V %d""ü"`, i)
		}
		s.columns = append(s.columns, column+" "+v.typ)
		s.values = append(s.values, value{column, v.value})
	}
	if r.IntN(3) == 0 {
		s.columns = append(s.columns, "big text") // stored outside the row, and not logged with what leaves it alone
		s.values = append(s.values, value{"big", "(select string_agg(md5(g::text || '%[1]d'), '') from generate_series(1, 200) g)"})
	}
	if r.IntN(4) == 0 {
		s.columns = append(s.columns, "double int generated always as (a * 2) stored")
	}
	if r.IntN(4) == 0 {
		s.columns = append(s.columns, "n int generated "+[]string{"always", "by default"}[r.IntN(2)]+" as identity")
	}
	r.Shuffle(len(s.columns), func(i, j int) { s.columns[i], s.columns[j] = s.columns[j], s.columns[i] })
}

// randomPartitions makes leaves on one or two levels, one of them with another column order and a column dropped.
func (s *shape) randomPartitions(r *rand.Rand) {
	if s.key != "" && !strings.HasSuffix(s.key, ", a") {
		s.key += ", a"
	}
	plain := strings.Trim(s.name, `"`)
	leaf := func(n int) string { return pgx.Identifier{fmt.Sprintf("%s_%d", plain, n)}.Sanitize() }
	if r.IntN(2) == 0 {
		s.partition = " partition by range (a)"
		s.leaves = []string{
			fmt.Sprintf("create table %s partition of %s for values from (minvalue) to (2)", leaf(0), s.name),
			fmt.Sprintf("create table %s partition of %s for values from (2) to (4) partition by hash (id)", leaf(1), s.name),
			fmt.Sprintf("create table %s partition of %s for values with (modulus 2, remainder 0)", leaf(2), leaf(1)),
			fmt.Sprintf("create table %s partition of %s for values with (modulus 2, remainder 1)", leaf(3), leaf(1)),
			fmt.Sprintf("create table %s partition of %s default", leaf(4), s.name),
		}
	} else {
		s.partition = " partition by list (a)"
		s.leaves = []string{
			fmt.Sprintf("create table %s partition of %s for values in (0, 1)", leaf(0), s.name),
			fmt.Sprintf("create table %s partition of %s default", leaf(1), s.name),
		}
	}
	if strings.Contains(s.also, "replica identity full") {
		for n := range len(s.leaves) {
			s.also += fmt.Sprintf("do $$ begin if to_regclass('%[1]s') is not null then alter table %[1]s replica identity full; end if; end $$;", leaf(n))
		}
	}
}

// elsewhere is the table as a destination that was made by hand has it: other column order, a column more, no
// partitions or the same.
func (s *shape) elsewhere(r *rand.Rand) string {
	columns := append(append([]string(nil), s.columns...), "extra text default 'of the destination'")
	r.Shuffle(len(columns), func(i, j int) { columns[i], columns[j] = columns[j], columns[i] })
	sql := s.create(columns, r.IntN(2) == 0)
	if strings.Contains(s.also, "deferrable") {
		sql += s.also
	}
	return sql
}

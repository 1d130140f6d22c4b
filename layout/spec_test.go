package layout

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"pgreshard/pg"
)

const pasted = `
[[sharded_tables]]
name = "users"
column = "id"
data_type = "bigint"
primary = true

[[sharded_tables.mapping]]
kind = "default"
shard = 1

[[sharded_tables]]
database = "prod_sharded"
columns = ["day", "id"]

[[sharded_tables]]
database = "elsewhere"
column = "day"

[[sharded_mappings]]
column = "id"
table = "users"
kind = "list"
values = [1, "2", 0x10, 1_000]
shard = 0

[[sharded_mappings]]
column = "at"
kind = "range"
start = 2026-01-01
end = 2026-01-01T12:00:00Z
shard = 0

[[sharded_tables]]
name = "events"
column = "at"

[[omnisharded_tables]]
tables = ["countries"]
sticky = true

[[sharded_schemas]]
name = "legacy"
shard = 1
`

func TestTheFileDecodesAsItStands(t *testing.T) {
	t.Parallel()
	var spec Spec
	if err := toml.NewDecoder(strings.NewReader(pasted)).DisallowUnknownFields().Decode(&spec); err != nil {
		t.Fatal(err)
	}
	if got := spec.Databases(); !slices.Equal(got, []string{"elsewhere", "prod_sharded"}) {
		t.Errorf("databases %q", got)
	}
	spec = spec.Of("prod_sharded", "prod_sharded")
	spec.Version, spec.Shards = 2, 2
	if len(spec.Tables) != 3 || spec.Tables[0].Database != "prod_sharded" {
		t.Errorf("%+v", spec.Tables)
	}
	if len(spec.Of("prod", "prod_sharded").Tables) != 0 {
		t.Error("another database has the rules")
	}
	if got := spec.Ignored(); len(got) != 2 {
		t.Errorf("ignored %q", got)
	}
	tables := []*pg.Table{tableOf("public.users", "id bigint"), tableOf("public.visits", "id bigint", "day date"),
		tableOf("public.countries", "code text"), tableOf("legacy.a", "x text"), tableOf("public.events", "at timestamptz")}
	l, err := Compile(spec, tables)
	if err != nil {
		t.Fatal(err)
	}
	users, events := l.Rule(tables[0].Name), l.Rule(tables[4].Name)
	for key, want := range map[string]Shard{"1": 0, "2": 0, "16": 0, "1000": 0, "3": 1} {
		if s := place(t, users, text(key)); s != want {
			t.Errorf("%s is on %v", key, s)
		}
	}
	place(t, events, text("2026-01-01 11:59:59.999999+00"))
	if s, err := events.Place(key(text("2026-01-01 13:00:00+01"))); err == nil {
		t.Errorf("the end of a range is on %v", s)
	}
	wantRecord(t, l, tables)
}

// wantRecord reads the layout back from what the layout record keeps.
func wantRecord(t *testing.T, l *Layout, tables []*pg.Table) {
	t.Helper()
	kept, err := json.Marshal(l.Spec())
	if err != nil {
		t.Fatal(err)
	}
	var back Spec
	if err := json.Unmarshal(kept, &back); err != nil {
		t.Fatal(err)
	}
	again, err := Compile(back, tables)
	if err != nil {
		t.Fatal(err)
	}
	if l.String() != again.String() {
		t.Errorf("%s\nread back as\n%s", l, again)
	}
	twice, _ := json.Marshal(again.Spec())
	if string(kept) != string(twice) {
		t.Errorf("%s\nkept again as\n%s", kept, twice)
	}
}

func TestTheRecordForPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	spec, tables := good()
	l, err := Compile(spec, tables)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(l.Describe())
	want := `{"version":2,"database":"prod","shards":[{"shard":0},{"shard":1},{"shard":2},{"shard":3}],"rules":[` +
		`{"table":"public.orders","kind":"sharded","columns":["tenant_id"],"data_type":["integer"],"placement":"hash(tenant_id) modulo 4"},` +
		`{"table":"public.regions","kind":"sharded","columns":["region"],"data_type":["text"],"placement":"list/range on region",` +
		`"list":[{"value":"eu","shard":0},{"value":"us","shard":0}],"ranges":[{"from":"a","to":"e","shard":1},{"from":"f","to":"m","shard":2}]},` +
		`{"table":"public.countries","kind":"omnisharded","placement":"omnisharded"}],"serving_since":null}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	wantRecord(t, l, tables)
}

func TestRulesWhoseResultTypeTheServerKnowsAreListed(t *testing.T) {
	t.Parallel()
	spec := Spec{Shards: 2, Tables: []ShardedTable{{Column: "a"}, {Column: "b", LookupQuery: "select $1"},
		{Column: "c", LookupQuery: "select $1", LookupResult: ResultShard}, {Column: "d", LookupQuery: "select $1", DataType: "text"}}}
	untyped := spec.Untyped()
	if len(untyped) != 1 || untyped[0].Column != "b" {
		t.Fatalf("%+v", untyped)
	}
	untyped[0].DataType = "integer"
	if len(spec.Untyped()) != 0 {
		t.Error("the type set is not the spec's")
	}
}

func TestTypesByAnyName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]keyType{
		"BIGINT": typeInt8, "bigserial": typeInt8, "int": typeInt4, " integer ": typeInt4, "varchar(40)": typeVarchar,
		"character varying (40)": typeVarchar, "char(8)": typeBPChar, `"char"`: typeChar, "numeric(10, 2)": typeNumeric,
		"timestamp(3) with time zone": typeTimestampTZ, "timestamptz(3)": typeTimestampTZ, "double  precision": typeFloat8,
		"pg_catalog.int8": typeInt8, "uuid": typeUUID,
	} {
		if got, ok := parseType(name); !ok || got != want {
			t.Errorf("%q is %v", name, got)
		}
	}
	for _, name := range []string{"", "unknown", "vector", "int16", "bigint[]", "("} {
		if got, ok := parseType(name); ok {
			t.Errorf("%q is %v", name, got)
		}
	}
}

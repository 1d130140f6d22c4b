package layout

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
)

func TestTheNearestRuleWins(t *testing.T) {
	t.Parallel()
	spec := Spec{Shards: 3,
		Tables: []ShardedTable{
			{Column: "tenant_id"}, {Name: "orders", Column: "id"}, {Schema: "app", Name: "logs", Column: "id"}, {Column: "code", Schema: "app"},
			{Columns: []string{"tenant_id", "region"}, Schema: "two"},
		},
		Omni:    []OmniTables{{Tables: []string{"countries", "app.tenants"}}},
		Schemas: []ShardedSchema{{Name: "billing", Shard: on(2)}, {Name: "shared", All: true}, {Shard: on(1)}},
	}
	columns := []string{"id bigint", "tenant_id bigint"}
	tables := []*pg.Table{}
	want := map[string]string{
		"app.orders":      "hash(id) modulo 3",        // its name before a nameless rule
		"app.logs":        "hash(id) modulo 3",        // its name and schema
		"web.logs":        "hash(tenant_id) modulo 3", // another schema: nameless
		"app.tenants":     "omnisharded",              // by schema.table
		"web.tenants":     "hash(tenant_id) modulo 3",
		"web.countries":   "omnisharded", // by table
		"billing.rates":   "whole table on shard 2",
		"billing.orders":  "hash(id) modulo 3", // its name before its schema
		"shared.settings": "omnisharded",
	}
	for name := range want {
		tables = append(tables, tableOf(name, columns...))
	}
	tables = append(tables, tableOf("app.codes", "code text"), tableOf("web.codes", "code text"))
	want["app.codes"], want["web.codes"] = "hash(code) modulo 3", "whole table on shard 1"
	leaf := tableOf("app.leaf", "nothing text")
	leaf.Parent = 1
	l, err := Compile(spec, append(tables, leaf))
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		if got := l.Rule(table.Name).Describe(); got != want[table.Name.String()] {
			t.Errorf("%s: %s, want %s", table.Name, got, want[table.Name.String()])
		}
	}
	if l.Rule(leaf.Name) != nil {
		t.Error("a leaf has a rule of its own")
	}
	if s := place(t, l.Rule(pg.Name{Schema: "billing", Table: "rates"})); s != 2 {
		t.Errorf("billing.rates is on %v", s)
	}
}

func TestASingleShardNeedsNoRules(t *testing.T) {
	t.Parallel()
	r := ruleOf(t, Spec{Shards: 1}, tableOf("public.t", "anything json"))
	if s := place(t, r); s != 0 || len(r.Columns) != 0 || !r.BinaryKey() {
		t.Errorf("%v %+v", s, r)
	}
}

func TestListThenRangeThenDefault(t *testing.T) {
	t.Parallel()
	entries := []Mapping{
		{Column: "k", Kind: KindRange, Start: 10, End: "20", Shard: on(1)},
		{Column: "k", Kind: KindRange, End: -5, Shard: on(3)},
		{Column: "k", Kind: KindList, Values: []any{int64(15), float64(30)}, Shard: on(2)},
	}
	table := tableOf("public.t", "k smallint")
	spec := Spec{Shards: 5, Tables: []ShardedTable{{Column: "k"}}, Mappings: entries}
	strict := ruleOf(t, spec, table)
	spec.Mappings = append(entries, Mapping{Column: "k", Kind: KindDefault, Shard: on(4)})
	open := ruleOf(t, spec, table)
	for key, want := range map[string]Shard{"10": 1, "19": 1, "15": 2, "30": 2, "20": 4, "9": 4, "-5": 4, "-6": 3, "-32768": 3} {
		if s := place(t, open, text(key)); s != want {
			t.Errorf("%s is on %v, want %v", key, s, want)
		}
		s, err := strict.Place([]pg.Datum{text(key)})
		var none *NoShardError
		switch {
		case want == 4 && !errors.As(err, &none):
			t.Errorf("%s without default is on %v (%v)", key, s, err)
		case want == 4 && (none.Key != key || none.Table != table.Name || strings.Contains(none.Error(), key)):
			t.Errorf("%s: %+v", key, none)
		case want != 4 && s != want:
			t.Errorf("%s without default is on %v (%v), want %v", key, s, err, want)
		}
	}
	if s := place(t, open, null()); s != 4 {
		t.Errorf("NULL is on %v", s)
	}
	if _, err := strict.Place([]pg.Datum{null()}); err == nil {
		t.Error("NULL has a shard without a default")
	}
	if s, ok := open.Default(); !ok || s != 4 {
		t.Errorf("default is %v %v", s, ok)
	}
	if _, ok := strict.Default(); ok {
		t.Error("a rule without default has one")
	}
}

func TestARandomMappingFindsWhatASearchFromTheTopFinds(t *testing.T) {
	t.Parallel()
	rng := random(t)
	for range 200 {
		bounds := make([]int64, 2+2*rng.IntN(8))
		for i := range bounds {
			bounds[i] = int64(rng.IntN(200) - 100)
		}
		slices.Sort(bounds)
		var entries []Mapping
		for i := 0; i < len(bounds); i += 2 {
			if bounds[i] < bounds[i+1] {
				entries = append(entries, Mapping{Column: "k", Kind: KindRange, Start: bounds[i], End: bounds[i+1], Shard: on(i)})
			}
		}
		rng.Shuffle(len(entries), func(a, b int) { entries[a], entries[b] = entries[b], entries[a] })
		listed := int64(rng.IntN(200) - 100)
		entries = append(entries, Mapping{Column: "k", Kind: KindList, Values: []any{listed}, Shard: on(50)})
		r := ruleOf(t, Spec{Shards: 51, Tables: []ShardedTable{{Column: "k", Mapping: entries}}}, tableOf("public.t", "k bigint"))
		for k := int64(-101); k <= 101; k++ {
			want := Shard(-1)
			for _, e := range entries {
				if e.Kind == KindRange && e.Start.(int64) <= k && k < e.End.(int64) {
					want = Shard(*e.Shard)
				}
			}
			if k == listed {
				want = 50
			}
			s, err := r.Place([]pg.Datum{binaryOf(binary.BigEndian.AppendUint64(nil, uint64(k)))})
			if want >= 0 && (err != nil || s != want) || want < 0 && err == nil {
				t.Fatalf("%d is on %v (%v), want %v in %+v", k, s, err, want, entries)
			}
		}
	}
}

func TestMappingsNarrowedToATable(t *testing.T) {
	t.Parallel()
	l, err := Compile(Spec{Shards: 4, Tables: []ShardedTable{{Column: "k"}}, Mappings: []Mapping{
		{Column: "k", Kind: KindList, Values: []any{1}, Shard: on(1)},
		{Column: "k", Table: "a", Kind: KindDefault, Shard: on(2)},
		{Column: "k", Table: "public.b", Kind: KindDefault, Shard: on(3)},
	}}, []*pg.Table{tableOf("public.a", "k integer"), tableOf("public.b", "k bigint")})
	if err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]Shard{"a": 2, "b": 3} {
		r := l.Rule(pg.Name{Schema: "public", Table: table})
		if one, rest := place(t, r, text("1")), place(t, r, text("7")); one != 1 || rest != want {
			t.Errorf("%s: 1 is on %v, 7 on %v", table, one, rest)
		}
	}
}

func TestTextRangesAreByBytes(t *testing.T) {
	t.Parallel()
	r := ruleOf(t, Spec{Shards: 2, Tables: []ShardedTable{{Column: "k", Mapping: []Mapping{
		{Kind: KindRange, End: "a", Shard: on(0)}, {Kind: KindRange, Start: "a", Shard: on(1)}}}}}, tableOf("public.t", "k text"))
	for key, want := range map[string]Shard{"": 0, "Z": 0, "a": 1, "é": 1, "zebra": 1} {
		if s := place(t, r, text(key)); s != want {
			t.Errorf("%q is on %v", key, s)
		}
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	table := tableOf("public.t", "k uuid")
	byValue := ruleOf(t, Spec{Shards: 4, Tables: []ShardedTable{{Column: "k", DataType: "int8", LookupQuery: "select tenant from m where k = $1"}}}, table)
	if byValue.LookupResult != ResultValue || byValue.OnMissing != MissingStop || !byValue.BinaryKey() {
		t.Errorf("%+v", byValue)
	}
	if got, want := place(t, byValue, text("42")), place(t, hashRule(t, 4, "bigint"), text("42")); got != want {
		t.Errorf("translated 42 is on %v, want %v", got, want)
	}
	id := []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff")
	for _, d := range []pg.Datum{binaryOf(id), text("00010203-0405-0607-0809-0a0b0c0d0eff")} {
		if s, err := byValue.KeyText([]byte("k="), d); err != nil || string(s) != "k=00010203-0405-0607-0809-0a0b0c0d0eff" {
			t.Errorf("%q %v", s, err)
		}
	}
	if _, err := byValue.KeyText(nil, null()); err == nil {
		t.Error("NULL has a text form")
	}
	byShard := ruleOf(t, Spec{Shards: 4, Tables: []ShardedTable{{Column: "k", LookupQuery: "select shard from m where k = $1", LookupResult: ResultShard}}}, table)
	if s := place(t, byShard, text("3")); s != 3 {
		t.Errorf("shard 3 is %v", s)
	}
	for _, wrong := range []pg.Datum{text("4"), text("-1"), text(""), text("1.0"), null()} {
		if s, err := byShard.Place([]pg.Datum{wrong}); err == nil {
			t.Errorf("%q is on %v", wrong.Bytes, s)
		}
	}
	if r := ruleOf(t, Spec{Shards: 4, Tables: []ShardedTable{{Column: "k", DataType: "int8", LookupQuery: "select $1"}}}, tableOf("public.t", "k citext")); r.BinaryKey() {
		t.Error("the binary form of a type this package does not know is taken for readable")
	}
}

func TestWhatHasNoShardSaysWhy(t *testing.T) {
	t.Parallel()
	bigint := hashRule(t, 4, "bigint")
	omni := ruleOf(t, Spec{Shards: 2, Omni: []OmniTables{{Tables: []string{"t"}}}}, tableOf("public.t", "k text"))
	sha := ruleOf(t, Spec{Shards: 2, Tables: []ShardedTable{{Column: "k", Hasher: HasherSHA1}}}, tableOf("public.t", "k text"))
	for _, c := range []struct {
		rule *Rule
		key  []pg.Datum
		want string
	}{
		{bigint, key(text("4x2")), "k0 as bigint: not a value of the type"},
		{bigint, key(binaryOf([]byte{1})), "not a value of the type"},
		{bigint, key(pg.Datum{Kind: pg.Unchanged}), "the log does not carry the value"},
		{bigint, key(), "does not have the rule's columns"},
		{omni, key(text("x")), "omnisharded"},
		{sha, key(null()), "NULL has no SHA-1"},
	} {
		_, err := c.rule.Place(c.key)
		var none *NoShardError
		if !errors.As(err, &none) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "4x2") {
			t.Errorf("%q: %v", c.want, err)
		}
	}
}

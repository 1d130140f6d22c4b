package layout

import (
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
)

// good is a configuration with nothing wrong: each test breaks one thing of it.
func good() (Spec, []*pg.Table) {
	return Spec{Version: 2, Database: "prod", Shards: 4,
			Tables: []ShardedTable{{Column: "tenant_id", DataType: "bigint"}, {Name: "regions", Column: "region"}},
			Mappings: []Mapping{
				{Column: "region", Kind: KindList, Values: []any{"eu", "us"}, Shard: on(0)},
				{Column: "region", Kind: KindRange, Start: "a", End: "e", Shard: on(1)},
				{Column: "region", Kind: KindRange, Start: "f", End: "m", Shard: on(2)},
			},
			Omni: []OmniTables{{Tables: []string{"countries"}}},
		}, []*pg.Table{
			tableOf("public.orders", "id bigint", "tenant_id integer"),
			tableOf("public.regions", "region text"),
			tableOf("public.countries", "code text"),
		}
}

func TestEveryMistakeIsNamed(t *testing.T) {
	t.Parallel()
	rule := func(t ShardedTable) func(*Spec) { return func(s *Spec) { s.Tables = append(s.Tables, t) } }
	mapped := func(m Mapping) func(*Spec) { return func(s *Spec) { s.Mappings = append(s.Mappings, m) } }
	for name, c := range map[string]struct {
		spoil func(*Spec)
		table string // added to the tables: name and columns, comma-separated
		want  string
	}{
		"a mapping's shard is out of range":       {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{"x"}, Shard: on(4)}), "", "shard 4 is out of range"},
		"a mapping's shard is negative":           {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{"x"}, Shard: on(-1)}), "", "shard -1 is out of range"},
		"a mapping names no shard":                {mapped(Mapping{Column: "region", Kind: KindDefault}), "", "cannot be understood (hint: add shard"},
		"a mapping names no column":               {mapped(Mapping{Kind: KindDefault, Shard: on(0)}), "", "names no column"},
		"a schema's shard is out of range":        {func(s *Spec) { s.Schemas = []ShardedSchema{{Name: "x", Shard: on(9)}} }, "", "shard 9 is out of range"},
		"a schema names no shard":                 {func(s *Spec) { s.Schemas = []ShardedSchema{{Name: "x"}} }, "", "names no shard"},
		"a schema has a shard and all":            {func(s *Spec) { s.Schemas = []ShardedSchema{{Name: "x", Shard: on(0), All: true}} }, "", "both shard and all"},
		"ranges overlap":                          {mapped(Mapping{Column: "region", Kind: KindRange, Start: "d", End: "f", Shard: on(3)}), "", "overlaps"},
		"a range lies inside another":             {mapped(Mapping{Column: "region", Kind: KindRange, Start: "b", End: "c", Shard: on(3)}), "", "overlaps"},
		"a range without bounds beside another":   {mapped(Mapping{Column: "region", Kind: KindRange, Shard: on(3)}), "", "overlaps"},
		"a range is empty":                        {mapped(Mapping{Column: "region", Kind: KindRange, Start: "x", End: "x", Shard: on(3)}), "", "range is empty"},
		"a range ends before it begins":           {mapped(Mapping{Column: "region", Kind: KindRange, Start: "z", End: "x", Shard: on(3)}), "", "range is empty"},
		"a list value is given twice":             {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{"us"}, Shard: on(3)}), "", "value us is given twice"},
		"a list value is given twice in one list": {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{"x", "x"}, Shard: on(3)}), "", "value x is given twice"},
		"one value is given in two spellings":     {mapped(Mapping{Column: "tenant_id", Kind: KindList, Values: []any{int64(1), "01"}, Shard: on(3)}), "", "value 01 is given twice"},
		"a list without values":                   {mapped(Mapping{Column: "region", Kind: KindList, Shard: on(3)}), "", "add values"},
		"a default with values":                   {mapped(Mapping{Column: "region", Kind: KindDefault, Values: []any{"x"}, Shard: on(3)}), "", `belong to kind = "list"`},
		"a list with a bound":                     {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{"x"}, Start: "a", Shard: on(3)}), "", `belong to kind = "range"`},
		"a mapping of unknown kind":               {mapped(Mapping{Column: "region", Kind: "hash", Shard: on(3)}), "", `"list", "range" or "default"`},
		"a value that is no value":                {mapped(Mapping{Column: "region", Kind: KindList, Values: []any{[]any{"x"}}, Shard: on(3)}), "", "no value of a key"},
		"two defaults": {func(s *Spec) {
			mapped(Mapping{Column: "region", Kind: KindDefault, Shard: on(1)})(s)
			mapped(Mapping{Column: "region", Kind: KindDefault, Shard: on(2)})(s)
		}, "", "a second default"},
		"a value is not of the data type":      {mapped(Mapping{Column: "tenant_id", Kind: KindList, Values: []any{"one"}, Shard: on(1)}), "", `"one" is not a value of type bigint`},
		"a bound is not of the data type":      {mapped(Mapping{Column: "tenant_id", Kind: KindRange, Start: 1.5, Shard: on(1)}), "", `"1.5" is not a value of type bigint`},
		"a mapping for a column no rule names": {mapped(Mapping{Column: "colour", Kind: KindDefault, Shard: on(1)}), "", "no rule names column colour"},
		"a mapping for a table no rule names":  {mapped(Mapping{Table: "orders", Column: "region", Kind: KindDefault, Shard: on(1)}), "", "no rule names column region of table orders"},
		"a mapping for one of several columns": {func(s *Spec) {
			rule(ShardedTable{Name: "pairs", Columns: []string{"a", "b"}})(s)
			mapped(Mapping{Column: "a", Kind: KindDefault, Shard: on(1)})(s)
		}, "public.pairs,a text,b text", "a key of one column"},
		"a nested mapping for another column":          {rule(ShardedTable{Name: "x", Column: "a", Mapping: []Mapping{{Column: "b", Kind: KindDefault, Shard: on(1)}}}), "", "nested mapping is for column b"},
		"lookup_result shard beside a mapping":         {rule(ShardedTable{Name: "x", Column: "region", LookupQuery: "select $1", LookupResult: ResultShard}), "", "beside a mapping"},
		"lookup_result shard with on_missing identity": {rule(ShardedTable{Name: "x", Column: "a", LookupQuery: "select $1", LookupResult: ResultShard, OnMissing: MissingIdentity}), "", "read the key as a shard number"},
		"a lookup query without parameter":             {rule(ShardedTable{Name: "x", Column: "a", DataType: "bigint", LookupQuery: "select 1"}), "", "exactly one parameter"},
		"a lookup query with two parameters":           {rule(ShardedTable{Name: "x", Column: "a", DataType: "bigint", LookupQuery: "select $1, $2"}), "", "exactly one parameter"},
		"a blank lookup query":                         {rule(ShardedTable{Name: "x", Column: "a", DataType: "bigint", LookupQuery: " "}), "", "exactly one parameter"},
		"a lookup of two columns":                      {rule(ShardedTable{Name: "x", Columns: []string{"a", "b"}, DataType: "bigint", LookupQuery: "select $1"}), "", "translates one column"},
		"a lookup of unknown type":                     {rule(ShardedTable{Name: "x", Column: "a", LookupQuery: "select $1"}), "", "type of the translated key is not known"},
		"on_missing without a lookup":                  {rule(ShardedTable{Name: "x", Column: "a", OnMissing: MissingStop}), "", "need a lookup_query"},
		"on_missing default without a default":         {rule(ShardedTable{Name: "x", Column: "a", DataType: "text", LookupQuery: "select $1", OnMissing: MissingDefault}), "public.x,a text", "has no default mapping"},
		"on_missing identity of another type":          {rule(ShardedTable{Name: "x", Column: "a", DataType: "text", LookupQuery: "select $1", OnMissing: MissingIdentity}), "public.x,a bigint", "does not hash like column a"},
		"an unknown hasher":                            {rule(ShardedTable{Name: "x", Column: "a", Hasher: "md5"}), "", `hasher = "md5" is not known`},
		"an unknown placement":                         {rule(ShardedTable{Name: "x", Column: "a", Placement: "ring"}), "", `placement = "ring" is not known`},
		"an unknown lookup_result":                     {rule(ShardedTable{Name: "x", Column: "a", LookupResult: "node"}), "", `lookup_result = "node" is not known`},
		"an unknown on_missing":                        {rule(ShardedTable{Name: "x", Column: "a", OnMissing: "skip"}), "", `on_missing = "skip" is not known`},
		"slots without placement slots":                {rule(ShardedTable{Name: "x", Column: "a", Slots: 64}), "", "without placement"},
		"fewer slots than shards":                      {rule(ShardedTable{Name: "x", Column: "a", Placement: PlacementSlots, Slots: 3}), "", "3 slots do not spread"},
		"slots other than those recorded": {func(s *Spec) {
			s.Tables = append(s.Tables, ShardedTable{Name: "x", Column: "a", Placement: PlacementSlots, Slots: 64})
			s.SlotTables = []SlotTable{{s.Version, 128, []SlotRun{{0, 127, 0}}}}
		}, "public.x,a bigint", "is recorded with 128 slots, not 64"},
		"weights of another number of shards": {func(s *Spec) { s.Weights = []int{1} }, "", "weight is not a number"},
		"weights without slots": {func(s *Spec) {
			s.Weights = make([]int, s.Shards)
			for i := range s.Weights {
				s.Weights[i] = 2
			}
		}, "", "no rule has placement"},
		"slots beside a mapping":               {func(s *Spec) { s.Tables[1].Placement = PlacementSlots }, "", "stands beside a mapping"},
		"column and columns":                   {rule(ShardedTable{Name: "x", Column: "a", Columns: []string{"b"}}), "", "both column and columns"},
		"no column":                            {rule(ShardedTable{Name: "x"}), "", "names no column"},
		"a column twice":                       {rule(ShardedTable{Name: "x", Columns: []string{"a", "a"}}), "", "named twice"},
		"a column the table lacks":             {rule(ShardedTable{Name: "x", Column: "A"}), "public.x,a text", "has no column A"},
		"vectors":                              {rule(ShardedTable{Name: "x", Column: "a", DataType: "vector"}), "", "not supported"},
		"vectors with a size":                  {rule(ShardedTable{Name: "x", Column: "a", DataType: "VECTOR(3)"}), "", "not supported"},
		"centroids":                            {rule(ShardedTable{Name: "x", Column: "a", Centroids: []any{[]any{1.0}}}), "", "not supported"},
		"an unknown data type":                 {rule(ShardedTable{Name: "x", Column: "a", DataType: "bigingt"}), "public.x,a text", "no type rows can be placed by"},
		"a data type that does not hash alike": {rule(ShardedTable{Name: "x", Column: "a", DataType: "bigint"}), "public.x,a text", "data_type bigint does not hash like column a of type text"},
		"varchar for a char(n) column":         {rule(ShardedTable{Name: "x", Column: "a", DataType: "varchar"}), "public.x,a char(8)", "does not hash like"},
		"a type only servers hash, of several": {rule(ShardedTable{Name: "x", Columns: []string{"a", "b"}}), "public.x,a citext,b int", "only a server can hash"},
		"a type only servers hash, to be mapped": {func(s *Spec) {
			rule(ShardedTable{Name: "x", Column: "a"})(s)
			mapped(Mapping{Column: "a", Kind: KindDefault, Shard: on(1)})(s)
		}, "public.x,a citext", "only a server can compare"},
		"a type only servers hash, by sha1":                   {rule(ShardedTable{Name: "x", Column: "a", Hasher: HasherSHA1}), "public.x,a citext", "sha1 is not defined for citext"},
		"a type only servers hash, called another":            {rule(ShardedTable{Name: "x", Column: "a", DataType: "text"}), "public.x,a citext", "does not hash like"},
		"a type only servers hash, where a lookup gives none": {rule(ShardedTable{Name: "x", Column: "a", DataType: "text", LookupQuery: "select $1", OnMissing: MissingIdentity}), "public.x,a citext", "only a server can hash"},
		"sha1 over several columns":                           {rule(ShardedTable{Name: "x", Columns: []string{"a", "b"}, Hasher: HasherSHA1}), "", "defined for one column"},
		"sha1 over a type with many text forms":               {rule(ShardedTable{Name: "x", Column: "a", Hasher: HasherSHA1}), "public.x,a numeric", "sha1 is not defined for numeric"},
		"a table no rule covers":                              {func(*Spec) {}, "public.loose,a text", "public.loose: no rule covers the table"},
		"two named rules": {func(s *Spec) {
			rule(ShardedTable{Name: "x", Column: "a"})(s)
			rule(ShardedTable{Schema: "public", Name: "x", Column: "b"})(s)
		}, "public.x,a text,b text", "two rules cover it"},
		"two nameless rules":                    {rule(ShardedTable{Column: "id"}), "", "public.orders: two rules cover it"},
		"a named rule and an omnisharded entry": {rule(ShardedTable{Name: "countries", Column: "code"}), "", "public.countries: two rules cover it"},
		"a table omnisharded twice":             {func(s *Spec) { s.Omni[0].Tables = append(s.Omni[0].Tables, "public.countries") }, "", "public.countries: two rules cover it"},
		"an omnisharded entry without tables":   {func(s *Spec) { s.Omni = append(s.Omni, OmniTables{}) }, "", "names no table"},
		"no shards":                             {func(s *Spec) { s.Shards = 0 }, "", "no shards"},
		"another encoding":                      {func(s *Spec) { s.Encoding = "LATIN1" }, "", "UTF8 only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, tables := good()
			c.spoil(&spec)
			if c.table != "" {
				parts := strings.Split(c.table, ",")
				tables = append(tables, tableOf(parts[0], parts[1:]...))
			}
			_, err := Compile(spec, tables)
			problems, ok := err.(Problems)
			if !ok || !strings.Contains(problems.Error(), c.want) {
				t.Fatalf("got %v, want a problem with %q", err, c.want)
			}
			for _, p := range problems {
				if p.Hint == "" || p.What == "" {
					t.Errorf("%+v: a problem says what and what to do", p)
				}
			}
		})
	}
}

func TestAKeyColumnThatIsNeverCopiedIsRefused(t *testing.T) {
	t.Parallel()
	spec, tables := good()
	tables[0].Columns[1].Generated = 's'
	tables[1].Columns[0].Deterministic = false
	_, err := Compile(spec, tables)
	for _, want := range []string{"column tenant_id is generated", "non-deterministic collation of its own"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestAllProblemsComeAtOnceAndOnce(t *testing.T) {
	t.Parallel()
	spec, tables := good()
	spec.Tables[0].DataType = "text"
	spec.Mappings = append(spec.Mappings, Mapping{Column: "region", Kind: KindRange, Start: "b", End: "b", Shard: on(0)})
	tables = append(tables, tableOf("public.loose", "a text"), tableOf("public.looser", "a text"))
	_, err := Compile(spec, tables)
	problems, _ := err.(Problems)
	if len(problems) != 4 {
		t.Fatalf("want four problems, got:\n%v", err)
	}
}

func TestAGoodConfigurationCompiles(t *testing.T) {
	t.Parallel()
	spec, tables := good()
	spec.Tables = append(spec.Tables, ShardedTable{Name: "elsewhere", Column: "x", Primary: new(bool)})
	l, err := Compile(spec, tables)
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for i, r := range l.Rules() {
		if r.ID != i || l.Rule(r.Table) != r {
			t.Errorf("rule %d has ID %d", i, r.ID)
		}
		rules = append(rules, r.Table.String()+" "+r.Describe())
	}
	if want := []string{"public.orders hash(tenant_id) modulo 4", "public.regions list/range on region", "public.countries omnisharded"}; !slices.Equal(rules, want) {
		t.Errorf("got %q", rules)
	}
	var gaps []string
	for _, g := range l.Gaps() {
		gaps = append(gaps, g.String())
	}
	if want := []string{"public.regions: no range covers region below a", "public.regions: no range covers region from e to below f",
		"public.regions: no range covers region from m on"}; !slices.Equal(gaps, want) {
		t.Errorf("got %q", gaps)
	}
	if got := l.Unused(); !slices.Equal(got, []string{"[[sharded_tables]] elsewhere (x)"}) {
		t.Errorf("unused: %q", got)
	}
	if got := spec.Ignored(); !slices.Equal(got, []string{"[[sharded_tables]] elsewhere (x): primary"}) {
		t.Errorf("ignored: %q", got)
	}
	if l.Rule(pg.Name{Schema: "public", Table: "other"}) != nil {
		t.Error("a table that was not there has a rule")
	}
}

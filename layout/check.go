package layout

import (
	"fmt"
	"slices"
	"strings"
)

// checkRules refuses entries that are wrong whatever the tables are.
func (c *compiler) checkRules() {
	if c.spec.Shards < 1 {
		c.problems.add("", "the layout has no shards", "give at least one [[destination.shards]] (or [[source.shards]]) entry")
	}
	c.checkWeights()
	if e := strings.ToUpper(c.spec.Encoding); e != "" && e != "UTF8" && e != "UTF-8" {
		c.problems.add("", "the destination's encoding is "+c.spec.Encoding+": text keys are hashed in UTF8 only", "make the destination databases with encoding UTF8")
	}
	for _, t := range c.spec.Tables {
		c.checkSharded(t)
	}
	for _, s := range c.spec.Schemas {
		c.checkSchema(s)
	}
	for _, o := range c.spec.Omni {
		if len(o.Tables) == 0 || slices.Contains(o.Tables, "") {
			c.problems.add("", "[[omnisharded_tables]] names no table", `add tables = ["table", "schema.table"]`)
		}
	}
	for _, m := range c.spec.Mappings {
		if m.Column == "" {
			c.problems.add("", m.label()+": the entry names no column", "add column = the sharding column of a [[sharded_tables]] entry")
		}
	}
}

// checkWeights: a shard's weight is its part of the slots, and nothing else divides by it.
func (c *compiler) checkWeights() {
	if len(c.spec.Weights) == 0 {
		return
	}
	if len(c.spec.Weights) != c.spec.Shards || slices.ContainsFunc(c.spec.Weights, func(w int) bool { return w < 1 || w > mostWeight }) {
		c.problems.add("", fmt.Sprintf("a shard's weight is not a number from 1 to %d", mostWeight), "weight = 2 gives a shard twice the slots of one with weight = 1")
	}
	if !slices.ContainsFunc(c.spec.Tables, func(t ShardedTable) bool { return t.Placement == PlacementSlots }) {
		c.problems.add("", "shards have weights, and no rule has placement = \"slots\"", "add placement = \"slots\" to the rules, or take weight out of the shards")
	}
}

const (
	mostWeight = 1000
	mostSlots  = 1 << 20
)

func (c *compiler) checkSharded(t ShardedTable) {
	refuse := func(what, hint string) { c.problems.add("", t.label()+": "+what, hint) }
	word := func(key, value string, allowed ...string) {
		if value != "" && !slices.Contains(allowed, value) {
			refuse(fmt.Sprintf("%s = %q is not known", key, value), key+" is "+strings.Join(allowed, " or "))
		}
	}
	word("hasher", t.Hasher, HasherPostgres, HasherSHA1)
	word("lookup_result", t.LookupResult, ResultValue, ResultShard)
	word("on_missing", t.OnMissing, MissingStop, MissingDefault, MissingIdentity)
	word("placement", t.Placement, PlacementModulo, PlacementSlots)

	columns := t.keyColumns()
	if t.Column != "" && len(t.Columns) > 0 {
		refuse("it has both column and columns", "keep one of them")
	}
	if len(columns) == 0 || slices.Contains(columns, "") {
		refuse("it names no column", "add column = the sharding column")
	}
	if sorted := slices.Sorted(slices.Values(columns)); len(slices.Compact(sorted)) < len(columns) {
		refuse("a column is named twice", "name each column once")
	}
	if unmodified(strings.ToLower(t.DataType)) == "vector" || t.Centroids != nil || t.CentroidsPath != "" || t.CentroidProbes != nil {
		refuse("sharding by vector distance (data_type vector, centroids) is not supported", "shard the table by another column")
	}
	if t.Hasher == HasherSHA1 && len(columns) > 1 {
		refuse("sha1 is defined for one column", `use hasher = "postgres" for several`)
	}
	c.checkSlots(t, refuse)
	c.checkLookup(t, refuse)
	for _, m := range t.Mapping {
		if m.Column != "" && m.Column != t.Column {
			refuse("a nested mapping is for column "+m.Column, "a mapping nested in a rule is for the rule's column")
		}
	}
}

func (c *compiler) checkSlots(t ShardedTable, refuse func(what, hint string)) {
	switch {
	case t.Placement != PlacementSlots && t.Slots != 0:
		refuse("slots is given without placement = \"slots\"", "add placement = \"slots\" or take slots away")
	case t.Placement == PlacementSlots && (t.Slots < 0 || t.Slots > mostSlots || t.slots() < c.spec.Shards):
		refuse(fmt.Sprintf("%d slots do not spread over %d shards", t.slots(), c.spec.Shards), fmt.Sprintf("slots is at least the number of shards and at most %d", mostSlots))
	}
}

// slots is how many slots the rule has under placement = "slots".
func (t ShardedTable) slots() int {
	if t.Slots == 0 {
		return DefaultSlots
	}
	return t.Slots
}

// checkLookup is shallow: whether the query is one statement with one parameter and one result column is for the server
// to say, which plan asks.
func (c *compiler) checkLookup(t ShardedTable, refuse func(what, hint string)) {
	if t.LookupQuery == "" {
		if t.LookupResult != "" || t.OnMissing != "" {
			refuse("lookup_result and on_missing need a lookup_query", "add the query or take them away")
		}
		return
	}
	if strings.TrimSpace(t.LookupQuery) == "" || !strings.Contains(t.LookupQuery, "$1") || strings.Contains(t.LookupQuery, "$2") {
		refuse("lookup_query does not have exactly one parameter", "the query takes the key as $1 and returns one column")
	}
	if len(t.keyColumns()) > 1 {
		refuse("lookup_query translates one column", "name one column, or take the query away")
	}
	if t.LookupResult == ResultShard {
		if len(c.mappingsOf(t)) > 0 {
			refuse(`lookup_result = "shard" stands beside a mapping`, "the query names the shard: take the mapping or lookup_result away")
		}
		if t.OnMissing == MissingIdentity {
			refuse(`on_missing = "identity" would read the key as a shard number`, `use on_missing = "stop" with lookup_result = "shard"`)
		}
	} else if t.DataType == "" {
		refuse("the type of the translated key is not known", "add data_type = the type lookup_query returns")
	}
}

func (c *compiler) checkSchema(s ShardedSchema) {
	switch {
	case s.All && s.Shard != nil:
		c.problems.add("", s.label()+": it has both shard and all", "keep one of them")
	case !s.All && s.Shard == nil:
		c.problems.add("", s.label()+": it names no shard", "add shard = the number of the shard its tables live on, or all = true")
	case s.Shard != nil && (*s.Shard < 0 || *s.Shard >= c.spec.Shards):
		c.problems.add("", fmt.Sprintf("%s: shard %d is out of range", s.label(), *s.Shard), fmt.Sprintf("the layout has shards 0 to %d", c.spec.Shards-1))
	}
}

// checkUse refuses mappings that can have no effect and lists rules that no table comes under.
func (c *compiler) checkUse() {
	for i, m := range c.spec.Mappings {
		if m.Column == "" || c.usedMappings[i] {
			continue
		}
		named := slices.ContainsFunc(c.spec.Tables, func(t ShardedTable) bool { return m.meets(t) })
		switch {
		case !named && m.Table != "":
			c.problems.add("", m.label()+": no rule names column "+m.Column+" of table "+m.Table, "add a [[sharded_tables]] entry for it, or take the mapping away")
		case !named:
			c.problems.add("", m.label()+": no rule names column "+m.Column, "add a [[sharded_tables]] entry with this column, or take the mapping away")
		default:
			c.unused = append(c.unused, m.label())
		}
	}
	for i, t := range c.spec.Tables {
		if !c.usedTables[i] {
			c.unused = append(c.unused, t.label())
		}
	}
}

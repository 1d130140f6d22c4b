package main

import (
	"cmp"
	"fmt"
	"slices"

	"pgreshard/layout"
)

// spec is the layout of one of the two clusters: its shards and the rules the file gives for its database.
func (c *Config) spec(cluster clusterSection) layout.Spec {
	all := layout.Spec{
		Version: cluster.Layout, Shards: len(cluster.Shards),
		Tables: c.Sharded, Mappings: c.Mappings, Omni: c.Omni, Schemas: c.Schemas,
	}
	if slices.ContainsFunc(cluster.Shards, func(s shardSection) bool { return s.Weight != 0 }) {
		for _, s := range cluster.Shards {
			all.Weights = append(all.Weights, cmp.Or(s.Weight, 1))
		}
	}
	return all.Of(cluster.Database, c.Destination.Database)
}

// checkSharding finds what is wrong in the shape of the sharding sections, so that it is told with everything else.
// What needs to know the tables is layout's to find, when a server can be asked.
func (c *Config) checkSharding(ck *checker) {
	for i := range c.Sharded {
		c.checkTable(ck, fmt.Sprintf("sharded_tables[%d]", i), &c.Sharded[i])
	}
	for i := range c.Mappings {
		key, m := fmt.Sprintf("sharded_mappings[%d]", i), &c.Mappings[i]
		c.checkDatabase(ck, key, m.Database)
		ck.must(m.Column != "", key+".column", "is missing", "name the sharding column the mapping is for")
		c.checkMapping(ck, key, m.Database, m)
	}
	for i, o := range c.Omni {
		key := fmt.Sprintf("omnisharded_tables[%d]", i)
		c.checkDatabase(ck, key, o.Database)
		ck.must(len(o.Tables) > 0, key+".tables", "is empty", `tables = ["countries"]`)
	}
	for i, s := range c.Schemas {
		key := fmt.Sprintf("sharded_schemas[%d]", i)
		c.checkDatabase(ck, key, s.Database)
		ck.must(s.All != (s.Shard != nil), key+".shard", "says where the schema lives, or all = true does", "keep one of the two")
		if s.Shard != nil {
			c.checkShard(ck, key, s.Database, *s.Shard)
		}
	}
	c.Ignored = layout.Spec{Tables: c.Sharded, Omni: c.Omni}.Ignored()
}

func (c *Config) checkTable(ck *checker, key string, t *layout.ShardedTable) {
	c.checkDatabase(ck, key, t.Database)
	ck.must(t.Column != "" || len(t.Columns) > 0, key+".column", "is missing", `column = "tenant_id"`)
	ck.must(t.Column == "" || len(t.Columns) == 0, key+".columns", "stands beside column", "keep one of the two")
	ck.must(!slices.Contains(t.Columns, ""), key+".columns", "names an empty column", "take it out")
	ck.emptyOr(key+".hasher", t.Hasher, layout.HasherPostgres, layout.HasherSHA1)
	ck.emptyOr(key+".lookup_result", t.LookupResult, layout.ResultValue, layout.ResultShard)
	ck.emptyOr(key+".on_missing", t.OnMissing, layout.MissingStop, layout.MissingDefault, layout.MissingIdentity)
	ck.emptyOr(key+".placement", t.Placement, layout.PlacementModulo, layout.PlacementSlots)
	ck.must(t.Slots >= 0, key+".slots", "is negative", "slots = 16384")
	vector := t.DataType == "vector" || t.Centroids != nil || t.CentroidsPath != "" || t.CentroidProbes != nil
	ck.must(!vector, key, "vector sharding is not supported: a row would be placed by nearness", "shard by another column")
	ck.must(t.LookupQuery == "" || len(t.Columns) < 2, key+".lookup_query", "translates one column, the rule has several",
		"shard by one column, or take the query out")
	for i := range t.Mapping {
		c.checkMapping(ck, fmt.Sprintf("%s.mapping[%d]", key, i), t.Database, &t.Mapping[i])
	}
}

// checkMapping also fills in the kind PgDog leaves out of a nested mapping: values make a list, bounds a range,
// neither the default.
func (c *Config) checkMapping(ck *checker, key, database string, m *layout.Mapping) {
	bounds := m.Start != nil || m.End != nil
	if m.Kind == "" {
		switch {
		case len(m.Values) > 0:
			m.Kind = layout.KindList
		case bounds:
			m.Kind = layout.KindRange
		default:
			m.Kind = layout.KindDefault
		}
	}
	switch m.Kind {
	case layout.KindList:
		ck.must(len(m.Values) > 0, key+".values", "is empty", "values = [1, 2, 3]")
		ck.must(!bounds, key+".start", "has no meaning in a list", `kind = "range"`)
	case layout.KindRange:
		ck.must(bounds, key+".start", "is missing, and end too", "give start, end or both")
		ck.must(len(m.Values) == 0, key+".values", "has no meaning in a range", `kind = "list"`)
	case layout.KindDefault:
		ck.must(len(m.Values) == 0 && !bounds, key, "a default takes neither values nor bounds", "take them out")
	default:
		ck.add(key+".kind", fmt.Sprintf("%q is not a kind", m.Kind), "list, range, default")
	}
	if m.Shard == nil {
		ck.add(key+".shard", "is missing", "shard = 0")
		return
	}
	c.checkShard(ck, key, database, *m.Shard)
}

// checkShard refuses the number of a shard the database does not have.
func (c *Config) checkShard(ck *checker, key, database string, shard int) {
	n := len(c.Destination.Shards)
	if database != "" && database != c.Destination.Database {
		n = len(c.Source.Shards)
	}
	ck.must(shard >= 0 && (shard < n || n == 0), key+".shard", fmt.Sprintf("there is no shard %d", shard),
		fmt.Sprintf("%d shards are numbered 0 to %d", n, n-1))
}

// checkDatabase refuses a name that is neither layout's; none stands for the destination's.
func (c *Config) checkDatabase(ck *checker, key, database string) {
	ck.must(database == "" || database == c.Destination.Database || database == c.Source.Database, key+".database",
		fmt.Sprintf("%q is neither the source's nor the destination's", database),
		fmt.Sprintf("%s or %s", c.Source.Database, c.Destination.Database))
}

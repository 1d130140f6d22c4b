package layout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// sharded is the entry spec.Tables[i] as a candidate for a table.
func (c *compiler) sharded(i int) candidate {
	entry := c.spec.Tables[i]
	return candidate{entry.label(), func(t *pg.Table) *Rule {
		c.usedTables[i] = true
		return c.shardedRule(entry, t)
	}}
}

// shardedRule makes the rule of one table, or notes why there is none.
func (c *compiler) shardedRule(entry ShardedTable, t *pg.Table) *Rule {
	columns, ok := c.keyColumns(entry, t)
	if !ok {
		return nil
	}
	r := &Rule{Table: t.Name, Columns: entry.keyColumns(), Lookup: entry.LookupQuery, method: methodHash}
	if r.Lookup != "" {
		r.LookupResult = orDefault(entry.LookupResult, ResultValue)
		r.OnMissing = orDefault(entry.OnMissing, MissingStop)
		r.source = typeOfOID(columns[0].BaseOID)
		if r.LookupResult == ResultShard {
			r.types, r.method = []keyType{typeInt8}, methodNumber
			return r
		}
	}
	if r.types, ok = c.keyTypes(entry, t, columns); !ok {
		return nil
	}
	if !c.addMapping(entry, t, r) {
		return nil
	}
	if r.types[0] == typeServer {
		r.HashQuery, r.hashed = hashQuery(columns[0]), columns[0].Base
	}
	if r.method == methodHash && entry.Hasher == HasherSHA1 {
		if !r.types[0].hasText() || r.types[0] == typeBool {
			c.problems.add(t.Name.String(), fmt.Sprintf("%s: sha1 is not defined for %s", entry.label(), cmp.Or(r.hashed, r.types[0].String())), `use hasher = "postgres"`)
			return nil
		}
		r.method = methodSHA1
	}
	switch {
	case r.method == methodMapping:
	case entry.Placement == PlacementSlots:
		r.placed = c.slots(entry)
	default:
		r.placed = Modulo(c.spec.Shards)
	}
	return r
}

func orDefault(word, otherwise string) string {
	if word == "" {
		return otherwise
	}
	return word
}

// keyColumns finds the entry's columns in the table.
func (c *compiler) keyColumns(entry ShardedTable, t *pg.Table) (columns []pg.Column, ok bool) {
	ok = true
	for _, name := range entry.keyColumns() {
		i, found := t.Column(name)
		switch {
		case !found:
			c.problems.add(t.Name.String(), fmt.Sprintf("%s: the table has no column %s", entry.label(), name), "correct the column's name (case counts)")
			ok = false
			continue
		case t.Columns[i].Generated != 0:
			c.problems.add(t.Name.String(), fmt.Sprintf("%s: column %s is generated: its values are neither copied nor streamed", entry.label(), name), "shard by a column it is computed from")
			ok = false
		}
		columns = append(columns, t.Columns[i])
	}
	return columns, ok
}

// keyTypes is the type of each value Place will be given: the columns', or the lookup's result's.
func (c *compiler) keyTypes(entry ShardedTable, t *pg.Table, columns []pg.Column) (types []keyType, ok bool) {
	given, known := parseType(entry.DataType)
	if entry.DataType != "" && !known {
		c.problems.add("", fmt.Sprintf("%s: data_type = %q is no type rows can be placed by", entry.label(), entry.DataType),
			"leave it out (the column's type is taken), or use bigint, varchar, uuid or another built-in type with a hash of its own")
		return nil, false
	}
	if entry.LookupQuery != "" {
		ok = true
		if entry.OnMissing == MissingIdentity {
			_, ok = c.columnType(entry, t, columns[0], given)
		}
		return []keyType{given}, ok
	}
	ok = true
	for _, column := range columns {
		own, fits := c.columnType(entry, t, column, given)
		types, ok = append(types, own), ok && fits
	}
	return types, ok
}

// columnType is the column's own type, typeServer where only a server can hash it; given, where there is one, must hash like it.
func (c *compiler) columnType(entry ShardedTable, t *pg.Table, column pg.Column, given keyType) (keyType, bool) {
	own := typeOfOID(column.BaseOID)
	server := own == typeNone || own.collatable() && !column.Deterministic
	refuse := func(what, hint string) {
		c.problems.add(t.Name.String(), entry.label()+": "+what, hint)
	}
	is := fmt.Sprintf("column %s is of type %s, ", column.Name, column.Type)
	switch {
	case server && len(entry.keyColumns()) > 1:
		refuse(is+"which only a server can hash, and servers are asked for keys of one column", "shard by one column, or by columns of other types")
	case server && entry.LookupQuery != "":
		refuse(is+`which only a server can hash, and on_missing = "identity" places by the key itself`, `use on_missing = "stop" or "default"`)
	case !column.Deterministic && column.Collation == "":
		refuse(is+"which brings a non-deterministic collation of its own", "give the column a collation, or shard by another column")
	case given != typeNone && given.family() != own.family():
		refuse(fmt.Sprintf("data_type %s does not hash like column %s of type %s", given, column.Name, column.Type),
			"leave data_type out (the column's type is taken) or correct it")
	case server:
		return typeServer, true
	default:
		return own, true
	}
	return own, false
}

// addMapping gives the rule the lists, ranges and default that are there for its column.
func (c *compiler) addMapping(entry ShardedTable, t *pg.Table, r *Rule) bool {
	entries := slices.Clone(entry.Mapping)
	for i, m := range entries {
		entries[i].Column = orDefault(m.Column, entry.Column)
	}
	for i, m := range c.spec.Mappings {
		if slices.Contains(r.Columns, m.Column) && (m.Table == "" || isTable(m.Table, t.Name)) && covers(m.Schema, t) {
			c.usedMappings[i] = true
			entries = append(entries, m)
		}
	}
	refuse := func(what, hint string) bool {
		c.problems.add(t.Name.String(), entry.label()+": "+what, hint)
		return false
	}
	switch {
	case len(entries) == 0 && r.OnMissing == MissingDefault:
		return refuse(`on_missing = "default" has no default mapping`, `add a [[sharded_mappings]] entry of kind = "default" for the column`)
	case len(entries) == 0:
		return true
	case r.types[0] == typeServer:
		return refuse("a mapping compares keys, and those of its column's type only a server can compare", "take the mapping away, so that the key is hashed, or translate it with lookup_query")
	case len(r.Columns) > 1:
		return refuse("a mapping is for a key of one column", "take the mapping away or shard by its column alone")
	case entry.Placement == PlacementSlots:
		return refuse(`placement = "slots" stands beside a mapping`, "the mapping names the shards: take one of them away")
	}
	before := len(c.problems)
	r.method = methodMapping
	r.mapping = compileMapping(c.mappingType(entry, r), entries, c.spec.Shards, &c.problems)
	if _, ok := r.Default(); !ok && r.OnMissing == MissingDefault {
		return refuse(`on_missing = "default" has no default mapping`, `add a [[sharded_mappings]] entry of kind = "default" for the column`)
	}
	c.gaps = append(c.gaps, r.mapping.gaps(t.Name, strings.Join(r.Columns, ", "))...)
	return len(c.problems) == before
}

// mappingType is the type a mapping's values are written in: data_type where it is given, else the column's.
func (c *compiler) mappingType(entry ShardedTable, r *Rule) keyType {
	if given, ok := parseType(entry.DataType); ok {
		return given
	}
	return r.types[0]
}

// mappingsOf lists the mappings that may hold for an entry, whatever its tables.
func (c *compiler) mappingsOf(t ShardedTable) []Mapping {
	entries := slices.Clone(t.Mapping)
	for _, m := range c.spec.Mappings {
		if m.meets(t) {
			entries = append(entries, m)
		}
	}
	return entries
}

// meets says that the mapping is for the entry's column, and may be for one of its tables.
func (m Mapping) meets(t ShardedTable) bool {
	sameTable := m.Table == "" || t.Name == "" || m.Table == t.Name || strings.HasSuffix(m.Table, "."+t.Name)
	sameSchema := m.Schema == "" || t.Schema == "" || m.Schema == t.Schema
	return sameTable && sameSchema && slices.Contains(t.keyColumns(), m.Column)
}

// slots is the layout's table of so many slots as an entry asks for: its own where one is recorded, else made from the one
// before it where there is one.
func (c *compiler) slots(entry ShardedTable) Slots {
	n := entry.slots()
	for _, s := range c.handed {
		if len(s.owner) == n {
			return s
		}
	}
	made := NewSlots(n, c.spec.Shards, c.spec.Weights)
	recorded := c.spec.SlotTables
	own := len(recorded) > 0 && recorded[0].Layout == c.spec.Version
	switch i := slices.IndexFunc(recorded, func(t SlotTable) bool { return t.Slots == n }); {
	case i >= 0:
		before, ok := recorded[i].read()
		switch {
		case !ok || own && slices.Max(before.owner) >= Shard(c.spec.Shards):
			c.problems.add("", fmt.Sprintf("%s: the recorded table of %d slots is not one of %d shards", entry.label(), n, c.spec.Shards), "the layout's number or its shards are not those of the record")
		case own:
			made = Slots{before.owner, c.spec.Shards}
		default:
			made = before.HandOver(c.spec.Shards, c.spec.Weights)
		}
	case own:
		c.problems.add("", fmt.Sprintf("%s: layout %d is recorded with %d slots, not %d", entry.label(), c.spec.Version, recorded[0].Slots, n),
			fmt.Sprintf("slots = %d", recorded[0].Slots))
	}
	c.handed = append(c.handed, made)
	return made
}

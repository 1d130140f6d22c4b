package layout

import (
	"fmt"
	"slices"

	"pgreshard/pg"
)

// Compile finds the rule of every table and readies its placement. tables are the ordinary tables and partition roots of
// the move (leaves are passed over). The error is Problems: everything that is wrong, at once.
//
// The first of these that covers a table is its rule: a [[sharded_tables]] entry with its name or an omnisharded entry;
// its schema in [[sharded_schemas]]; an entry without a name whose columns it has; a schema entry without a name. Two of
// one kind are a problem. With a single shard every table without a rule lives there.
func Compile(spec Spec, tables []*pg.Table) (*Layout, error) {
	normal, err := spec.Of(spec.Database, spec.Database).normal()
	if err != nil {
		return nil, Problems{{What: err.Error(), Hint: "write values as strings, the way PostgreSQL prints them"}}
	}
	c := compiler{spec: normal, usedTables: map[int]bool{}, usedMappings: map[int]bool{}}
	c.checkRules()
	if len(c.problems) == 0 { // what follows relies on rules that mean something
		for _, t := range tables {
			c.table(t)
		}
		c.checkUse()
	}
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	normal.SlotTables = nil
	for _, s := range c.handed {
		normal.SlotTables = append(normal.SlotTables, s.table(normal.Version))
	}
	l := &Layout{spec: normal, rules: c.rules, gaps: c.gaps, unused: c.unused, byName: make(map[pg.Name]*Rule, len(c.rules))}
	for _, r := range c.rules {
		l.byName[r.Table] = r
	}
	return l, nil
}

type compiler struct {
	spec         Spec
	problems     Problems
	rules        []*Rule
	gaps         []Gap
	usedTables   map[int]bool // index into spec.Tables
	usedMappings map[int]bool // index into spec.Mappings
	unused       []string
	handed       []Slots // one for each number of slots the rules use
}

// candidate is one entry that covers a table, with what makes its rule.
type candidate struct {
	label string
	rule  func(*pg.Table) *Rule // nil where the table cannot come under it; the problem is noted
}

// table adds the rule of one table.
func (c *compiler) table(t *pg.Table) {
	if t.Parent != 0 {
		return
	}
	for _, kind := range [][]candidate{c.named(t), c.bySchema(t), c.byColumn(t), c.everySchema(t)} {
		if len(kind) == 0 {
			continue
		}
		if len(kind) > 1 {
			c.problems.add(t.Name.String(), fmt.Sprintf("two rules cover it: %s and %s", kind[0].label, kind[1].label), "keep one of them")
			return
		}
		c.add(kind[0].rule(t))
		return
	}
	if c.spec.Shards == 1 {
		c.add(&Rule{Table: t.Name, method: methodWhole})
		return
	}
	c.problems.add(t.Name.String(), "no rule covers the table", "add a [[sharded_tables]] or [[omnisharded_tables]] entry, or exclude the table")
}

func (c *compiler) add(r *Rule) {
	if r == nil {
		return
	}
	r.ID = len(c.rules)
	r.shards = uint64(c.spec.Shards)
	c.rules = append(c.rules, r)
}

func (c *compiler) named(t *pg.Table) (found []candidate) {
	for i, rule := range c.spec.Tables {
		if rule.Name == t.Name.Table && covers(rule.Schema, t) {
			found = append(found, c.sharded(i))
		}
	}
	for _, o := range c.spec.Omni {
		for _, name := range o.Tables {
			if isTable(name, t.Name) {
				found = append(found, candidate{"[[omnisharded_tables]] " + name, omnisharded})
			}
		}
	}
	return found
}

func (c *compiler) bySchema(t *pg.Table) (found []candidate) {
	for _, s := range c.spec.Schemas {
		if s.Name != "" && s.Name == t.Name.Schema {
			found = append(found, s.candidate())
		}
	}
	return found
}

func (c *compiler) everySchema(t *pg.Table) (found []candidate) {
	for _, s := range c.spec.Schemas {
		if s.Name == "" {
			found = append(found, s.candidate())
		}
	}
	return found
}

func (s ShardedSchema) candidate() candidate {
	if s.All {
		return candidate{s.label(), omnisharded}
	}
	return candidate{s.label(), func(t *pg.Table) *Rule {
		return &Rule{Table: t.Name, method: methodWhole, whole: Shard(*s.Shard)}
	}}
}

func omnisharded(t *pg.Table) *Rule { return &Rule{Table: t.Name, Omni: true, method: methodOmni} }

func (c *compiler) byColumn(t *pg.Table) (found []candidate) {
	for i, rule := range c.spec.Tables {
		if rule.Name == "" && covers(rule.Schema, t) && hasColumns(t, rule.keyColumns()) {
			found = append(found, c.sharded(i))
		}
	}
	return found
}

func hasColumns(t *pg.Table, names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool {
		_, ok := t.Column(n)
		return !ok
	})
}

// covers says that a rule's schema, where it has one, is the table's.
func covers(schema string, t *pg.Table) bool { return schema == "" || schema == t.Name.Schema }

// isTable compares "table" or "schema.table", unquoted, with a table's name.
func isTable(name string, t pg.Name) bool { return name == t.Table || name == t.String() }

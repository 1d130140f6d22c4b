package move

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
)

// inventory is what moves and by which rules, read from the catalogs at every start.
type inventory struct {
	layout       *layout.Layout // the destination's, compiled for the moved tables
	sourceLayout *layout.Layout // nil with one source
	sources      []*pg.Catalog  // by source
	tables       []*moved
	byName       map[pg.Name]*moved
	blind        bool // what lookups read is not known
}

// moved is one table of the move: a root as rules name it.
type moved struct {
	name        pg.Name
	rule        *layout.Rule
	sourceRule  *layout.Rule  // where the sources have it; nil with one source
	query       *lookup.Query // asks a server for the key's translation, or its hash; nil where nobody is asked
	sourceQuery *lookup.Query // the source layout's, where it asks for another hash, or, on the way back to one source, alone translates
	local       localParts
	reads       []pg.Name // the tables query reads
	unsteady    []string  // what else in query may answer otherwise, with none of them changed: "calls random()"
	asked       bool      // one of those is sharded: every shard is asked
	guard       []string  // columns of this table that some lookup reads
	feeds       []feed
	withMapping bool          // a row lives where its mapping row does
	plain       []plainLookup // those of feeds that ask this table alone, by one column
}

// matches says whether [tables] include and exclude take a table.
func (c *Config) matches(name pg.Name) bool {
	in := func(patterns []string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			if !strings.Contains(p, ".") {
				p = "*." + p
			}
			ok, _ := path.Match(p, name.String())
			return ok
		})
	}
	return (len(c.Include) == 0 || in(c.Include)) && !in(c.Exclude)
}

// takeInventory reads every source's catalog and compiles the rules. Its error is a *PlanError where the rules or the
// tables do not fit.
func (m *Move) takeInventory(ctx context.Context) (*inventory, error) {
	inv := &inventory{byName: map[pg.Name]*moved{}}
	for _, shard := range m.Source.Shards {
		var catalog *pg.Catalog
		err := m.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) (err error) {
			catalog, err = pg.ReadCatalog(ctx, conn)
			return err
		})
		if err != nil {
			return nil, err
		}
		inv.sources = append(inv.sources, catalog)
	}
	recorded, err := m.recorded(ctx, shapesRecorded)
	if err != nil && m.book.Epoch != 0 { // a verb that only looks does without
		return nil, err
	}
	return inv, inv.compile(ctx, m, recorded)
}

// compile finds the rule of every table: of those recorded, where the move has made its schema.
func (inv *inventory) compile(ctx context.Context, m *Move, recorded []shapes) error {
	var roots []*pg.Table
	for _, t := range inv.sources[0].Roots() {
		if m.matches(t.Name) && t.Persistence == 'p' && (recorded == nil || recorded[0].isRoot(t.OID)) {
			roots = append(roots, t)
		}
	}
	var problems layout.Problems
	var before []layout.SlotTable
	if len(m.Source.Shards) > 1 {
		source, found, err := m.typedSpec(ctx, m.Source, nil)
		if err != nil {
			return err
		}
		problems = append(problems, found...)
		if inv.sourceLayout, err = layout.Compile(source, roots); err != nil {
			problems = append(problems, asProblems(err)...)
		} else {
			before = inv.sourceLayout.Spec().SlotTables
		}
	}
	spec, found, err := m.typedSpec(ctx, m.Destination, before)
	if err != nil {
		return err
	}
	problems = append(problems, found...)
	if inv.layout, err = layout.Compile(spec, roots); err != nil {
		problems = append(problems, asProblems(err)...)
	}
	if len(problems) > 0 {
		return &PlanError{problems}
	}
	for _, t := range roots {
		rule := inv.layout.Rule(t.Name)
		if rule == nil {
			problems = append(problems, layout.Problem{Table: t.Name.String(), What: "no rule covers this table",
				Hint: "add it to [[sharded_tables]] or [[omnisharded_tables]], or to [tables] exclude"})
			continue
		}
		mt := &moved{name: t.Name, rule: rule, query: m.lookupQuery(t.Name, rule)}
		if inv.sourceLayout != nil {
			mt.sourceRule = inv.sourceLayout.Rule(t.Name)
			switch of := mt.sourceRule; {
			case of != nil && of.HashQuery != rule.HashQuery && of.HashQuery != "", m.forward != nil && of != nil && of.Lookup != "" && rule.Lookup == "":
				mt.sourceQuery = m.lookupQuery(t.Name, of)
				mt.sourceQuery.ID = -1 - of.ID // the cache has it beside the destination's
			default:
				problems = append(problems, fitting(mt)...)
			}
		}
		inv.tables = append(inv.tables, mt)
		inv.byName[t.Name] = mt
	}
	for i, c := range inv.sources[1:] {
		if recorded == nil { // afterwards one may be changed before another
			problems = append(problems, sameTables(inv, roots, c, i+1)...)
		}
	}
	if len(problems) > 0 {
		return &PlanError{problems}
	}
	if err := inv.readHashes(ctx, m); err != nil {
		return err
	}
	err = inv.readLookups(ctx, m)
	if m.anyNode && pg.Code(err) == readOnly { // a standby cannot be asked what they read
		inv.blind, err = true, nil
	}
	return err
}

const readOnly = "25006"

// lookupQuery is what a server is asked before a rule can place a key, nil where nobody is.
func (m *Move) lookupQuery(table pg.Name, rule *layout.Rule) *lookup.Query {
	sql := cmp.Or(rule.Lookup, rule.HashQuery)
	if sql == "" {
		return nil
	}
	return &lookup.Query{ID: rule.ID, Name: fmt.Sprintf("%s.%s.%s", m.Destination.Database, table, rule.Columns[0]),
		SQL: sql, Attempts: m.LookupAttempts, Timeout: m.LookupTimeout}
}

// fitting: which source a row is of is told by the destination's translation of its key, and what every shard holds in full
// is read from the first.
func fitting(t *moved) layout.Problems {
	if t.sourceRule == nil {
		return layout.Problems{{Table: t.name.String(), What: "no rule of the source layout covers this table",
			Hint: "say where its rows stand, in a rule with the source's database"}}
	}
	if t.sourceRule.Omni != t.rule.Omni {
		return layout.Problems{{Table: t.name.String(), What: "it is omnisharded in one layout and sharded in the other",
			Hint: "with several sources, place it alike in both layouts"}}
	}
	if q := t.sourceRule.Lookup; q != "" && (t.query == nil || t.query.SQL != q) {
		return layout.Problems{{Table: t.name.String(), What: "the source layout's lookup_query is not the destination's",
			Hint: "give both rules the same lookup_query, or place the source's rows by a column"}}
	}
	return nil
}

func asProblems(err error) layout.Problems {
	if p, ok := err.(layout.Problems); ok {
		return p
	}
	return layout.Problems{{What: err.Error()}}
}

// sameTables finds what another source has differently from the first.
func sameTables(inv *inventory, roots []*pg.Table, c *pg.Catalog, source int) (problems layout.Problems) {
	for _, t := range roots {
		other := c.Table(t.Name)
		if other == nil {
			problems = append(problems, layout.Problem{Table: t.Name.String(), What: fmt.Sprintf("source %d has no such table", source),
				Hint: "make the sources' schemas equal"})
			continue
		}
		for _, what := range CompareTables(t, other) {
			problems = append(problems, layout.Problem{Table: t.Name.String(), What: fmt.Sprintf("source %d differs from source 0: %s", source, what),
				Hint: "make the sources' schemas equal"})
		}
	}
	return problems
}

// names lists the moved roots.
func (inv *inventory) names() []pg.Name {
	var out []pg.Name
	for _, t := range inv.tables {
		out = append(out, t.name)
	}
	return out
}

// tree lists the names of every table of the moved trees on one source: roots, middles and leaves.
func (inv *inventory) tree(source int) []pg.Name {
	var out []pg.Name
	for _, t := range inv.tables {
		for _, part := range inv.sources[source].Tree(inv.sources[source].Table(t.name)) {
			out = append(out, part.Name)
		}
	}
	return out
}

// follows says whether a source's stream and copy carry the table: an omnisharded one comes from the first source only.
func (t *moved) follows(source int) bool { return source == 0 || !t.rule.Omni }

// leaves lists the tables of one source that hold moved rows and are followed there.
func (inv *inventory) leaves(source int) (leaves []*pg.Table) {
	for _, t := range inv.tables {
		if t.follows(source) {
			leaves = append(leaves, inv.sources[source].Leaves(inv.sources[source].Table(t.name))...)
		}
	}
	return leaves
}

// sinkTables makes, for one source, how each leaf's changes are written, by the leaf's OID.
func (inv *inventory) sinkTables(source int, dest *pg.Catalog, e *evolution) (map[uint32]*sink.Table, map[uint32]pg.Name, error) {
	tables, leaves := map[uint32]*sink.Table{}, map[uint32]pg.Name{}
	stream := source
	if len(inv.sources) == 1 {
		stream = noStream
	}
	for _, t := range inv.tables {
		if !t.follows(source) {
			continue
		}
		root, into := inv.sources[source].Table(t.name), dest.Table(t.name)
		if into == nil {
			return nil, nil, fmt.Errorf("table %s is missing on the destination; hint: it was dropped there", t.name)
		}
		var shared *sink.Table
		for _, leaf := range inv.sources[source].Leaves(root) {
			st, err := t.sinkTable(root, leaf, into, e.renamed(source, into), stream)
			if err != nil {
				return nil, nil, err
			}
			e.adapt(source, st)
			if shared == nil {
				shared = st
			} else if !slices.Equal(shared.Logged, st.Logged) {
				shared.Logged = common(shared.Logged, st.Logged)
			}
			tables[leaf.OID] = shared
			if at := e.starts(source, leaf.OID); at != 0 {
				own := *shared
				own.StartsAt = at
				tables[leaf.OID] = &own
			}
			if same := dest.Table(leaf.Name); same != nil && same.Root == into.OID {
				leaves[leaf.OID] = leaf.Name
			}
		}
		for oid, name := range e.goneLeaves(source, t.name) { // rows of before it went may still come
			tables[oid], leaves[oid] = shared, name
			if at := e.starts(source, oid); at != 0 {
				own := *shared
				own.StartsAt = at
				tables[oid] = &own
			}
		}
	}
	return tables, leaves, nil
}

func common(a, b []int) (out []int) {
	for _, n := range a {
		if slices.Contains(b, n) {
			out = append(out, n)
		}
	}
	return out
}

// noStream: of several sources none in particular.
const noStream = -1

// of is a lookup as one of several streams asks it: its translations are its own, since it sees what it has changed of mappings
// and not committed, and the others must not.
func of(q *lookup.Query, stream int) *lookup.Query {
	if q == nil || stream == noStream {
		return q
	}
	own := *q
	own.ID += (stream + 1) << 20
	return &own
}

// sinkTable matches a leaf's columns to the destination's by name; renamed tells which the source calls otherwise. Its lookups
// are a stream's.
func (t *moved) sinkTable(root, leaf, into *pg.Table, renamed map[string]string, stream int) (*sink.Table, error) {
	st := &sink.Table{Source: t.name, Dest: into.Name, SourceParts: root.Kind == 'p', DestParts: into.Kind == 'p', Rule: t.rule, Query: of(t.query, stream), AskAll: t.asked, WithMapping: t.withMapping, Renamed: renamed, Gone: map[string]bool{}}
	called := map[string]bool{}
	for _, c := range root.Columns {
		called[cmp.Or(renamed[c.Name], c.Name)] = true
		if c.Generated != 0 { // in the log from 18 on, and computed anew
			st.Gone[c.Name] = true
		}
	}
	for _, c := range into.Columns {
		if called[c.Name] && c.Generated == 0 {
			st.Columns = append(st.Columns, c)
		}
	}
	at := func(name string) int {
		return slices.IndexFunc(st.Columns, func(c pg.Column) bool { return c.Name == cmp.Or(renamed[name], name) })
	}
	names := func(from *pg.Table, columns []int) (out []int) {
		for _, c := range columns {
			if i := at(from.Columns[c].Name); i >= 0 {
				out = append(out, i)
			}
		}
		return out
	}
	st.Logged = names(leaf, leaf.Logged)
	// Rows are found by what the log carries: the identity, or under FULL the table's key.
	st.Key = names(into, into.Key)
	if leaf.Replica == pg.IdentityIndex {
		st.Key, st.DestKey = st.Logged, st.Key
	}
	for _, k := range st.Key {
		if !slices.Contains(st.Logged, k) && len(st.Logged) > 0 {
			return nil, fmt.Errorf("%s: its replica identity does not carry key column %s; hint: ALTER TABLE %s REPLICA IDENTITY DEFAULT",
				leaf.Name, st.Columns[k].Name, leaf.Name.SQL())
		}
	}
	for _, name := range t.rule.Columns {
		if at(name) < 0 {
			return nil, fmt.Errorf("%s: sharding key column %q is generated or missing; hint: shard by a stored column", t.name, name)
		}
		st.RuleKey = append(st.RuleKey, at(name))
	}
	if t.sourceRule != nil {
		st.SourceKey = []int{}
		for _, name := range t.sourceRule.Columns {
			if at(name) < 0 {
				return nil, fmt.Errorf("%s: the source's sharding key column %q is generated or missing; hint: name a stored column", t.name, name)
			}
			st.SourceKey = append(st.SourceKey, at(name))
		}
	}
	for _, q := range t.plain {
		if key, value := at(q.key), at(q.value); key >= 0 && value >= 0 && slices.Equal(st.Key, []int{key}) {
			st.Answers = append(st.Answers, sink.Answer{Query: of(q.query, stream), Key: key, Value: value})
		}
	}
	for _, f := range t.feeds {
		feed := sink.Feed{Query: of(f.query, stream), Key: -1, Adds: f.adds, Unique: f.unique}
		if f.key != "" {
			feed.Key = at(f.key)
		} else if f.reach != "" && at(f.by) >= 0 {
			feed.By, feed.Reach = at(f.by), &lookup.Query{Name: f.query.Name, SQL: f.reach}
		}
		st.Feeds = append(st.Feeds, feed)
	}
	for _, name := range t.guard {
		if i := at(name); i >= 0 {
			st.Guard = append(st.Guard, i)
		}
	}
	return st, nil
}

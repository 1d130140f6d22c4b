package sink

import (
	"fmt"
	"slices"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Table is how the changes of one source table (a root with its leaves) are written. It is made once a run from both
// sides' catalogs; a Stream never changes it.
type Table struct {
	Source  pg.Name     // the source's root table, as messages name it
	Dest    pg.Name     // the destination's table
	Columns []pg.Column // the destination's columns that are written: those the source has too, generated ones left out
	Key     []int       // indexes into Columns that find a row: the destination's key; empty: a table without key
	Logged  []int       // indexes into Columns that an old row carries
	Rule    *layout.Rule
	RuleKey []int         // indexes into Columns of the sharding key, in the rule's order; empty for an omnisharded table
	Query   *lookup.Query // translates the key first; nil where it is placed as it is
	AskAll  bool          // the lookup's tables are sharded: all shards are asked and exactly one must answer
	Guard   []int         // columns that lookups read: an update that changes one of them would change translations

	// Forgive: changes of transactions that end at or before this position may already be in what was copied.
	Forgive pg.LSN
	// StartsAt: changes of transactions that commit before this position are in what was copied, exactly.
	StartsAt pg.LSN
	// Feeds lists the queries whose translations come from this table.
	Feeds []*lookup.Query
}

// loose says that an old row does not tell which shard it is on: the identity lacks the sharding key, or the key is
// translated by a mapping that may have changed since.
func (t *Table) loose() bool {
	if t.Rule.Omni {
		return false
	}
	if t.Query != nil {
		return true
	}
	for _, k := range t.RuleKey {
		if !slices.Contains(t.Logged, k) {
			return true
		}
	}
	return false
}

// binding says where the columns of a relation, as the stream described it, stand in its Table.
type binding struct {
	table *Table
	leaf  pg.Name
	order []int // relation column to Table.Columns
	same  bool  // order is 0, 1, 2, … over all columns
}

func bind(t *Table, r *pg.Relation) (*binding, error) {
	b := &binding{table: t, leaf: r.Name, order: make([]int, len(r.Columns))}
	for i, c := range r.Columns {
		b.order[i] = slices.IndexFunc(t.Columns, func(k pg.Column) bool { return k.Name == c.Name })
		if b.order[i] < 0 {
			return nil, &SchemaError{Table: t.Source, What: fmt.Sprintf("column %q is on the source and not on the destination", c.Name)}
		}
	}
	if len(r.Columns) < len(t.Columns) {
		for i, c := range t.Columns {
			if !slices.Contains(b.order, i) {
				return nil, &SchemaError{Table: t.Source, What: fmt.Sprintf("column %q is gone from the source", c.Name)}
			}
		}
	}
	b.same = len(r.Columns) == len(t.Columns) && slices.IsSorted(b.order)
	return b, nil
}

// row puts a relation's row into the table's column order.
func (b *binding) row(r pg.Row) pg.Row {
	if b.same || r == nil {
		return r
	}
	out := make(pg.Row, len(b.table.Columns))
	for i, d := range r {
		out[b.order[i]] = d
	}
	return out
}

func pick(r pg.Row, columns []int) []pg.Datum {
	out := make([]pg.Datum, len(columns))
	for i, c := range columns {
		out[i] = r[c]
	}
	return out
}

package sink

import (
	"fmt"
	"slices"

	"pgreshard/pg"
)

// binding says where the columns of a relation, as the stream described it, stand in its Table.
type binding struct {
	table    *Table
	relation *pg.Relation
	order    []int // relation column to Table.Columns
	same     bool  // order is 0, 1, 2, … over all columns
}

// bind finds each column of a relation as it was described at a position of the stream.
func bind(t *Table, r *pg.Relation, at pg.LSN) (*binding, *SchemaError) {
	b := &binding{table: t, relation: r, order: make([]int, len(r.Columns))}
	unknown := ""
	for i, c := range r.Columns {
		b.order[i] = t.find(c.Name)
		if b.order[i] < 0 && !t.Gone[c.Name] {
			unknown = c.Name
		}
	}
	lacking := false
	for i, c := range t.Columns {
		if slices.Contains(b.order, i) {
			continue
		}
		lacking = true
		if c.NotNull && !c.HasDefault && c.Identity == 0 {
			return nil, &SchemaError{Table: t.Source, What: fmt.Sprintf("column %q is gone from the source", c.Name)}
		}
	}
	if unknown != "" && (lacking || at >= t.Before) { // it may be one of those that lack, under another name
		return nil, &SchemaError{Table: t.Source, What: fmt.Sprintf("column %q is on the source and not on the destination", unknown)}
	}
	b.same = len(r.Columns) == len(t.Columns) && slices.IsSorted(b.order)
	return b, nil
}

// find is the index of a column by the source's name for it, -1 where it is not written.
func (t *Table) find(name string) int {
	return slices.IndexFunc(t.Columns, func(k pg.Column) bool { return k.Name == name || k.Name == t.Renamed[name] })
}

// row puts a relation's row into the table's column order. A column the relation does not have (rows from before it was
// added, or after it was dropped) is not carried: an insert leaves it to its default.
func (b *binding) row(r pg.Row) pg.Row {
	if b.same || r == nil {
		return r
	}
	out := make(pg.Row, len(b.table.Columns))
	for i := range out {
		out[i].Kind = pg.Unchanged
	}
	for i, d := range r {
		if b.order[i] >= 0 {
			out[b.order[i]] = d
		}
	}
	return out
}

// binding finds how a relation is written in a transaction that commits at a position; a relation the move does not
// follow is a *SchemaError.
func (r *router) binding(rel *pg.Relation, at pg.LSN) (*binding, error) {
	if b := r.bindings[rel.OID]; b != nil && b.relation == rel {
		return b, nil
	}
	t := r.Tables[rel.OID]
	if t == nil {
		return nil, &SchemaError{Source: r.Checkpoint.Source, At: at, Table: rel.Name, What: "the stream carries a table that was not there when the move was made"}
	}
	b, err := bind(t, rel, at)
	if err != nil {
		err.Source, err.At = r.Checkpoint.Source, at
		return nil, err
	}
	r.bindings[rel.OID] = b
	return b, nil
}

// old puts the old row into the table's column order. What a 'K' tuple does not carry is marked so: its NULLs there
// mean nothing.
func (b *binding) old(c *pg.Change) pg.Row {
	if c.Old == nil || c.OldFull {
		return b.row(c.Old)
	}
	out := make(pg.Row, len(b.table.Columns))
	for i := range out {
		out[i].Kind = pg.Unchanged
	}
	for i, d := range c.Old {
		if c.Relation.Columns[i].Key && b.order[i] >= 0 {
			out[b.order[i]] = d
		}
	}
	return out
}

// completed fills what the new row does not carry from the old one, as far as that does. Beside a whole old row that is
// everything; beside an identity it is an identity stored out of line.
func completed(new, old pg.Row) pg.Row {
	if complete(new) {
		return new
	}
	out := append(pg.Row(nil), new...)
	for i, d := range out {
		if d.Kind == pg.Unchanged {
			out[i] = old[i]
		}
	}
	return out
}

func complete(r pg.Row) bool {
	for _, d := range r {
		if d.Kind == pg.Unchanged {
			return false
		}
	}
	return true
}

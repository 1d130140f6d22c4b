package sink

import (
	"context"
	"math"
	"slices"

	"pgreshard/lookup"
	"pgreshard/pg"
)

// Answer says that a query asks one table for one column by its key alone, so that a row of the table that passes in
// the stream is the answer itself, and nobody need be asked.
type Answer struct {
	Query      *lookup.Query
	Key, Value int // indexes into the table's Columns
}

// translateHeld fills the cache for the rows that are held and whose keys a mapping table translates, as it stands here.
func (r *router) translateHeld(ctx context.Context, mapping *Table) error {
	wanted := map[*Table]map[string]bool{}
	for _, c := range r.held {
		if c.table == nil || c.table.Query == nil || c.new == nil || !mapping.feeds(c.table.Query) {
			continue
		}
		if key := c.new[c.table.RuleKey[0]]; key.Kind == pg.Text {
			if wanted[c.table] == nil {
				wanted[c.table] = map[string]bool{}
			}
			wanted[c.table][string(key.Bytes)] = true
		}
	}
	for t, keys := range wanted {
		if err := r.fill(ctx, t, keys); err != nil {
			return err
		}
	}
	return nil
}

// feeds says that a query's translations come from a table.
func (t *Table) feeds(q *lookup.Query) bool {
	return slices.ContainsFunc(t.Feeds, func(f Feed) bool { return f.Query.ID == q.ID })
}

// leaving is a mapping row that the open transaction deletes; nil: every row of the table.
type leaving struct {
	table *Table
	row   pg.Row
}

// forgetLeaving is called at the end of a transaction.
func (r *router) forgetLeaving() {
	for _, l := range r.leaving {
		if l.row != nil {
			r.forgetTranslations(l.table, l.row)
			continue
		}
		for _, f := range l.table.Feeds {
			r.changed(f.Query, nil)
		}
	}
	clear(r.leaving)
	r.leaving = r.leaving[:0]
}

// forgetTranslations drops what was cached of a mapping row. Which of its columns is the key the query alone knows, so
// every value of the row that the query reads is taken for one; where the log does not carry one of them, everything
// the query had cached is dropped.
func (r *router) forgetTranslations(t *Table, row pg.Row) {
	for _, c := range t.Guard {
		for _, f := range t.Feeds {
			switch row[c].Kind {
			case pg.Text:
				r.changed(f.Query, row[c].Bytes)
			case pg.Unchanged:
				r.changed(f.Query, nil)
			}
		}
	}
}

// prefetch asks, in one round trip a query, for the translations that the rows of a block need and the cache does not
// have, unless the block itself brings them. What is not there yet is asked again when its row is placed; what changes
// within the block is forgotten when the change passes.
func (r *router) prefetch(ctx context.Context, b *pg.Block) error {
	var wanted map[*Table]map[string]bool
	tx := r.tx
	for i := range b.Changes {
		c := &b.Changes[i]
		if c.Op == pg.OpBegin {
			tx = c.Tx
		}
		if c.New == nil && c.Old == nil || tx == nil {
			continue
		}
		bound, err := r.binding(c.Relation, tx.Commit)
		if err != nil {
			continue // change will meet it, at its place
		}
		t := bound.table
		rows := []pg.Row{bound.row(c.New)}
		if t.fixed() { // where an old row is follows from its key
			rows = append(rows, bound.old(c))
		}
		for _, row := range rows {
			if t.Query == nil || row == nil || row[t.RuleKey[0]].Kind != pg.Text {
				continue
			}
			key := row[t.RuleKey[0]].Bytes
			if _, ok := r.Router.Lookups.Cached(t.Query, key); ok {
				continue
			}
			if wanted == nil {
				wanted = map[*Table]map[string]bool{}
			}
			if wanted[t] == nil {
				wanted[t] = map[string]bool{}
			}
			wanted[t][string(key)] = true
		}
	}
	if wanted == nil {
		return nil
	}
	r.leaveOutBrought(b, wanted)
	for t, keys := range wanted {
		if err := r.fill(ctx, t, keys); err != nil {
			return err
		}
	}
	return nil
}

// leaveOutBrought takes out the keys whose mapping rows are inserted in the block.
func (r *router) leaveOutBrought(b *pg.Block, wanted map[*Table]map[string]bool) {
	for i := range b.Changes {
		c := &b.Changes[i]
		if c.Op != pg.OpInsert {
			continue
		}
		bound, err := r.binding(c.Relation, math.MaxUint64)
		if err != nil {
			continue // change will meet it, or it is one that brings no mapping
		}
		row := bound.row(c.New)
		for _, a := range bound.table.Answers {
			for t, keys := range wanted {
				if t.Query.ID == a.Query.ID {
					delete(keys, string(row[a.Key].Bytes))
				}
			}
		}
	}
}

// fill fills the cache for keys of one table; keys without translation are left to whoever places their rows.
func (r *router) fill(ctx context.Context, t *Table, keys map[string]bool) error {
	if len(keys) == 0 {
		return nil
	}
	list := make([][]byte, 0, len(keys))
	for key := range keys {
		list = append(list, []byte(key))
	}
	_, err := r.Router.Lookups.TranslateMany(ctx, r.askingOnce(t).Query, list, r.asker(ctx, t))
	if lookup.Missing(err) != nil {
		return nil
	}
	return err
}

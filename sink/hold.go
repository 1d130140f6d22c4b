package sink

import (
	"context"

	"pgreshard/lookup"
	"pgreshard/pg"
)

// heldChange is a change as it is routed, in its table's column order.
type heldChange struct {
	table    *Table
	kind     pg.Op
	old, new pg.Row
	truncate *pg.Truncate // instead of a table and rows
	n        int64        // its number within the transaction
}

// tables lists those a change belongs to, and whose changes must keep their order with it.
func (r *router) tables(c heldChange) []*Table {
	if c.truncate == nil {
		return []*Table{c.table}
	}
	var out []*Table
	for _, rel := range c.truncate.Relations {
		if t := r.Tables[rel.OID]; t != nil {
			out = append(out, t)
		}
	}
	return out
}

// apply routes a change, or holds it until its transaction ends: its key's mapping row may come later in it.
func (r *router) apply(ctx context.Context, c heldChange) error {
	if len(r.holding) > 0 {
		for _, t := range r.tables(c) {
			if r.holding[t] {
				return r.hold(ctx, c)
			}
		}
	}
	if c.truncate != nil {
		r.mappingsEmptied(c)
		return r.truncate(ctx, c.truncate)
	}
	r.remaps = false
	route := r.strict
	if r.tx.Commit <= c.table.Forgive {
		route = r.forgiving
	}
	err := route(ctx, c.table, c.kind, c.old, c.new)
	switch {
	case lookup.Missing(err) == nil:
		return err
	case !r.ending:
		return r.hold(ctx, c)
	case r.ahead && c.table.WithMapping:
		// The run before this one placed the row, or no shard could be ahead of it. Its mapping row has gone since, on the
		// shard that is ahead, and the row lives on the same shard: that one has the change already.
		return nil
	case r.tx.Commit <= c.table.Forgive && c.new != nil && len(c.table.Key) > 0:
		// A resumed copy may have been read after the mapping row had gone, and the row with it.
		if now, fetchErr := r.fetch(ctx, c.table, c.new); fetchErr != nil || now == nil {
			return fetchErr
		}
	}
	return err
}

// maxHeld bounds what waits for the end of one source transaction, in bytes; beyond it keys are asked at once.
const maxHeld = 64 << 20

// hold keeps a change, and with it every later change of its table, until the transaction ends: the translation of a
// key is what the mapping says there, and the mapping row may come after the row that needs it.
func (r *router) hold(ctx context.Context, c heldChange) error {
	c.old, c.new = kept(c.old), kept(c.new)
	o := op{old: c.old, new: c.new}
	r.held = append(r.held, c)
	for _, t := range r.tables(c) {
		r.holding[t] = true
	}
	if r.heldFor += o.bytes(); r.heldFor > maxHeld {
		return r.letGo(ctx)
	}
	return nil
}

// kept copies a row. The row itself would keep alive all that came in its block.
func kept(row pg.Row) pg.Row {
	if row == nil {
		return nil
	}
	n := 0
	for _, d := range row {
		n += len(d.Bytes)
	}
	out, bytes := make(pg.Row, len(row)), make([]byte, 0, n)
	for i, d := range row {
		out[i].Kind = d.Kind
		if d.Bytes != nil {
			start := len(bytes)
			bytes = append(bytes, d.Bytes...)
			out[i].Bytes = bytes[start:len(bytes):len(bytes)]
		}
	}
	return out
}

// letGo moves the rows whose mapping was changed, and routes what was held, in its order; which may change mappings.
func (r *router) letGo(ctx context.Context) error {
	for len(r.held) > 0 || len(r.rehomings) > 0 {
		if err := r.rehome(ctx); err != nil {
			return err
		}
		if err := r.letHeldGo(ctx); err != nil {
			return err
		}
	}
	return nil
}

// letHeldGo routes what was held. It may be much, so shards get their parts as they grow.
func (r *router) letHeldGo(ctx context.Context) error {
	held, n, nested := r.held, r.n, r.ending
	r.held, r.heldFor, r.ending = nil, 0, true
	clear(r.holding)
	for _, c := range held {
		r.n = c.n
		if err := r.apply(ctx, c); err != nil {
			return err
		}
		if err := r.pushLarge(ctx); err != nil {
			return err
		}
	}
	r.n, r.ending = n, nested
	return nil
}

// pushLarge gives shards what was routed to them, where it is much.
func (r *router) pushLarge(ctx context.Context) error {
	for shard := range r.units {
		if r.units[shard].bytes >= r.batchBytes {
			if err := r.push(ctx, shard, r.seq-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// askingOnce is the table with a lookup that asks one time only.
func (r *router) askingOnce(t *Table) *Table {
	if r.once[t] == nil {
		table, query := *t, *t.Query
		query.Attempts = 1
		table.Query = &query
		r.once[t] = &table
	}
	return r.once[t]
}

package sink

import (
	"context"

	"pgreshard/pg"
)

// heldChange is a change as it is routed, in its table's column order.
type heldChange struct {
	table    *Table
	kind     pg.Op
	old, new pg.Row
	n        int64 // its number within the transaction
}

// maxHeld bounds what waits for the end of one source transaction, in bytes; beyond it keys are asked at once.
const maxHeld = 64 << 20

// hold keeps a change, and with it every later change of its table, until the transaction ends: the translation of a
// key is what the mapping says there, and the mapping row may come after the row that needs it.
func (r *router) hold(ctx context.Context, c heldChange) error {
	o := op{old: c.old, new: c.new}
	r.held = append(r.held, c)
	r.holding[c.table] = true
	if r.heldFor += o.bytes(); r.heldFor > maxHeld {
		return r.letGo(ctx)
	}
	return nil
}

// letGo routes what was held, in its order.
func (r *router) letGo(ctx context.Context) error {
	if len(r.held) == 0 {
		return nil
	}
	held, n := r.held, r.n
	r.held, r.heldFor, r.ending = nil, 0, true
	clear(r.holding)
	for _, c := range held {
		r.n = c.n
		if err := r.apply(ctx, c); err != nil {
			return err
		}
	}
	r.n, r.ending = n, false
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

package sink

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// router reads the blocks in log order and gives every shard its part of each transaction.
type router struct {
	*Stream
	release  func(*pg.Block)
	bindings map[*pg.Relation]*binding
	units    []unit // by shard: routed, not handed over

	seq     int64        // counts changes and boundaries
	joints  int64        // seq of the last op whose outcome shards must agree on
	tx      *pg.Tx       // the open source transaction
	n       int64        // number of the change within it
	skip    []bool       // by shard: it has this transaction already
	ahead   bool         // some shard does
	urgent  bool         // commit everywhere at its end
	all     []int        // every shard's number
	ending  bool         // the open transaction is at its end: nothing is held any more
	held    []heldChange // changes of the open transaction that wait for its end
	holding map[*Table]bool
	once    map[*Table]*Table // tables with a lookup, asked once
	heldFor int               // bytes
	source  *pgx.Conn
	scratch []pg.Datum
}

func newRouter(s *Stream, release func(*pg.Block)) *router {
	return &router{Stream: s, release: release, bindings: map[*pg.Relation]*binding{}, holding: map[*Table]bool{}, once: map[*Table]*Table{}, units: make([]unit, len(s.appliers)),
		skip: make([]bool, len(s.appliers)), all: all(len(s.appliers))}
}

func (r *router) run(ctx context.Context, blocks <-chan *pg.Block) error {
	defer func() { pg.Close(r.source) }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, ok := <-blocks:
			if !ok {
				for _, a := range r.appliers {
					close(a.queue)
				}
				return nil
			}
			if err := r.block(ctx, b); err != nil {
				return err
			}
		}
	}
}

func (r *router) block(ctx context.Context, b *pg.Block) error {
	for i := range b.Changes {
		r.seq++
		if err := r.change(ctx, &b.Changes[i]); err != nil {
			return err
		}
	}
	if b.Idle != 0 {
		r.seq++
		r.boundary(b.Idle, false)
	}
	return r.handOver(ctx, b)
}

// handOver gives every shard what was routed; the block is released when the last shard has executed its part.
func (r *router) handOver(ctx context.Context, b *pg.Block) error {
	var left atomic.Int32
	left.Store(int32(len(r.units)))
	free := func() {
		if left.Add(-1) == 0 {
			r.release(b)
		}
	}
	for shard := range r.units {
		r.units[shard].free = free
		if err := r.push(ctx, shard); err != nil {
			return err
		}
	}
	return nil
}

func (r *router) push(ctx context.Context, shard int) error {
	u := r.units[shard]
	u.seq = r.seq
	r.units[shard] = unit{}
	select {
	case r.appliers[shard].queue <- u:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call runs fn on each of the shards at this very place in the stream, inside the open destination transaction, and
// waits for all of them.
func (r *router) call(ctx context.Context, shards []int, fn func(ctx context.Context, a *applier) error) error {
	// A shard may be about to commit something that others must have executed first: they need their part for that.
	ready := shards
	if r.joints > r.gate.low() {
		ready = r.all
	}
	for _, shard := range ready {
		if err := r.push(ctx, shard); err != nil {
			return err
		}
	}
	done := make(chan error, len(shards))
	for _, shard := range shards {
		select {
		case r.appliers[shard].queue <- unit{call: fn, done: done}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for range shards {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *router) change(ctx context.Context, c *pg.Change) error {
	switch c.Op {
	case pg.OpBegin:
		r.begin(c.Tx)
		return nil
	case pg.OpCommit:
		if err := r.letGo(ctx); err != nil {
			return err
		}
		r.boundary(c.Tx.End, r.urgent)
		r.tx, r.urgent = nil, false
		return nil
	case pg.OpMessage:
		r.urgent = r.urgent || c.Message.Transactional && c.Message.Prefix == MessagePrefix
		return nil
	case pg.OpTruncate:
		r.n++
		if err := r.letGo(ctx); err != nil {
			return err
		}
		return r.truncate(ctx, c.Truncate)
	}
	r.n++
	b, err := r.binding(c.Relation)
	if err != nil || b == nil || r.tx.Commit < b.table.StartsAt {
		return err
	}
	old, new := b.old(c), b.row(c.New)
	if c.OldFull && new != nil {
		new = completed(new, old)
	}
	return r.apply(ctx, heldChange{table: b.table, kind: c.Op, old: old, new: new, n: r.n})
}

// apply routes a change, or holds it until its transaction ends: its key's mapping row may come later in it.
func (r *router) apply(ctx context.Context, c heldChange) error {
	if r.holding[c.table] {
		return r.hold(ctx, c)
	}
	route := r.strict
	if r.tx.Commit <= c.table.Forgive {
		route = r.forgiving
	}
	err := route(ctx, c.table, c.kind, c.old, c.new)
	if lookup.Missing(err) != nil && !r.ending {
		return r.hold(ctx, c)
	}
	return err
}

// begin finds the shards that have the transaction already: their checkpoint, an end LSN, is beyond its commit LSN.
func (r *router) begin(tx *pg.Tx) {
	r.tx, r.n, r.ahead = tx, 0, false
	for i, a := range r.appliers {
		r.skip[i] = tx.Commit < a.ahead
		r.ahead = r.ahead || r.skip[i]
	}
}

// boundary tells every shard that is not ahead of it that a position was reached at which it may commit.
func (r *router) boundary(end pg.LSN, urgent bool) {
	for shard, a := range r.appliers {
		if end <= a.ahead {
			continue
		}
		u := &r.units[shard]
		o := op{kind: opBoundary, end: end, urgent: urgent, seq: r.seq, joints: r.joints}
		if n := len(u.ops); n > 0 && u.ops[n-1].kind == opBoundary {
			o.urgent = o.urgent || u.ops[n-1].urgent
			u.ops[n-1] = o
		} else {
			u.ops = append(u.ops, o)
		}
	}
}

// binding finds how a relation is written; nil where the move does not follow it.
func (r *router) binding(rel *pg.Relation) (*binding, error) {
	if b, ok := r.bindings[rel]; ok {
		return b, nil
	}
	t := r.Tables[rel.OID]
	if t == nil {
		return nil, &SchemaError{Table: rel.Name, What: "the stream carries a table that was not there when the move was made"}
	}
	b, err := bind(t, rel)
	if err == nil {
		r.bindings[rel] = b
	}
	return b, err
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
		if c.Relation.Columns[i].Key {
			out[b.order[i]] = d
		}
	}
	return out
}

// completed fills what the new row does not carry from a whole old one.
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

// add gives an op to a shard, unless the shard has this transaction already.
func (r *router) add(shard layout.Shard, o op) {
	if r.skip[shard] {
		return
	}
	o.at = r.tx.Commit
	u := &r.units[shard]
	u.ops = append(u.ops, o)
	u.bytes += o.bytes()
}

// place names the shard of a row's key, translating it where the rule says so by asking at this place in the stream.
func (r *router) place(ctx context.Context, t *Table, row pg.Row) (layout.Shard, error) {
	r.scratch = r.scratch[:0]
	for _, k := range t.RuleKey {
		if row[k].Kind == pg.Unchanged {
			return 0, &PlaceError{Table: t.Source, At: r.tx.Commit, Err: fmt.Errorf(
				"the sharding key was not logged with the row; hint: ALTER TABLE %s REPLICA IDENTITY FULL on the source", t.Source.SQL())}
		}
		r.scratch = append(r.scratch, row[k])
	}
	route := t
	if t.Query != nil && !r.ending { // a miss is no failure yet
		route = r.askingOnce(t)
	}
	shard, err := r.Router.Place(ctx, route, r.scratch, asker{r: r, table: t})
	if e, ok := err.(*PlaceError); ok {
		e.At = r.tx.Commit
	}
	return shard, err
}

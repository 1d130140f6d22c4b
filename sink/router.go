package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// router reads the blocks in log order and gives every shard its part of each transaction.
type router struct {
	*Stream
	release  func(*pg.Block)
	bindings map[uint32]*binding // by OID, of the relation as described last
	units    []unit              // by shard: routed, not handed over

	seq     int64        // counts changes and boundaries
	joints  int64        // seq of the last op whose outcome shards must agree on
	tx      *pg.Tx       // the open source transaction
	n       int64        // number of the change within it
	skip    []bool       // by shard: it has this transaction already
	ahead   bool         // some shard does
	past    bool         // every shard does
	urgent  bool         // commit everywhere at its end
	all     []int        // every shard's number
	ending  bool         // the open transaction is at its end: nothing is held any more
	held    []heldChange // changes of the open transaction that wait for its end
	holding map[*Table]bool
	once    map[*Table]*Table // tables with a lookup, asked once
	heldFor int               // bytes
	leaving []leaving         // mapping rows the open transaction deletes
	remaps  bool              // the present change is an update that changes what lookups read

	loses     bool                // the open transaction takes omnisharded mapping rows away
	lost      map[*Table]*keySet  // keys that lose their mapping rows in the open transaction
	decided   map[string]decision // by table and key: what rows without translation are placed by in the open transaction
	rehomings []*rehoming         // what the open transaction's end has to look at
	homeless  bool                // rows were found that have no mapping row
	unsettled bool                // not every shard has committed what was decided by asking all of them
	pass      int64               // how often it has done so
	fed       map[int][]*Table
	mappings  []*Table // those that lookups read
	source    *pgx.Conn
	paused    *Paused
	reached   pg.LSN // everything that commits before it has come
	scratch   []pg.Datum
	kept      []bool // by shard: its unit holds positions that were not handed over
	given     []bool // by shard: it has a part of the present block already, which must live as long as that
}

func newRouter(s *Stream, release func(*pg.Block)) *router {
	n := len(s.appliers)
	r := &router{
		Stream: s, release: release, bindings: map[uint32]*binding{}, holding: map[*Table]bool{}, once: map[*Table]*Table{}, decided: map[string]decision{},
		lost: map[*Table]*keySet{}, fed: map[int][]*Table{}, units: make([]unit, n), skip: make([]bool, n), kept: make([]bool, n), given: make([]bool, n), all: all(n),
	}
	for _, t := range s.Tables {
		if len(t.Feeds) > 0 {
			r.mappings = append(r.mappings, t)
		}
	}
	return r
}

func (r *router) run(ctx context.Context, blocks <-chan *pg.Block) error {
	defer func() { pg.Close(r.source); r.endPause() }()
	tick := time.NewTicker(quietCommit / 10)
	defer tick.Stop()
	for {
		pauses := r.pauses
		if r.paused != nil { // one at a time
			pauses = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case r.paused = <-pauses:
			if err := r.standStillHere(ctx); err != nil {
				return err
			}
		case <-tick.C:
			if err := r.pushKept(ctx, false); err != nil {
				return err
			}
		case b, ok := <-blocks:
			if !ok {
				return r.closeQueues(ctx)
			}
			switch err := r.block(ctx, b); {
			case errors.Is(err, errStopAt):
				r.stopped.Store(true)
				if err := r.handOver(ctx, b); err != nil {
					return err
				}
				// Also those that got no rows: what follows may not place rows as it did until here, and must not come to them again.
				if err := r.commitAll(ctx); err != nil {
					return err
				}
				return r.closeQueues(ctx)
			case err != nil:
				return err
			}
		}
	}
}

// errStopAt: the stream was asked to go no further.
var errStopAt = errors.New("the stream is at the position it was to stop at")

func (r *router) closeQueues(ctx context.Context) error {
	if err := r.pushKept(ctx, true); err != nil {
		return err
	}
	for _, a := range r.appliers {
		close(a.queue)
	}
	return nil
}

func (r *router) block(ctx context.Context, b *pg.Block) error {
	if err := r.prefetch(ctx, b); err != nil {
		return err
	}
	for i := range b.Changes {
		if err := r.settleBefore(ctx, b.Changes[i:]); err != nil {
			return err
		}
		r.seq++
		if err := r.change(ctx, &b.Changes[i]); err != nil {
			return err
		}
	}
	if b.Idle != 0 {
		r.seq++
		r.boundary(b.Idle, false)
		r.reached = max(r.reached, b.Idle)
	}
	if err := r.handOver(ctx, b); err != nil {
		return err
	}
	return r.standStillHere(ctx)
}

func (r *router) change(ctx context.Context, c *pg.Change) error {
	switch c.Op {
	case pg.OpBegin:
		if r.StopAt != 0 && c.Tx.Commit >= r.StopAt {
			return errStopAt
		}
		if err := r.standStill(ctx, c.Tx.Commit); err != nil {
			return err
		}
		r.begin(c.Tx)
		return nil
	case pg.OpCommit:
		if err := r.letGo(ctx); err != nil {
			return err
		}
		if r.loses && r.together() { // a replay of another stream could not tell what its rows were placed by
			return ErrRemapped
		}
		r.noteLost()
		r.forgetLeaving()
		r.boundary(c.Tx.End, r.urgent)
		r.tx, r.urgent, r.reached = nil, false, c.Tx.End
		return nil
	case pg.OpMessage:
		r.urgent = r.urgent || c.Message.Transactional && c.Message.Prefix == MessagePrefix
		return nil
	}
	if r.past { // a key of it might have no place any more
		return nil
	}
	r.n++
	if c.Op == pg.OpTruncate {
		return r.apply(ctx, heldChange{kind: c.Op, truncate: c.Truncate, n: r.n})
	}
	b, err := r.binding(c.Relation, r.tx.Commit)
	if err != nil || b == nil || r.tx.Commit < b.table.StartsAt {
		return err
	}
	old, new := b.old(c), b.row(c.New)
	if old != nil && new != nil {
		new = completed(new, old)
	}
	return r.apply(ctx, heldChange{table: b.table, kind: c.Op, old: old, new: new, n: r.n})
}

// begin finds the shards that have the transaction already: their checkpoint, an end LSN, is beyond its commit LSN.
func (r *router) begin(tx *pg.Tx) {
	r.tx, r.n, r.ahead, r.past, r.pass = tx, 0, false, true, 0
	r.loses = false
	clear(r.decided)
	clear(r.lost)
	for _, a := range r.appliers {
		a.rehomed = 0
	}
	for i, a := range r.appliers {
		r.skip[i] = tx.Commit < a.ahead
		r.ahead = r.ahead || r.skip[i]
		r.past = r.past && r.skip[i]
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

// add gives an op to a shard, unless the shard has this transaction already.
func (r *router) add(shard layout.Shard, o op) {
	if r.skip[shard] {
		return
	}
	o.at = r.tx.Commit
	o.remaps = r.remaps && o.kind == opUpdate
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
	r.unsettled = r.unsettled || t.AskAll && !t.WithMapping
	route := t
	if t.Query != nil && !r.ending { // a miss is no failure yet
		route = r.askingOnce(t)
	}
	shard, err := r.Router.Place(ctx, route, r.scratch, r.asker(ctx, t))
	if lookup.Missing(err) != nil && r.ending && r.Settle != nil {
		if err := r.Settle(ctx, t); err != nil {
			return 0, err
		}
		shard, err = r.Router.Place(ctx, route, r.scratch, r.asker(ctx, t))
	}
	if e, ok := err.(*PlaceError); ok {
		e.At = r.tx.Commit
	}
	return shard, err
}

package sink

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/pg"
)

// quietCommit is the longest a position waits for its checkpoint on a shard that gets no rows.
const quietCommit = time.Second

// unit is what the router hands to one shard: ops in log order, or a call to run at this very place in them.
type unit struct {
	ops     []op
	bytes   int
	seq     int64                                 // the router's sequence number after these ops
	call    func(context.Context, *applier) error // runs inside the open destination transaction
	commits bool                                  // commit here, instead of a call
	done    chan error
	free    func() // called once the ops are executed; nil for none
}

// applier owns one shard's connection: it gathers ops and commits them at ends of source transactions.
type applier struct {
	stream  *Stream
	shard   layout.Shard
	conn    *pgx.Conn
	queue   chan unit
	emptied chan []op  // for the router
	gone    chan error // the session that looks at its standbys broke
	owed    chan error // of a call whose answer was lost with the shard

	at      pg.LSN // the shard's checkpoint, as committed
	open    bool   // a destination transaction is open
	dirty   bool   // it has written rows
	saved   bool   // it has a savepoint to go back to
	ops     []op   // taken and not executed
	bytes   int
	since   time.Time // when the first of them was taken
	seq     int64
	frees   []func()
	pending *op // last boundary executed and not committed: nothing but ops of its transactions is open
	last    time.Time

	rehomed    int64             // images left by mapping changes of the open source transaction
	prepared   map[string]string // SQL to statement name on this connection
	nextName   int
	durable    atomic.Uint64 // at, for others to read
	flushed    atomic.Uint64 // the checkpoint one of its standbys has flushed
	replicated atomic.Bool   // it has standbys
	absent     atomic.Bool   // it was lost in this run
	secured    *secured
	ahead      pg.LSN // checkpoint at start
}

// run applies until the queue is closed or anything fails; what is not committed then is rolled back by the server.
func (a *applier) run(ctx context.Context) error {
	err := a.apply(ctx)
	if err != nil && ctx.Err() == nil && a.lost(err) {
		return a.away(ctx, err)
	}
	return err
}

func (a *applier) apply(ctx context.Context) error {
	tick := time.NewTicker(quietCommit / 4)
	defer tick.Stop()
	for {
		if len(a.ops) > 0 && (len(a.queue) == 0 || a.bytes >= a.stream.batchBytes || time.Since(a.since) >= a.stream.batchDelay) {
			if err := a.flush(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case u, ok := <-a.queue:
			if !ok {
				return a.finish(ctx)
			}
			if err := a.take(ctx, u); err != nil {
				return err
			}
		case err := <-a.gone:
			pg.Close(a.conn)
			return err
		case <-tick.C:
			if err := a.commitQuiet(ctx); err != nil {
				return err
			}
		}
	}
}

// finish commits what ended at a boundary when the stream ends in order. Where a transaction is written in part, the
// stream was cut within it, and it is rolled back.
func (a *applier) finish(ctx context.Context) error {
	if err := a.flush(ctx); err != nil || a.pending == nil || a.dirty {
		return err
	}
	return a.commit(ctx)
}

func (a *applier) take(ctx context.Context, u unit) error {
	if u.done == nil {
		if len(a.ops) == 0 {
			a.since = time.Now()
		}
		a.ops = append(a.ops, u.ops...)
		a.giveBack(u.ops)
		a.bytes += u.bytes
		a.seq = u.seq
		if u.free != nil {
			a.frees = append(a.frees, u.free)
		}
		if len(a.ops) == 0 {
			a.settled()
		}
		return nil
	}
	err := a.answer(ctx, u)
	if err != nil && a.lost(err) {
		a.owed = u.done
		return err
	}
	u.done <- err
	return err
}

// answer runs what the router waits for.
func (a *applier) answer(ctx context.Context, u unit) error {
	if u.commits {
		return a.commitNow(ctx)
	}
	err := a.flush(ctx)
	if err == nil {
		err = a.begin(ctx)
	}
	if err == nil {
		answered := a.stream.counters.asks(a.shard)
		err = u.call(ctx, a)
		answered()
	}
	a.dirty = true
	return err
}

// giveBack lets the router fill a slice again that was copied from.
func (a *applier) giveBack(ops []op) {
	if cap(ops) == 0 || cap(ops) > 4096 {
		return
	}
	clear(ops)
	select {
	case a.emptied <- ops[:0]:
	default:
	}
}

// settled says that everything taken is executed: its memory is given back and shards that wait for this one go on.
func (a *applier) settled() {
	for _, free := range a.frees {
		free()
	}
	clear(a.ops)
	a.ops, a.frees, a.bytes = a.ops[:0], a.frees[:0], 0
	a.stream.gate.passed(int(a.shard), a.seq)
}

// flush executes what was taken: up to the last boundary it is committed, what follows stays open.
func (a *applier) flush(ctx context.Context) error {
	cut := 0
	for i := range a.ops {
		if a.ops[i].kind == opBoundary {
			cut = i + 1
		}
	}
	if cut > 0 {
		boundary := a.ops[cut-1]
		boundary.urgent = false
		rows := a.dirty
		for i := range a.ops[:cut] {
			boundary.urgent = boundary.urgent || a.ops[i].urgent
			rows = rows || a.ops[i].kind != opBoundary
		}
		if err := a.execute(ctx, a.ops[:cut], &boundary, rows || boundary.urgent); err != nil {
			return err
		}
	}
	if cut < len(a.ops) {
		if err := a.execute(ctx, a.ops[cut:], nil, false); err != nil {
			return err
		}
	}
	a.settled()
	return nil
}

// execute writes ops in the open destination transaction; at a boundary it commits. Where no other shard has a say the
// commit rides in the same round trip.
func (a *applier) execute(ctx context.Context, ops []op, boundary *op, commit bool) error {
	start := time.Now()
	statements := planned(ops)
	joined := boundary != nil && commit && boundary.joints > a.stream.gate.low()
	b := a.batch()
	if len(statements) > 0 || commit {
		a.sendBegin(b)
	}
	if len(statements) > 0 {
		if a.saved {
			b.simple("release savepoint batch")
		}
		b.simple("savepoint batch")
		a.saved, a.dirty = true, true
	}
	for i := range statements {
		b.send(&statements[i])
	}
	if commit && !joined {
		if err := a.stopHere(ctx, boundary); err != nil {
			return err
		}
		a.sendCommit(b, boundary)
	}
	if err := b.run(ctx); err != nil {
		if err = a.oneByOne(ctx, ops, err); err != nil {
			return err
		}
		joined = commit
	}
	a.stream.counters.executed(a.shard, ops, time.Since(start))
	switch {
	case boundary == nil:
		return nil
	case !commit:
		a.pending = boundary
		return nil
	case joined:
		a.pending = boundary
		return a.commit(ctx)
	}
	a.committed(boundary)
	return nil
}

func (a *applier) begin(ctx context.Context) error {
	if a.open {
		return nil
	}
	b := a.batch()
	a.sendBegin(b)
	return b.run(ctx)
}

func (a *applier) sendBegin(b *batch) {
	if !a.open {
		b.simple("begin")
		a.open = true
	}
}

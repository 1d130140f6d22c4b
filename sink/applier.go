package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
)

// quietCommit is the longest a position waits for its checkpoint on a shard that gets no rows.
const quietCommit = time.Second

// unit is what the router hands to one shard: ops in log order, or a call to run at this very place in them.
type unit struct {
	ops   []op
	bytes int
	seq   int64                                 // the router's sequence number after these ops
	call  func(context.Context, *applier) error // runs inside the open destination transaction
	done  chan error
	free  func() // called once the ops are executed; nil for none
}

// applier owns one shard's connection: it gathers ops and commits them at ends of source transactions.
type applier struct {
	stream *Stream
	shard  layout.Shard
	conn   *pgx.Conn
	queue  chan unit

	at      pg.LSN // the shard's checkpoint, as committed
	open    bool   // a destination transaction is open
	dirty   bool   // it has written rows
	saved   bool   // it has a savepoint to go back to
	ops     []op   // taken and not executed
	bytes   int
	seq     int64
	frees   []func()
	pending *op // last boundary executed and not committed: nothing but ops of its transactions is open
	last    time.Time

	prepared map[string]string // SQL to statement name on this connection
	nextName int
	durable  atomic.Uint64 // at, for others to read
	ahead    pg.LSN        // checkpoint at start
}

// run applies until the queue is closed or anything fails; what is not committed then is rolled back by the server.
func (a *applier) run(ctx context.Context) error {
	tick := time.NewTicker(quietCommit / 4)
	defer tick.Stop()
	for {
		if len(a.ops) > 0 && (a.bytes >= a.stream.batchBytes || len(a.queue) == 0) {
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
		case <-tick.C:
			if err := a.commitQuiet(ctx); err != nil {
				return err
			}
		}
	}
}

// finish commits what ended at a boundary when the stream ends in order.
func (a *applier) finish(ctx context.Context) error {
	if err := a.flush(ctx); err != nil || a.pending == nil {
		return err
	}
	return a.commit(ctx)
}

func (a *applier) take(ctx context.Context, u unit) error {
	if u.call == nil {
		a.ops = append(a.ops, u.ops...)
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
	err := a.flush(ctx)
	if err == nil {
		err = a.begin(ctx)
	}
	if err == nil {
		err = u.call(ctx, a)
	}
	a.dirty = true
	u.done <- err
	return err
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

// oneByOne does ops again in their order, each alone, after their batch failed because of rows: either it was the
// order within the batch, and this succeeds, or the one that fails is named.
func (a *applier) oneByOne(ctx context.Context, ops []op, cause error) error {
	if !rowsRefused(cause) {
		return checkpoints.Refused(cause)
	}
	if _, err := a.conn.Exec(ctx, "rollback to savepoint batch"); err != nil {
		return errors.Join(cause, err)
	}
	for i := range ops {
		statements := planned(ops[i : i+1])
		b := a.batch()
		for j := range statements {
			b.send(&statements[j])
		}
		if err := b.run(ctx); err != nil {
			return a.diverged(&ops[i], err)
		}
	}
	return nil
}

// rowsRefused says that a statement failed because of which rows are there: a count that is off, a unique or an
// exclusion constraint, an ON CONFLICT that would touch a row twice.
func rowsRefused(err error) bool {
	switch pg.Code(err) {
	case checkpoints.CodeRows, "23505", "23P01", "21000":
		return true
	}
	return false
}

func (a *applier) diverged(o *op, err error) error {
	if !rowsRefused(err) {
		return checkpoints.Refused(err)
	}
	e := &DivergedError{Table: o.table.Source, Shard: a.shard, At: o.at, Key: keyText(o.find(), o.table.Key)}
	switch o.kind {
	case opUpdate:
		if o.table.loose() {
			return &carefulError{table: o.table}
		}
		e.What = "update of a row that is not there"
	case opDelete:
		e.What = "delete of a row that is not there"
	default:
		e.What = "insert of a row that is there already"
		e.Err = fmt.Errorf("SQLSTATE %s", pg.Code(err))
	}
	if o.kind == opUpdate && pg.Code(err) != checkpoints.CodeRows {
		e.What, e.Err = "update to a unique value that is there already", fmt.Errorf("SQLSTATE %s", pg.Code(err))
	}
	if len(o.table.Guard) > 0 && o.kind == opUpdate {
		return &MappingChangedError{Table: o.table.Source, At: o.at}
	}
	a.stream.counters.zeroRows(a.shard)
	return e
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

// sendCommit moves the checkpoint and commits; moving it raises unless it is where this transaction began.
func (a *applier) sendCommit(b *batch, boundary *op) {
	s := a.stream.Checkpoint
	b.send(&statement{sql: checkpoints.AdvanceSQL, types: make([]uint32, 5), params: [][]byte{
		[]byte(s.Move), fmt.Append(nil, s.Source), []byte(a.at.String()), []byte(boundary.end.String()), fmt.Append(nil, s.Epoch)}})
	b.simple("commit")
}

// commit waits until every shard agrees with what was done up to the pending boundary, then commits.
func (a *applier) commit(ctx context.Context) error {
	boundary := a.pending
	a.stream.gate.passed(int(a.shard), boundary.seq)
	if err := a.stream.gate.wait(ctx, boundary.joints); err != nil {
		return err
	}
	b := a.batch()
	a.sendBegin(b)
	a.sendCommit(b, boundary)
	if err := b.run(ctx); err != nil {
		return checkpoints.Refused(err)
	}
	a.committed(boundary)
	return nil
}

func (a *applier) committed(boundary *op) {
	a.open, a.dirty, a.saved, a.pending = false, false, false, nil
	a.at, a.last = boundary.end, time.Now()
	a.durable.Store(uint64(a.at))
	a.stream.committed()
}

// commitQuiet records, at most once a second, how far a shard is that got no rows.
func (a *applier) commitQuiet(ctx context.Context) error {
	if a.pending == nil || len(a.ops) > 0 || a.dirty || a.pending.end <= a.at || time.Since(a.last) < quietCommit {
		return nil
	}
	return a.commit(ctx)
}

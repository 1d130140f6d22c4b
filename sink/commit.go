package sink

import (
	"context"
	"fmt"
	"time"

	"pgreshard/checkpoints"
)

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
	if err := a.stopHere(ctx, boundary); err != nil {
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

// stopHere lets a test end the stream just before a commit.
func (a *applier) stopHere(ctx context.Context, boundary *op) error {
	if a.stream.beforeCommit == nil {
		return nil
	}
	return a.stream.beforeCommit(ctx, a.shard, boundary.end)
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

package sink

import (
	"context"
	"sync/atomic"
	"time"

	"pgreshard/pg"
)

// handOver gives every shard what was routed; the block is released when the last shard has executed its part. Positions
// alone, to which nothing of the block belongs, are kept for a shard that is busy, so that the others need not wait for it.
func (r *router) handOver(ctx context.Context, b *pg.Block) error {
	var left atomic.Int32
	left.Store(int32(len(r.units)))
	free := func() {
		if left.Add(-1) == 0 {
			r.release(b)
		}
	}
	for shard := range r.units {
		if r.units[shard].bytes == 0 && !r.given[shard] && r.busy(shard) {
			r.kept[shard] = true
			free()
			continue
		}
		r.units[shard].free = free
		if err := r.push(ctx, shard, r.seq); err != nil {
			return err
		}
		r.given[shard] = false
	}
	return nil
}

func (r *router) busy(shard int) bool {
	queue := r.appliers[shard].queue
	return len(queue) == cap(queue)
}

// pushKept gives shards what was kept for them, those that are busy only where whole is set.
func (r *router) pushKept(ctx context.Context, whole bool) error {
	for shard, kept := range r.kept {
		if kept && (whole || !r.busy(shard)) {
			if err := r.push(ctx, shard, r.seq); err != nil {
				return err
			}
		}
	}
	return nil
}

// pushOften is how often others are looked after while a busy shard is waited for.
const pushOften = 5 * time.Millisecond

// push gives a shard what was routed to it, which is its whole part up to seq. A shard that is busy may wait at the gate for another one
// to execute what is still here: meanwhile those that are not get their parts.
func (r *router) push(ctx context.Context, shard int, seq int64) error {
	u := r.part(shard, seq)
	for {
		select {
		case r.appliers[shard].queue <- u:
			return nil
		default:
		}
		for other := range r.units {
			if other != shard && !r.busy(other) && (r.kept[other] || len(r.units[other].ops) > 0) {
				r.appliers[other].queue <- r.part(other, seq)
			}
		}
		select {
		case r.appliers[shard].queue <- u:
			return nil
		case <-time.After(pushOften):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// part takes what was routed to a shard.
func (r *router) part(shard int, seq int64) unit {
	u := r.units[shard]
	u.seq = seq
	r.given[shard] = r.given[shard] || len(u.ops) > 0
	r.units[shard], r.kept[shard] = unit{}, false
	select { // what the shard has emptied is filled again
	case r.units[shard].ops = <-r.appliers[shard].emptied:
	default:
	}
	return u
}

// call runs fn on each of the shards at this very place in the stream, inside the open destination transaction, and
// waits for all of them. After an error some may still run it: what fn writes must not be read then.
func (r *router) call(ctx context.Context, shards []int, fn func(ctx context.Context, a *applier) error) error {
	// A shard may be about to commit something that others must have executed first: they need their part for that.
	ready := shards
	if r.joints > r.gate.low() {
		ready = r.all
	}
	for _, shard := range ready { // the present change is not routed yet
		if err := r.push(ctx, shard, r.seq-1); err != nil {
			return err
		}
	}
	return r.answers(ctx, shards, unit{call: fn})
}

// answers gives shards a unit and waits until all of them have answered it.
func (r *router) answers(ctx context.Context, shards []int, u unit) error {
	u.done = make(chan error, len(shards))
	for _, shard := range shards {
		select {
		case r.appliers[shard].queue <- u:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for range shards {
		select {
		case err := <-u.done:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

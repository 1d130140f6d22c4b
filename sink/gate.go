package sink

import (
	"context"
	"sync"
)

// gate holds a shard's commit back until every shard has executed what came before. Positions here are the router's
// own sequence numbers, one a change, the same for all shards.
type gate struct {
	mu       sync.Mutex
	executed []int64
	changed  chan struct{}
}

func newGate(shards int) *gate {
	return &gate{executed: make([]int64, shards), changed: make(chan struct{})}
}

// passed says that a shard has executed everything up to seq, with the outcome that was expected.
func (g *gate) passed(shard int, seq int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if seq > g.executed[shard] {
		g.executed[shard] = seq
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// wait returns when every shard has passed seq.
func (g *gate) wait(ctx context.Context, seq int64) error {
	for {
		g.mu.Lock()
		low, changed := lowest(g.executed), g.changed
		g.mu.Unlock()
		if low >= seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// low is the position every shard has passed.
func (g *gate) low() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return lowest(g.executed)
}

func lowest(all []int64) int64 {
	low := all[0]
	for _, n := range all[1:] {
		low = min(low, n)
	}
	return low
}

package replicator

import (
	"sync/atomic"

	"pgreshard/pg"
)

const (
	blockBytes   = 256 << 10 // a block is handed over at this size at the latest
	defaultQueue = 16 << 20
	queueBlocks  = 256 // blocks of an idle source are small: their number is bounded too
)

// queue is what lies between the connection and the consumer, bounded by the bytes its blocks hold until they are
// released. It has one producer.
type queue struct {
	blocks chan *pg.Block
	freed  chan struct{} // a token when bytes came back
	limit  int64
	used   atomic.Int64
}

func newQueue(limit int) *queue {
	return &queue{blocks: make(chan *pg.Block, queueBlocks), freed: make(chan struct{}, 1), limit: int64(limit)}
}

// reserve takes the bytes of a block where there is room. A block larger than the bound passes alone.
func (q *queue) reserve(b *pg.Block) bool {
	used := q.used.Load()
	if used > 0 && used+int64(b.Bytes) > q.limit {
		return false
	}
	q.used.Add(int64(b.Bytes))
	return true
}

func (q *queue) release(b *pg.Block) {
	q.used.Add(int64(-b.Bytes))
	b.Bytes = 0
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

// waiting says that the consumer has nothing left in hand.
func (q *queue) waiting() bool { return q.used.Load() == 0 }

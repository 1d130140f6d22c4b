package replicator

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"pgreshard/pg"
)

// Config says what to stream.
type Config struct {
	Shard       pg.Shard
	Slot        string
	Publication string
	// Start is the lowest durable checkpoint, or the slot's consistent point where there is none yet. Transactions
	// whose commit lies before it are not sent; one that commits exactly there is.
	Start pg.LSN
	// Temporary: Run makes the slot on its own session, with which it goes, and streams from there on; Start is not
	// looked at. Transactions that are open on the server are waited for as long as this.
	Temporary time.Duration
	// Lasting: the slot that Run makes outlives its session, on this server alone: no standby keeps it.
	Lasting bool
	// SystemID is the expected system identifier; empty: any.
	SystemID string
	// History is what is held of the source's changes; a server that has not all of it is not streamed from.
	History History
	// Began, where set, is told the timeline the server is on before anything is streamed from it.
	Began func(ctx context.Context, timeline int32) error
	// QueueBytes bounds what is received and not yet released; 16 MB where 0.
	QueueBytes int
	// StatusInterval is how often the server hears of us at least; where 0, a third of its wal_sender_timeout and at
	// most 10 s.
	StatusInterval time.Duration
}

// Stream is one run of a slot's changes. Take blocks from Blocks, Release each, and Confirm what has become durable.
type Stream struct {
	config Config
	queue  *queue

	confirmed   atomic.Uint64
	received    atomic.Uint64
	serverEnd   atomic.Uint64
	acked       atomic.Uint64
	lastMessage atomic.Int64 // Unix nanoseconds, 0 for none yet
	commitTime  atomic.Int64
}

// New makes a stream that Run runs, once.
func New(c Config) *Stream {
	return &Stream{config: c, queue: newQueue(cmp.Or(c.QueueBytes, defaultQueue))}
}

// Blocks delivers the changes in log order; it is closed when Run ends. Blocks that were delivered before an error
// are whole and good.
func (s *Stream) Blocks() <-chan *pg.Block { return s.queue.blocks }

// Release gives a block's bytes back to the queue's bound. What was in the block stays valid for who still holds it.
func (s *Stream) Release(b *pg.Block) { s.queue.release(b) }

// Confirm tells the server that everything before lsn is durable, within 100 ms. It never goes back. lsn is an end
// position (Tx.End, Block.Idle or Config.Start); one beyond what Blocks has delivered is told once it has been.
func (s *Stream) Confirm(lsn pg.LSN) { raise(&s.confirmed, lsn) }

// Stats is how far a stream is.
type Stats struct {
	Received    pg.LSN    // end of the last transaction received whole, or the last idle position
	ServerEnd   pg.LSN    // up to where the server has read its log, as it last said
	Confirmed   pg.LSN    // what the server was told is durable
	LastMessage time.Time // when anything was last heard, by our clock
	CommitTime  time.Time // when the last transaction received committed, by the source's clock
	Queued      int64     // bytes delivered and not released
}

// Stats may be called at any time.
func (s *Stream) Stats() Stats {
	return Stats{
		Received: pg.LSN(s.received.Load()), ServerEnd: pg.LSN(s.serverEnd.Load()), Confirmed: pg.LSN(s.acked.Load()),
		LastMessage: unixTime(s.lastMessage.Load()), CommitTime: unixTime(s.commitTime.Load()),
		Queued: s.queue.used.Load(),
	}
}

// Run streams until ctx ends or something fails; it returns ctx's error in the first case. It owns the connection:
// nothing else reads from or writes to it.
func (s *Stream) Run(ctx context.Context) error {
	defer close(s.queue.blocks)
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	return c.explain(ctx, c.run(ctx))
}

func unixTime(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// raise sets a position that only grows.
func raise(at *atomic.Uint64, lsn pg.LSN) {
	for {
		old := at.Load()
		if uint64(lsn) <= old || at.CompareAndSwap(old, uint64(lsn)) {
			return
		}
	}
}

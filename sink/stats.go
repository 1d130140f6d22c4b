package sink

import (
	"sync/atomic"
	"time"

	"pgreshard/layout"
)

// ShardStats is what a stream wrote to one shard since it was made; every figure only grows but LastBatch and LastTime.
type ShardStats struct {
	Inserted, Updated, Deleted, Transactions, Batches, ZeroRow int64
	ApplyTime                                                  time.Duration // spent waiting for the shard
	LastBatch                                                  int64         // ops
	LastTime                                                   time.Duration
	Waits                                                      time.Duration // for an answer of the shard now, 0 for none
}

type shardCounters struct {
	inserted, updated, deleted, transactions, batches, zeroRow, applyNanos, lastBatch, lastNanos, asked atomic.Int64
}

type counters struct{ shards []shardCounters }

func (c *counters) executed(shard layout.Shard, ops []op, took time.Duration) {
	s := &c.shards[shard]
	var inserted, updated, deleted, transactions int64
	for i := range ops {
		switch ops[i].kind {
		case opInsert, opUpsert:
			inserted++
		case opUpdate:
			updated++
		case opDelete, opDeleteAny:
			deleted++
		case opBoundary:
			transactions++
		}
	}
	s.inserted.Add(inserted)
	s.updated.Add(updated)
	s.deleted.Add(deleted)
	s.transactions.Add(transactions)
	if n := inserted + updated + deleted; n > 0 {
		s.batches.Add(1)
		s.applyNanos.Add(int64(took))
		s.lastBatch.Store(n)
		s.lastNanos.Store(int64(took))
	}
}

// asks notes that a shard is asked something, until the returned func is called.
func (c *counters) asks(shard layout.Shard) (answered func()) {
	asked := &c.shards[shard].asked
	asked.Store(time.Now().UnixNano())
	return func() { asked.Store(0) }
}

func (c *counters) zeroRows(shard layout.Shard) { c.shards[shard].zeroRow.Add(1) }

// Stats reads the counters of every shard.
func (s *Stream) Stats() []ShardStats {
	out := make([]ShardStats, len(s.counters.shards))
	for i := range out {
		c := &s.counters.shards[i]
		out[i] = ShardStats{Inserted: c.inserted.Load(), Updated: c.updated.Load(), Deleted: c.deleted.Load(),
			Transactions: c.transactions.Load(), Batches: c.batches.Load(), ZeroRow: c.zeroRow.Load(),
			ApplyTime: time.Duration(c.applyNanos.Load()), LastBatch: c.lastBatch.Load(), LastTime: time.Duration(c.lastNanos.Load())}
		if asked := c.asked.Load(); asked != 0 {
			out[i].Waits = time.Since(time.Unix(0, asked))
		}
	}
	return out
}

package sink

import (
	"sync/atomic"

	"pgreshard/pg"
)

type opKind byte

const (
	opInsert opKind = iota + 1
	opUpdate
	opDelete
	opUpsert    // an insert or complete update that may already be there
	opDeleteAny // a delete of a row that may be gone
	opTruncate
	opLost     // keys have lost their mapping rows
	opBoundary // a source transaction ended: here a destination transaction may commit
)

// op is one thing to do on one shard, in the order of the source's log.
type op struct {
	kind  opKind
	table *Table
	old   pg.Row // where the row is found, if not by new: in table column order
	new   pg.Row
	at    pg.LSN // commit LSN of the source transaction
	joint *joint // set where shards must agree on the outcome
	sql   string // opTruncate: the statement
	lost  *lostKeys

	remaps bool // opUpdate: known to change what lookups read

	end    pg.LSN // opBoundary: end LSN, the position to record
	urgent bool   // opBoundary: commit now even if no row came
	seq    int64  // opBoundary: the router's sequence number
	joints int64  // opBoundary: sequence number up to which joint ops must be settled before a commit
}

// joint is a delete asked of every shard, of which exactly one must hold the row. (An update by an identity that lacks
// the sharding key is settled by its own shard, but no shard may commit past it before: its row may be elsewhere.)
type joint struct {
	pending atomic.Int32
	hits    atomic.Int32
	loss    bool // a shard is ahead and may have deleted the row already: none may hold it
}

// opCost is what an op takes beyond its values, in bytes: itself, and its row's place and key in a plan.
const opCost = 256

// bytes is what an op counts for in a batch.
func (o *op) bytes() int {
	n := opCost
	if o.lost != nil {
		for key := range o.lost.keys {
			n += len(key) + 8
		}
	}
	for _, d := range o.new {
		n += len(d.Bytes) + 8
	}
	for _, d := range o.old {
		n += len(d.Bytes) + 8
	}
	return n
}

// find is the row that tells where the op's row is.
func (o *op) find() pg.Row {
	if o.old != nil {
		return o.old
	}
	return o.new
}

// rekeys says that an update changes the key its row is found by.
func (o *op) rekeys() bool {
	if o.kind != opUpdate || o.old == nil {
		return false
	}
	return changedIn(o.table.Key, o.old, o.new)
}

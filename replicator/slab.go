package replicator

import (
	"unsafe"

	"pgreshard/pg"
)

// Slab sizes: one allocation of each kind serves a few hundred rows of usual width.
const (
	slabBytes   = 128 << 10
	slabColumns = 4096
	slabChanges = 4096
	slabTxs     = 64
)

// What a block is charged for beyond the bytes of its values.
const (
	blockCost  = int(unsafe.Sizeof(pg.Block{}))
	changeCost = int(unsafe.Sizeof(pg.Change{}))
	columnCost = int(unsafe.Sizeof(pg.Datum{}))
	txCost     = int(unsafe.Sizeof(pg.Tx{}))
)

// slab is the memory blocks are cut from. Each piece is handed out once and never reused: what a consumer keeps stays
// valid, and the garbage collector takes a piece when the last row in it is gone. Blocks that are small share pieces.
type slab struct {
	free    []byte
	datums  []pg.Datum
	txs     []pg.Tx
	changes []pg.Change // of the block being filled, cut to what is filled; its capacity goes on into the next block
	size    int         // what the block being filled is charged
}

// keep copies a message.
func (s *slab) keep(msg []byte) []byte {
	n := len(msg)
	s.size += n
	if n > len(s.free) {
		if n > slabBytes/4 { // not worth giving up the rest of the piece
			return append(make([]byte, 0, n), msg...)
		}
		s.free = make([]byte, slabBytes)
	}
	b := s.free[:n:n]
	s.free = s.free[n:]
	copy(b, msg)
	return b
}

// columns gives room for one row; its columns are zero.
func (s *slab) columns(n int) pg.Row {
	s.size += n * columnCost
	if n > len(s.datums) || s.datums == nil {
		s.datums = make([]pg.Datum, max(n, slabColumns))
	}
	row := s.datums[:n:n]
	s.datums = s.datums[n:]
	return pg.Row(row)
}

func (s *slab) newTx(tx pg.Tx) *pg.Tx {
	s.size += txCost
	if len(s.txs) == 0 {
		s.txs = make([]pg.Tx, slabTxs)
	}
	t := &s.txs[0]
	s.txs = s.txs[1:]
	*t = tx
	return t
}

// add appends a change, still zero, to the block. The pointer is good until the next add.
func (s *slab) add() *pg.Change {
	s.size += changeCost
	if len(s.changes) == cap(s.changes) {
		grown := make([]pg.Change, len(s.changes), max(slabChanges, 2*len(s.changes)))
		copy(grown, s.changes)
		s.changes = grown
	}
	s.changes = s.changes[:len(s.changes)+1]
	return s.change()
}

// change is the last change added.
func (s *slab) change() *pg.Change { return &s.changes[len(s.changes)-1] }

// take ends the block being filled and begins the next one.
func (s *slab) take() *pg.Block {
	n := len(s.changes)
	b := &pg.Block{Changes: s.changes[:n:n], Bytes: s.size + blockCost}
	s.changes, s.size = s.changes[n:], 0
	return b
}

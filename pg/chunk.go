package pg

import "math"

// Copy says how the rows of one source table get into one destination table during the copy.
type Copy struct {
	From    *Table   // on the source: the ordinary table or leaf that holds the rows
	Into    *Table   // on the destination: the table they are written to, the root where From is a leaf
	Columns []string // in the order the rows have; generated columns are left out
	Key     []int    // where the sharding key's columns are in Columns, in the rule's order; empty for an omnisharded table
	Binary  bool     // rows pass in COPY's binary format, else as text
}

// ToTheEnd as a Chunk's To means: to the table's end, however far it has grown.
const ToTheEnd = math.MaxUint32

// Chunk is a range of blocks of one table's file, copied and marked as one. Its numbers mean these blocks only as
// long as the file is the one with Copy.From.Filenode and the chunks are of one and the same size in blocks.
type Chunk struct {
	Copy     *Copy
	Number   int // from 0, within its table
	From, To uint32
	Bytes    int64 // its share of the table's heap and TOAST: an estimate for progress
}

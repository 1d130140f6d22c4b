// Package sink is the one consumer of rows and changes: it places each on its shard and writes it there, together with
// the position or chunk mark it belongs to, in one transaction per shard.
//
// A Stream takes one source's changes: one goroutine routes them in log order, one goroutine a shard gathers source
// transactions into a destination transaction and commits it with the checkpoint. A Loader takes the rows of a copy.
//
// It does not know how rows were read, what a slot is, or which phase the move is in.
package sink

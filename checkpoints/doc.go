// Package checkpoints owns the bookkeeping tables in schema pgreshard: how far each shard is (positions), which chunks
// of a copy it holds, the epoch that says which worker may write, the layout record that says which layout serves, the
// journal of the move, and the outbox of rows on their way from one shard to another.
//
// It does not know what a position is used for, where rows go, or which step comes next.
package checkpoints

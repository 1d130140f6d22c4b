// Package verify compares the rows of a move's source with those of its destination, exactly: every row, every moved
// column, and every row's place.
//
// Per table each server computes, in one scan, the number of rows and the sums of their 128-bit hashes in 4,096
// buckets of the rows' keys. Sums add up over shards and do not depend on order, column order or collation. Only
// buckets that differ are fetched row by row and told apart into missing, extra, different and doubled rows; the
// sharding keys of every shard's rows are placed again and must name the shard they stand on. Findings are data: what
// to do about them is the caller's.
//
// It compares what each server shows now: the data must be quiet (frozen and drained), or every Node must name a
// snapshot of one and the same state. It does not know how rows moved.
package verify

// Package copier reads a source's tables under one exported snapshot: it splits them into chunks (ranges of blocks of
// one file), shares the chunks among workers, frames what COPY sends into rows, finds the bytes of the sharding key in
// each and hands both to a Loader.
//
// It owns the snapshot, the order of chunks, pacing between them and progress. It knows nothing of destinations: a
// Loader writes the rows and says when a chunk is held; which chunks are held already is known to the caller.
package copier

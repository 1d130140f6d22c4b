// Package replicator owns everything between a source's write-ahead log and pg.Change: the publication, the slot, the
// replication connection, decoding of pgoutput, and confirming to the server what has been made durable elsewhere.
//
// It knows nothing of shards or of where rows go. Confirm is its only input; who calls it promises that everything
// below that position is durable.
package replicator

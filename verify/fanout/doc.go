// Package fanout asks several shards for one answer: counts, sums, averages, least and greatest values of one table's
// rows, by group.
//
// Every shard is asked for its part at the same time, and where its nodes are is read anew for each question, so that
// one that was moved or has failed over is found by the next. The parts are merged by their groups: counts and sums
// add, least and greatest compare, and an average stays a sum and a count until it is divided, once, at the end.
// PostgreSQL does that arithmetic, on a node that has answered, so that it is exact for every type, and equality and
// order are the type's own. Two answers are compared there too.
//
// A shard that does not answer stops no other; the answer names it and is partial, whatever is done with it. The
// package only reads, and keeps nothing from one question to the next.
package fanout

// Package layout owns the rules that place a row on a shard: what they say (Spec), whether they can hold for the tables
// that are there (Compile), and the placement functions themselves (Rule.Place). A layout is a numbered set of shards
// plus these rules; copy, stream, verification and the route command all place through it, so a key has one shard.
//
// It is pure: no I/O, no SQL, no clock; but for Watch, which asks a worker which layout serves. It never translates a key (package lookup does) and does not know where a shard
// is or which layout serves.
//
// Hash placement gives the remainder that PostgreSQL's satisfies_hash_partition gives on a little-endian server, where
// char is signed (x86-64; that difference touches only the type "char" with values above 127).
package layout

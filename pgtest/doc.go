// Package pgtest gives tests, the demo and the benchmarks real PostgreSQL: clusters of a chosen version that live in
// their own directory and end with the process that asked for them, even when it is killed; a wire relay that sits
// between a client and a server and delays, stalls or cuts at a named message; a workload of concurrent writers that
// keeps a ledger of every commit acknowledged; and comparisons in plain SQL that use none of the product's code.
//
// It runs the server binaries it finds and never downloads any. Nothing of the product but package pg is known here,
// and the program itself uses it for `demo` only.
package pgtest

// Package lookup turns a key into its translated key: a cache bounded in bytes, one question in flight per key, many
// keys in one round trip, and the SQL that asks a server.
//
// It does not know where rows go: who asks (the Asker) decides which server answers and inside which transaction.
// Only answers are cached. That a key has no mapping is never remembered, because the row that gives it one may be
// committed the next moment.
package lookup

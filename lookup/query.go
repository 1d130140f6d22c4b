package lookup

import (
	"context"
	"fmt"
	"time"
)

// Query is one lookup_query of the configuration.
type Query struct {
	ID   int    // tells one query's keys from another's in the cache
	Name string // database.schema.table.column, for messages
	SQL  string // one statement, one parameter $1, one result column
	// Many, where it is not empty, takes an array of keys as $1 and gives rows of a key and its answer; a key without a row has
	// none. Keys whose texts differ are different then.
	Many     string
	Attempts int           // times a key without an answer is asked before it counts as missing; below 1 is 1
	Timeout  time.Duration // longest one round trip may take; 0: as long as the context allows
}

// Answer is what a server said about one key.
type Answer struct {
	Value []byte // the first row's column in text form; the asker's to give away, nil unless Rows > 0 and not Null
	Rows  int    // rows the query returned
	Null  bool   // the first row's column was NULL
}

// found says that the answer is a translation: exactly one row, and not NULL.
func (a Answer) found() bool { return a.Rows == 1 && !a.Null }

// Asker asks a server. It answers every key, in order, or fails as a whole.
type Asker interface {
	// Ask translates keys given in text form. It is called by one goroutine at a time per call of Translate or
	// TranslateMany, always the caller's own, so it may use the caller's connection and its open transaction.
	Ask(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error)
}

// AskerFunc makes an Asker of a function.
type AskerFunc func(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error)

// Ask calls f.
func (f AskerFunc) Ask(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error) {
	return f(ctx, q, keys)
}

// MissingError says that a key has no translation: its query returned no row, a NULL or several rows, each time it
// was asked. What the operator may do depends on who asked: in a copy the mapping row can still be added.
type MissingError struct {
	Query *Query
	Key   string // text form; not part of Error, which may reach a log
	Rows  int    // rows of the last answer; 0 too for a key that is NULL, which is never asked
	Null  bool   // the one row's column was NULL, or the key itself
}

// Error names the rule and what came back, never the key.
func (e *MissingError) Error() string {
	what := "returned no row for a key"
	switch {
	case e.Rows > 1:
		what = fmt.Sprintf("returned %d rows for one key", e.Rows)
	case e.Null && e.Rows == 0:
		what = "cannot be asked for a key that is NULL"
	case e.Null:
		what = "returned NULL for a key"
	}
	return fmt.Sprintf("lookup_query of %s %s", e.Query.Name, what)
}

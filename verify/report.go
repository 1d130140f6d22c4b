package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"pgreshard/pg"
	"pgreshard/verify/fanout"
)

// State is what came out for one table.
type State string

// The states of a table's comparison.
const (
	Clean   State = "clean"   // both sides were read whole and are equal, every row on its shard
	Differs State = "differs" // at least one row is not as it must be
	// Changed: the sums differed, and no row did when the rows were read: they were written or on their way meanwhile, so
	// nothing can be said.
	Changed State = "changed"
	Partial State = "partial" // a node did not answer: nothing can be said, whatever else was found
)

// What is wrong with a row.
type What string

// The kinds of finding.
const (
	Missing   What = "missing"   // on the source, not on the destination
	Extra     What = "extra"     // on the destination, not on the source
	Different What = "different" // the same key on both sides, another value in the named columns
	Doubled   What = "doubled"   // on the destination more often than on the source
	Misplaced What = "misplaced" // on a shard that its key does not name
)

// Finding is one row, or for Misplaced one sharding key, that is not as it must be. It never holds a value of a column
// outside the key.
type Finding struct {
	What    What     `json:"what"`
	Key     string   `json:"key"`               // "id=7", cut at 64 bytes, or a hash of it; of a table without key a hash of the row
	Columns []string `json:"columns,omitempty"` // Different: which
	Source  *int     `json:"source,omitempty"`  // the source that has the row
	Shard   *int     `json:"shard,omitempty"`   // the shard that has it
	Want    *int     `json:"want,omitempty"`    // Misplaced: the shard that should have it, Nowhere if none
	Rows    int64    `json:"rows,omitempty"`    // Misplaced: how many rows carry this key there
	// Values are the key's, of the table's Key or, for Misplaced, its PlaceColumns; nil where the table has no key.
	Values []pg.Datum `json:"-"`
}

// Failure is a node that did not answer.
type Failure struct {
	Side   string `json:"side"` // "source" or "shard"
	Number int    `json:"number"`
	Reason string `json:"reason"` // timeout, unavailable, no_leader, error
	err    error
}

// Error says which node and why.
func (f *Failure) Error() string { return fmt.Sprintf("verify: %s %d: %v", f.Side, f.Number, f.err) }

// Unwrap gives the server's or the connection's error.
func (f *Failure) Unwrap() error { return f.err }

// TableReport is what came out for one table. Counts are of rows. For an omnisharded table they are summed over the
// copies.
type TableReport struct {
	Table     string `json:"table"`
	State     State  `json:"state"`
	Rows      int64  `json:"rows"` // on the source
	Missing   int64  `json:"missing"`
	Extra     int64  `json:"extra"`
	Different int64  `json:"different"`
	Doubled   int64  `json:"doubled"`
	Misplaced int64  `json:"misplaced"`
	// BetweenSources is how many of these are rows of an omnisharded table in which another source differs from the first.
	BetweenSources int64 `json:"between_sources,omitempty"`

	// ReadAt is the caller's: the earlier position of each source as of which all rows were read, where since then only what had changed was.
	ReadAt []string `json:"read_at,omitempty"`
	// NotUnique is how many values more than one row has, of constraints that each shard enforces for itself alone.
	NotUnique int64                `json:"not_unique,omitempty"`
	Conflicts []Conflict           `json:"conflicts,omitempty"` // at most Limit for each constraint
	Checks    []*fanout.Comparison `json:"checks,omitempty"`    // the caller's

	AtLeast  bool       `json:"at_least,omitempty"` // looking was stopped at Limit: there are more than the counts say
	Keys     []Finding  `json:"keys"`               // at most Limit
	Failures []*Failure `json:"failures,omitempty"`

	differs bool // buckets differ, whether or not rows were told apart
}

// Differences is the number of rows that are not as they must be and of values that should be unique (at least, where AtLeast
// is set). Where there are none it is that of groups in which a check differs.
func (t *TableReport) Differences() int64 {
	n := t.Missing + t.Extra + t.Different + t.Doubled + t.Misplaced + t.NotUnique
	if n > 0 {
		return n
	}
	for _, c := range t.Checks {
		n += c.Differences()
	}
	return n
}

// AddCheck adds a comparison of aggregates of this table. Where a shard did not answer, the table is Partial and that is the
// error, a *Failure.
func (t *TableReport) AddCheck(c *fanout.Comparison) error {
	t.Checks = append(t.Checks, c)
	defer t.settle()
	before := len(t.Failures)
	for _, f := range c.Source.Failures {
		t.Failures = append(t.Failures, unanswered("source", f))
	}
	for _, f := range c.Destination.Failures {
		t.Failures = append(t.Failures, unanswered("shard", f))
	}
	if len(t.Failures) > before {
		return t.Failures[before]
	}
	return nil
}

func unanswered(side string, f fanout.Failure) *Failure {
	return &Failure{Side: side, Number: f.Shard, Reason: f.Reason, err: fmt.Errorf("a check was not answered: %s", f)}
}

// Report is one comparison, tables in the order of the request.
type Report struct {
	Started  time.Time     `json:"started"`
	Finished time.Time     `json:"finished"`
	Tables   []TableReport `json:"tables"`
	At       []string      `json:"at,omitempty"` // the caller's: the position of each source that was compared
}

// Clean says that every table is.
func (r *Report) Clean() bool {
	for i := range r.Tables {
		if r.Tables[i].State != Clean {
			return false
		}
	}
	return true
}

// Moving says that no row differs, but that tables were changed while they were compared.
func (r *Report) Moving() bool {
	moving := false
	for i := range r.Tables {
		switch r.Tables[i].State {
		case Clean:
		case Changed:
			moving = true
		default:
			return false
		}
	}
	return moving
}

// Differences is the sum over the tables.
func (r *Report) Differences() (n int64) {
	for i := range r.Tables {
		n += r.Tables[i].Differences()
	}
	return n
}

// Unclean names the tables that are not clean, in order.
func (r *Report) Unclean() (names []string) {
	for i := range r.Tables {
		if r.Tables[i].State != Clean {
			names = append(names, r.Tables[i].Table)
		}
	}
	return names
}

// settle derives the state from what was found.
func (t *TableReport) settle() {
	switch {
	case len(t.Failures) > 0:
		t.State = Partial
	case t.Differences() > 0:
		t.State = Differs
	case t.differs:
		t.State = Changed
	default:
		t.State = Clean
	}
	if t.Keys == nil {
		t.Keys = []Finding{}
	}
}

const keyBytes = 64 // longest key shown

// HiddenKey is what is shown of a key that is not to be shown: the first half of its SHA-256, in hexadecimal.
func HiddenKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "#" + hex.EncodeToString(sum[:8])
}

// showKey writes a key as a person reads it, within the bound.
func showKey(columns []string, values []pg.Datum, hide bool) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		if parts[i] = c + "=" + string(values[i].Bytes); values[i].Kind == pg.Null {
			parts[i] = c + " is null"
		}
	}
	s := strings.Join(parts, ", ")
	if hide {
		return HiddenKey(s)
	}
	if len(s) <= keyBytes {
		return s
	}
	n := keyBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Ledger remembers, outside every database, what the databases have acknowledged: for each row the version of its last
// commit, or that it is deleted, and what a commit without an answer may have made of it.
type Ledger struct {
	omni map[string]bool

	mu   sync.Mutex
	rows map[ledgerKey]ledgerRow
	lost []string
}

type ledgerKey struct{ table, key string }

// state is a version of a row; 0 means that there is no row.
type state int64

const absent state = 0

func (s state) String() string {
	if s == absent {
		return "no row"
	}
	return fmt.Sprintf("version %d", int64(s))
}

// ledgerRow is what a row must be: what was acknowledged last, or what a commit of unknown outcome made of it.
type ledgerRow struct {
	acknowledged state
	unknown      state
	isUnknown    bool
}

// effect is what a transaction makes of one row.
type effect struct {
	ledgerKey
	state state
}

func newLedger(omni map[string]bool) *Ledger {
	return &Ledger{omni: omni, rows: map[ledgerKey]ledgerRow{}}
}

// acknowledge writes down a commit that was answered.
func (l *Ledger) acknowledge(effects []effect) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range effects {
		l.rows[e.ledgerKey] = ledgerRow{acknowledged: e.state}
	}
}

// doubt writes down a commit whose answer did not come. Its rows must not be written again.
func (l *Ledger) doubt(effects []effect) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range effects {
		row := l.rows[e.ledgerKey]
		row.unknown, row.isUnknown = e.state, true
		l.rows[e.ledgerKey] = row
	}
}

// miss writes down that a writer did not find a row of its own.
func (l *Ledger) miss(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, what)
}

// Rows counts the rows that were acknowledged or may have been written, deleted ones included.
func (l *Ledger) Rows() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.rows)
}

// Unknown counts the rows of which the ledger knows two possible states.
func (l *Ledger) Unknown() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, row := range l.rows {
		if row.isUnknown {
			n++
		}
	}
	return n
}

// ledgerQueries read key and version of every row there is.
var ledgerQueries = map[string]string{
	"tenants":     `select id::text, version from tenants`,
	"users":       `select id::text, version from users`,
	"orders":      `select id::text, version from orders`,
	"order_items": `select order_id || '/' || line, version from order_items`,
	"documents":   `select id::text, version from documents`,
	"events":      `select id::text, version from events`,
	"countries":   `select code::text, version from countries`,
}

const reportedMost = 20

// Check compares the ledger with all shards of a layout, by plain SQL: every acknowledged row is on exactly one shard
// (of an omnisharded table: on each), in the version acknowledged, a deleted one on none, and there is no row that was
// never written. It means something only when no writer is running.
func (l *Ledger) Check(ctx context.Context, shards ...*pgx.Conn) error {
	found := map[ledgerKey][]state{}
	for i, conn := range shards {
		for table, query := range ledgerQueries {
			if err := readStates(ctx, conn, table, query, found); err != nil {
				return fmt.Errorf("read %s on shard %d: %w", table, i, err)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	problems := slices.Clone(l.lost)
	for key, row := range l.rows {
		copies := 1
		if l.omni[key.table] {
			copies = len(shards)
		}
		if problem := row.judge(found[key], copies); problem != "" {
			problems = append(problems, fmt.Sprintf("%s %s: %s", key.table, key.key, problem))
		}
		delete(found, key)
	}
	for key := range maps.Keys(found) {
		problems = append(problems, fmt.Sprintf("%s %s: a row nobody wrote", key.table, key.key))
	}
	if len(problems) == 0 {
		return nil
	}
	return ledgerError(problems)
}

func ledgerError(problems []string) error {
	slices.Sort(problems)
	errs := []error{fmt.Errorf("the ledger and the shards differ in %d rows", len(problems))}
	for _, p := range problems[:min(len(problems), reportedMost)] {
		errs = append(errs, errors.New(p))
	}
	return errors.Join(errs...)
}

func readStates(ctx context.Context, conn *pgx.Conn, table, query string, into map[ledgerKey][]state) error {
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return err
	}
	var key string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&key, &version}, func() error {
		k := ledgerKey{table, key}
		into[k] = append(into[k], state(version))
		return nil
	})
	return err
}

// judge says what is wrong with the versions found of one row, empty when nothing is.
func (row ledgerRow) judge(found []state, copies int) string {
	possible := []state{row.acknowledged}
	want := row.acknowledged.String()
	if row.isUnknown {
		possible = append(possible, row.unknown)
		want += " or (its commit had no answer) " + row.unknown.String()
	}
	right := len(found) <= copies && (len(found) == copies || slices.Contains(possible, absent))
	for _, s := range found {
		right = right && slices.Contains(possible, s)
	}
	if right {
		return ""
	}
	return fmt.Sprintf("acknowledged %s on %d shard(s), found %v", want, copies, found)
}

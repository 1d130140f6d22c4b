package pgtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Attempt is what came of one write.
type Attempt struct {
	At  time.Time // by the server's clock
	Err error     // as the writer was told
}

// Probe writes to a database again and again, by a session that is no part of any Workload.
type Probe struct {
	stop func()

	mu  sync.Mutex
	all []Attempt
}

// NewProbe begins to write, with a pause between two attempts. The statement returns the server's clock_timestamp().
func NewProbe(t testing.TB, db *DB, sql string, pause time.Duration) *Probe {
	t.Helper()
	conn := db.Conn(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, ended := &Probe{}, make(chan struct{})
	p.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			a, err := attempt(t.Context(), conn, sql)
			if err != nil {
				if ctx.Err() == nil {
					t.Errorf("probe of %s: %v", db.Name, err)
				}
				return
			}
			p.mu.Lock()
			p.all = append(p.all, a)
			p.mu.Unlock()
			sleep(ctx, pause)
		}
	}()
	t.Cleanup(p.stop)
	return p
}

// attempt writes once; what was refused asks the server's clock afterwards.
func attempt(ctx context.Context, conn *pgx.Conn, sql string) (a Attempt, err error) {
	if a.Err = conn.QueryRow(ctx, sql).Scan(&a.At); a.Err != nil {
		err = conn.QueryRow(ctx, `select clock_timestamp()`).Scan(&a.At)
	}
	return a, err
}

// Attempts are those so far, in their order.
func (p *Probe) Attempts() []Attempt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

// End stops it and gives every attempt.
func (p *Probe) End() []Attempt {
	p.stop()
	return p.Attempts()
}

// Refused says for how long a server refused writes by its own clock, at the longest: from the first that was refused to the
// next that passed. since is where a refusal begins after which none has passed yet, others what no fence says.
func Refused(all []Attempt) (longest time.Duration, since time.Time, others []error) {
	for _, a := range all {
		var refused *pgconn.PgError
		switch {
		case a.Err == nil && !since.IsZero():
			longest, since = max(longest, a.At.Sub(since)), time.Time{}
		case a.Err != nil && (!errors.As(a.Err, &refused) || refused.Code != "25006"):
			others = append(others, a.Err)
		case a.Err != nil && since.IsZero():
			since = a.At
		}
	}
	return longest, since, others
}

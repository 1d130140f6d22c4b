package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// WorkloadOptions says who writes what and where.
type WorkloadOptions struct {
	// Target is asked for the address of the shard that holds a tenant's rows of a table (users, orders, documents,
	// events, or tenants where that is not omnisharded; items go with their orders), before each transaction and anew
	// after each refusal, so that writers follow a layout. Its error is waited out.
	Target func(ctx context.Context, table string, tenant int64) (url string, err error)
	// All is asked for the addresses of every shard, where omnisharded tables are written, one shard after another.
	// nil: there is one shard, Target's.
	All func(ctx context.Context) (urls []string, err error)
	// Omni names the omnisharded tables: countries always, tenants where wanted.
	Omni []string

	Writers int     // 0: 8; at most 999
	Rate    float64 // transactions a second of all writers together, slower after restful; 0: as many as they can
	Seed    uint64  // the choices are a function of it, as far as timing allows
	Tenants int     // made by Fill, numbered from 1; 0: 40

	Tireless   bool // a paced writer never slows down
	Lookups    bool // orders with order_items
	KeyChanges bool // users and documents change tenants
	NewTenants bool // tenants are made while it runs, and used at once
	Narrow     bool // no value leaves its row: a transaction writes a few hundred bytes, where it else may write 20 kB, and log them twice
	Locks      bool // every other writer first takes its tenant's row by SELECT … FOR UPDATE, and so waits for others

	// Slots are for an Application: which shard has which slot, in the first layout and in the second; none: keys go modulo
	// the shards.
	Slots [2][]int
}

// Stats is what writers saw.
type Stats struct {
	Commits   int // acknowledged
	Rollbacks int // wanted by the writer
	Refused   int // SQLSTATE 25006
	Retries   int // all transactions done again, refusals included
	Unknown   int // commits without an answer

	// LongestGap is the longest time of one writer between two acknowledged commits, with its end. With a Rate it
	// holds the writer's own pause too.
	LongestGap   time.Duration
	LongestGapAt time.Time
}

// Workload is an application: concurrent writers of the tables of WorkloadSchema. A row is written by one writer only,
// so what it must be is known exactly.
type Workload struct {
	o      WorkloadOptions
	ledger *Ledger

	writers []*writer
	pause   atomic.Int64 // nanoseconds from one transaction of a writer to its next
}

// stripe separates the ids of writers: id mod stripe is the writer's number; Fill is number 0.
const stripe = 1000

// NewWorkload prepares writers; nothing is connected yet.
func NewWorkload(o WorkloadOptions) *Workload {
	o.Writers = min(cmp.Or(o.Writers, 8), stripe-1)
	o.Tenants = cmp.Or(o.Tenants, 40)
	omni := map[string]bool{"countries": true}
	for _, table := range o.Omni {
		omni[table] = true
	}
	if o.All == nil {
		o.All = func(ctx context.Context) ([]string, error) {
			url, err := o.Target(ctx, "countries", 1)
			return []string{url}, err
		}
	}
	w := &Workload{o: o, ledger: newLedger(omni)}
	w.Pace(o.Rate)
	for n := range o.Writers {
		w.writers = append(w.writers, newWriter(w, n+1))
	}
	return w
}

// Ledger is what was acknowledged so far.
func (w *Workload) Ledger() *Ledger { return w.ledger }

// Run writes until the context ends, then lets each transaction under way come to its end. It fails on an error that
// is no refusal, no conflict and no broken connection.
func (w *Workload) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, writer := range w.writers {
		g.Go(func() error {
			if err := writer.run(ctx); err != nil {
				return fmt.Errorf("writer %d: %w", writer.number, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// Pace changes the Rate, also while Run runs.
func (w *Workload) Pace(rate float64) {
	var pause time.Duration
	if rate > 0 {
		pause = time.Duration(float64(w.o.Writers) / rate * float64(time.Second))
	}
	w.pause.Store(int64(pause))
}

// Stats adds up what all writers have seen so far.
func (w *Workload) Stats() Stats {
	var sum Stats
	for _, writer := range w.writers {
		s := writer.stats.copy()
		sum.Commits += s.Commits
		sum.Rollbacks += s.Rollbacks
		sum.Refused += s.Refused
		sum.Retries += s.Retries
		sum.Unknown += s.Unknown
		if s.LongestGap > sum.LongestGap {
			sum.LongestGap, sum.LongestGapAt = s.LongestGap, s.LongestGapAt
		}
	}
	return sum
}

// ResetGaps begins measuring the longest gap anew; the gap that each writer is in counts from its last commit.
func (w *Workload) ResetGaps() {
	for _, writer := range w.writers {
		writer.stats.mu.Lock()
		writer.stats.LongestGap, writer.stats.again = 0, false
		writer.stats.mu.Unlock()
	}
}

// EachCommitted waits until every writer has committed since ResetGaps, so that no gap goes on that Stats does not know.
func (w *Workload) EachCommitted(ctx context.Context) error {
	for _, writer := range w.writers {
		for !writer.stats.committedAgain() {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
				return fmt.Errorf("writer %d does not commit: %w", writer.number, ctx.Err())
			}
		}
	}
	return nil
}

// Committed waits until n more commits were acknowledged, a way for a test to know that writers are at work.
func (w *Workload) Committed(ctx context.Context, n int) error {
	for begin := w.Stats().Commits; w.Stats().Commits-begin < n; {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d of %d commits", w.Stats().Commits-begin, n), ctx.Err())
		}
	}
	return nil
}

// writerStats is one writer's Stats.
type writerStats struct {
	mu sync.Mutex
	Stats
	lastCommit time.Time
	again      bool // there was one since ResetGaps
}

func (s *writerStats) committedAgain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.again
}

func (s *writerStats) copy() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Stats
}

// count changes one figure.
func (s *writerStats) count(figure *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*figure++
}

// commit counts a commit and the gap that it ends.
func (s *writerStats) commit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if gap := now.Sub(s.lastCommit); !s.lastCommit.IsZero() && gap > s.LongestGap {
		s.LongestGap, s.LongestGapAt = gap, now
	}
	s.lastCommit, s.again = now, true
	s.Commits++
}

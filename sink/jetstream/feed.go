package jetstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"pgreshard/pg"
)

// Feed publishes the changes of one source. Begin readies it for a Publisher; then Run may be called again and again, with
// streams that begin no later than what was confirmed.
type Feed struct {
	Origin
	// Table says what events name a table as the stream describes it.
	Table func(context.Context, *pg.Relation) (Table, error)
	// From: transactions that committed before it are no matter of this feed's.
	From pg.LSN

	until     atomic.Uint64
	publisher *Publisher
	tables    map[*pg.Relation]Table
	queued    Mark   // up to where messages were given to the publisher
	tx        *pg.Tx // that is open
	n         int64  // events of it so far
	pending   *event // the last of them: whether it is the transaction's last is known with the next change

	mu    sync.Mutex
	acked Mark
	stats Stats
}

// Stats is what a feed has published since it was made.
type Stats struct {
	Events     map[byte]int64 // by op
	Bytes      int64
	CommitTime time.Time // of the last transaction that is stored whole
	Confirmed  pg.LSN    // everything before it is stored
}

// Until sets from where on transactions are no matter of this feed's any more, 0 for nowhere; it may be called at any time.
// Run ends there with ErrReached.
func (f *Feed) Until(at pg.LSN) { f.until.Store(uint64(at)) }

// ErrReached means that everything before Until is published.
var ErrReached = errors.New("everything is published")

// Begin has the feed go on where the stream is, through a Publisher that runs; one it goes through already is no matter.
func (f *Feed) Begin(ctx context.Context, p *Publisher) error {
	if f.publisher == p { // and knows what is on its way
		return nil
	}
	there, err := p.Published(ctx, &f.Origin)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publisher, f.queued = p, f.acked
	if whole, _ := there.passed(f.acked.Commit, f.acked.N); whole || there.Commit == f.acked.Commit && there.N == f.acked.N {
		f.queued = there
	}
	f.acked = f.queued
	return nil
}

// Run publishes what comes, and confirms what the stream has acknowledged, until blocks are closed or something fails.
func (f *Feed) Run(ctx context.Context, blocks <-chan *pg.Block, release func(*pg.Block), confirm func(pg.LSN)) error {
	f.tables, f.tx, f.pending = map[*pg.Relation]Table{}, nil, nil
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case b, open := <-blocks:
			if !open {
				return nil
			}
			for i := range b.Changes {
				if err := f.take(ctx, &b.Changes[i], confirm); err != nil {
					return err
				}
			}
			release(b)
			if b.Idle != 0 {
				if err := f.upTo(ctx, b.Idle, time.Time{}, confirm); err != nil {
					return err
				}
			}
		}
	}
}

// upTo confirms a position once everything before it is stored.
func (f *Feed) upTo(ctx context.Context, end pg.LSN, committed time.Time, confirm func(pg.LSN)) error {
	if until := f.until.Load(); until != 0 && uint64(end) >= until {
		if err := f.publisher.stored(ctx); err != nil {
			return err
		}
		return ErrReached
	}
	return f.publisher.after(func() {
		confirm(end)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.stats.Confirmed = max(f.stats.Confirmed, end)
		if !committed.IsZero() {
			f.stats.CommitTime = committed
		}
	})
}

// ours says whether the open transaction is published.
func (f *Feed) ours() bool {
	until := pg.LSN(f.until.Load())
	return f.tx.Commit >= f.From && (until == 0 || f.tx.Commit < until)
}

func (f *Feed) take(ctx context.Context, c *pg.Change, confirm func(pg.LSN)) error {
	switch c.Op {
	case pg.OpBegin:
		f.tx, f.n, f.pending = c.Tx, 0, nil
	case pg.OpCommit:
		if err := f.send(ctx, lastEnd); err != nil {
			return err
		}
		return f.upTo(ctx, c.Tx.End, c.Tx.Time, confirm)
	case pg.OpInsert:
		return f.row(ctx, 'c', c)
	case pg.OpUpdate:
		return f.row(ctx, 'u', c)
	case pg.OpDelete:
		return f.row(ctx, 'd', c)
	case pg.OpTruncate:
		for _, relation := range c.Truncate.Relations {
			if err := f.row(ctx, 't', &pg.Change{Relation: relation}); err != nil {
				return err
			}
		}
	}
	return nil
}

// row makes the next event of the transaction and sends the one before.
func (f *Feed) row(ctx context.Context, op byte, c *pg.Change) error {
	if !f.ours() {
		return nil
	}
	if err := f.send(ctx, eventEnd); err != nil {
		return err
	}
	f.n++
	if whole, _ := f.queued.passed(f.tx.Commit, f.n); whole {
		return nil
	}
	table, known := f.tables[c.Relation]
	if !known {
		var err error
		if table, err = f.Table(ctx, c.Relation); err != nil {
			return err
		}
		f.tables[c.Relation] = table
	}
	var err error
	f.pending, err = f.event(&change{op: op, table: table, relation: c.Relation, old: c.Old, new: c.New, oldFull: c.OldFull,
		xid: f.tx.Xid, time: f.tx.Time, at: Mark{Commit: f.tx.Commit, N: f.n}})
	return err
}

// send gives the pending event to the publisher, in parts where it is too large for a message.
func (f *Feed) send(ctx context.Context, end string) error {
	e := f.pending
	if e == nil {
		return nil
	}
	f.pending = nil
	data := append(e.body, end...)
	size := f.publisher.limit
	parts := max(1, (len(data)+size-1)/size)
	_, done := f.queued.passed(e.at.Commit, e.at.N)
	if f.queued.Of != parts {
		done = 0
	}
	for part := done + 1; part <= parts; part++ {
		at := Mark{Commit: e.at.Commit, N: e.at.N, Part: part, Of: parts}
		msg := &nats.Msg{Subject: e.subject, Header: f.header(at), Data: data[(part-1)*size : min(part*size, len(data))]}
		op := e.op
		err := f.publisher.publish(ctx, msg, func() { f.stored(at, op, len(msg.Data)) })
		if err != nil {
			return err
		}
		f.queued = at
	}
	return nil
}

func (f *Feed) stored(at Mark, op byte, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at.Commit != 0 {
		f.acked = at
	}
	f.stats.Bytes += int64(bytes)
	if at.Part == at.Of {
		if f.stats.Events == nil {
			f.stats.Events = map[byte]int64{}
		}
		f.stats.Events[op]++
	}
}

// Acked is up to where the stream is known to have everything.
func (f *Feed) Acked() Mark {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.acked
}

// Stats may be called at any time.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Events = map[byte]int64{}
	for op, n := range f.stats.Events {
		s.Events[op] = n
	}
	return s
}

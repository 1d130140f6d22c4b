package jetstream

import (
	"context"
	"time"

	"pgreshard/pg"
)

// Rows publishes the rows that were there when the slot was made, before anything else of its feed: for each table an event t,
// which takes away what an earlier slot had published of it, and its rows as events r. All of them count as one transaction.
type Rows struct {
	feed *Feed
	at   time.Time
	n    int64
}

// Rows begins; the feed has been begun.
func (f *Feed) Rows(at time.Time) *Rows {
	f.pending = nil
	return &Rows{feed: f, at: at}
}

// Table begins with a table, whose rows follow.
func (r *Rows) Table(ctx context.Context, t Table) error {
	return r.add(ctx, &change{op: 't', table: t, relation: &pg.Relation{Name: t.Name}})
}

// Row publishes one row, whose bytes are not kept.
func (r *Rows) Row(ctx context.Context, t Table, relation *pg.Relation, row pg.Row) error {
	return r.add(ctx, &change{op: 'r', table: t, relation: relation, new: row})
}

func (r *Rows) add(ctx context.Context, c *change) (err error) {
	if err := r.feed.send(ctx, eventEnd); err != nil {
		return err
	}
	r.n++
	c.snapshot, c.time, c.at = true, r.at, Mark{N: r.n}
	r.feed.pending, err = r.feed.event(c)
	return err
}

// End sends the last event and waits until all are stored.
func (r *Rows) End(ctx context.Context) error {
	f := r.feed
	if err := f.send(ctx, lastEnd); err != nil {
		return err
	}
	f.queued = Mark{}
	return f.publisher.stored(ctx)
}

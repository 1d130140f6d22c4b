package replicator

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"pgreshard/pg"
)

const (
	prompt     = 20 * time.Millisecond // confirmations that follow each other faster share a status message
	writeLimit = 10 * time.Second      // a server that takes no status for so long is gone
	endLimit   = time.Second           // what the end of a stream may wait for the server
)

// deliver hands the block over. While the consumer is slow, nothing is received, but the server hears from us.
func (c *connection) deliver(ctx context.Context) error {
	b := c.decoder.take()
	c.pending = time.Time{}
	if c.idle != 0 {
		b.Idle, c.idle, c.lastIdle = c.idle, 0, time.Now()
	}
	end := max(c.delivered, c.decoder.committed, b.Idle)
	if err := c.send(ctx, b); err != nil {
		return err
	}
	c.delivered = end
	return c.status(time.Now())
}

func (c *connection) send(ctx context.Context, b *pg.Block) error {
	q := c.stream.queue
	reserved := q.reserve(b)
	if reserved { // a consumer that keeps up takes it at once; no ticker for that
		select {
		case q.blocks <- b:
			return nil
		default:
		}
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		var out chan<- *pg.Block // nil, and so never ready, until there is room
		if reserved = reserved || q.reserve(b); reserved {
			out = q.blocks
		}
		select {
		case out <- b:
			return nil
		case <-q.freed:
		case now := <-tick.C:
			c.publish(now)
			if err := c.status(now); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// confirmed is what may be told. A backend of the run before may commit after this run has read its start: what is
// durable is then ahead of what was delivered, and is told once that has caught up.
func (c *connection) confirmed() pg.LSN {
	return min(pg.LSN(c.stream.confirmed.Load()), c.delivered)
}

// status tells the server the confirmed position, if it is time to, if the position is new, or if it asked.
func (c *connection) status(now time.Time) error {
	confirmed := c.confirmed()
	silent, urgent := now.Sub(c.lastStatus), c.owed || confirmed > c.sent
	if silent < prompt || !urgent && silent < c.interval {
		return nil
	}
	return c.sendStatus(now, max(c.sent, confirmed))
}

func (c *connection) sendStatus(now time.Time, lsn pg.LSN) error {
	if err := c.conn.Conn().SetWriteDeadline(now.Add(writeLimit)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	// All three: pglogrepl would put the first in place of a zero.
	at := pglogrepl.LSN(lsn)
	err := pglogrepl.SendStandbyStatusUpdate(context.Background(), c.conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: at, WALFlushPosition: at, WALApplyPosition: at, ClientTime: now,
	})
	if err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	c.sent, c.lastStatus, c.owed = lsn, now, false
	raise(&c.stream.acked, c.sent)
	return nil
}

// publish lets Stats see where the connection is.
func (c *connection) publish(now time.Time) {
	s := c.stream
	raise(&s.received, max(c.delivered, c.decoder.committed, c.idle))
	raise(&s.serverEnd, c.serverEnd)
	if c.heard {
		s.lastMessage.Store(now.UnixNano())
		c.heard = false
	}
	if !c.decoder.at.IsZero() {
		s.commitTime.Store(c.decoder.at.UnixNano())
	}
}

// explain gives an error of the running stream the name one can branch on.
func (c *connection) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case c.warned != nil:
		err = c.warned
	case pg.Code(err) == "42704":
		err = fmt.Errorf("%w (%w)", ErrPublicationMissing, err)
	case pg.Code(err) == "55000", pg.Code(err) == "58P01":
		err = slotError(c.stream.config.Slot, err)
	}
	return fmt.Errorf("stream from %s: %w", c.stream.config.Shard, err)
}

// close says what was confirmed last and waits until the server has let go of the slot. It reads on meanwhile: a
// walsender that is blocked writing would not see the end.
func (c *connection) close() {
	defer closeConn(c.conn)
	if c.conn.IsClosed() || c.sendStatus(time.Now(), max(c.sent, c.confirmed())) != nil {
		return
	}
	wire := c.conn.Conn()
	if wire.SetDeadline(time.Now().Add(endLimit)) != nil {
		return
	}
	c.conn.Frontend().Send(&pgproto3.Terminate{})
	if c.conn.Frontend().Flush() == nil {
		_, _ = io.Copy(io.Discard, wire)
	}
}

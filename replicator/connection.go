package replicator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pgreshard/pg"
)

const (
	poll      = 50 * time.Millisecond  // how long one read waits, and so how late a confirmation or an end is seen
	gather    = 2 * time.Millisecond   // how long changes wait for more of them while the consumer is busy anyway
	stopAsks  = 20                     // so many requests for a status at one position
	stopWait  = 5 * time.Second        // over so long a time mean that the server is stopping
	idleEvery = 200 * time.Millisecond // how often an idle position is worth a block
)

// connection is one replication connection while it streams. All of it belongs to the goroutine of Run.
type connection struct {
	stream  *Stream
	conn    *pgconn.PgConn
	decoder *decoder
	warned  error // the server left changes out

	interval   time.Duration // of status messages
	lastStatus time.Time
	deadline   time.Time // of reads
	pending    time.Time // since when changes wait to be handed over, zero where unknown
	sent       pg.LSN    // the position the server was told last

	serverEnd pg.LSN
	delivered pg.LSN // the highest end position handed over: nothing above it may be confirmed
	idle      pg.LSN // an idle position not yet handed over, 0 for none
	lastIdle  time.Time
	heard     bool // something came since the statistics were published

	owed       bool   // the server asked for a status
	asked      int    // how often it did at one position, one request soon after the other
	askedAt    pg.LSN // that position
	askedSince time.Time
	askedLast  time.Time
}

// run receives, decodes and hands over. It never waits longer than poll without looking after status, whether for the
// server or for the consumer.
func (c *connection) run(ctx context.Context) error {
	expired := true // the read deadline
	for {
		if expired || c.conn.Frontend().ReadBufferLen() == 0 {
			if err := c.pause(ctx, expired); err != nil {
				return err
			}
		}
		msg, err := c.conn.ReceiveMessage(context.Background())
		// What was read so far is kept, a message in pieces too. (A deadline of the kernel's own is another error.)
		if expired = errors.Is(err, os.ErrDeadlineExceeded); expired {
			continue
		}
		if err == nil {
			err = c.handle(ctx, msg)
		}
		if err != nil {
			return err
		}
	}
}

// pause is what happens before a read that may wait: nothing received is left. quiet says that nothing came for a
// while. Walsenders send row by row, so it happens after most messages of a large transaction and must cost little.
func (c *connection) pause(ctx context.Context, quiet bool) error {
	now := time.Now()
	if err := c.status(now); err != nil {
		return err
	}
	if c.blockDue(now, quiet) || c.idle != 0 && now.Sub(c.lastIdle) >= idleEvery {
		if err := c.deliver(ctx); err != nil {
			return err
		}
		now = time.Now()
	}
	wait := poll
	if len(c.decoder.changes) > 0 {
		wait = gather
	}
	// Deadlines are dear: one that is about right stays.
	if left := c.deadline.Sub(now); quiet || left > wait || left < wait/2 {
		c.publish(now)
		c.deadline = now.Add(wait)
		if err := c.conn.Conn().SetReadDeadline(c.deadline); err != nil {
			return fmt.Errorf("set the read deadline: %w", err)
		}
	}
	return ctx.Err()
}

// blockDue decides when changes are handed over before they fill a block. In the middle of a transaction nobody can
// commit them yet. After it, a consumer with nothing in hand gets them at once; one that is busy anyway, with what else
// came within gather.
func (c *connection) blockDue(now time.Time, quiet bool) bool {
	switch {
	case len(c.decoder.changes) == 0:
		return false
	case c.pending.IsZero():
		c.pending = now
	}
	return quiet || c.decoder.tx == nil && (c.stream.queue.waiting() || now.Sub(c.pending) >= gather)
}

func (c *connection) handle(ctx context.Context, msg pgproto3.BackendMessage) error {
	c.heard = true
	if c.warned != nil {
		return c.warned
	}
	switch msg := msg.(type) {
	case *pgproto3.CopyData:
		return c.copyData(ctx, msg.Data)
	case *pgproto3.ErrorResponse:
		return pgconn.ErrorResponseToPgError(msg)
	case *pgproto3.NoticeResponse, *pgproto3.ParameterStatus:
		return nil
	case *pgproto3.CopyDone, *pgproto3.CommandComplete: // what a server says that stops
		return fmt.Errorf("the server ended the stream: %w", io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("unexpected %T in the stream", msg)
}

func (c *connection) copyData(ctx context.Context, data []byte) error {
	if len(data) == 0 {
		return errors.New("empty CopyData message")
	}
	switch data[0] {
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return err
		}
		if err := c.decoder.decode(pg.LSN(x.WALStart), x.WALData); err != nil {
			return err
		}
		c.serverEnd = max(c.serverEnd, pg.LSN(x.ServerWALEnd))
		if c.decoder.tx != nil {
			c.idle = 0 // the transaction's end will be the better position
		}
		if c.decoder.size >= blockBytes {
			return c.deliver(ctx)
		}
		return nil
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return err
		}
		return c.keepalive(k)
	}
	return fmt.Errorf("unknown replication message %q", rune(data[0]))
}

// keepalive takes the server's position. Between transactions it means that every change before it was sent, and they
// lie before it in the same queue; inside one it means nothing.
func (c *connection) keepalive(k pglogrepl.PrimaryKeepaliveMessage) error {
	end := pg.LSN(k.ServerWALEnd)
	c.serverEnd = max(c.serverEnd, end)
	if c.decoder.tx == nil && end > max(c.delivered, c.decoder.committed, c.idle) {
		c.idle = end
	}
	if k.ReplyRequested {
		return c.answer(end)
	}
	return nil
}

// answer replies with the next status. We send it often enough for a server never to ask, unless we were held up; one
// that asks again and again with nothing left to send is stopping and waits for everything to be confirmed. It must
// not wait for ever for a consumer that cannot.
func (c *connection) answer(end pg.LSN) error {
	now := time.Now()
	if end != c.askedAt || now.Sub(c.askedLast) > time.Second {
		c.asked, c.askedAt, c.askedSince = 0, end, now
	}
	c.asked++
	c.askedLast = now
	if c.asked >= stopAsks && now.Sub(c.askedSince) > stopWait {
		return fmt.Errorf("the server is stopping and waits for confirmations that do not come: %w", io.ErrUnexpectedEOF)
	}
	c.owed = true
	return c.status(now)
}

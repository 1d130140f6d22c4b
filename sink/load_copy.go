package sink

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// How long a connection that could not be written to is still listened to for the server's reason.
const reasonWait = 2 * time.Second

// copied is what the server said to a COPY.
type copied struct {
	rows int64
	err  error
}

// copyIn runs statements of which the last is a COPY FROM STDIN and sends it the buffers, which are whole CopyData
// messages, until full is closed; each goes back to spare. It listens while it writes, so that a refusal ends the
// load at once. It returns when the server has answered; after an error the connection is of no use any more.
func copyIn(ctx context.Context, conn *pgconn.PgConn, sql string, full <-chan []byte, spare chan<- []byte) (int64, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	front := conn.Frontend()
	front.SendQuery(&pgproto3.Query{String: sql})
	err := front.Flush()
	if err == nil {
		err = awaitCopyIn(front)
	}
	if err != nil {
		return 0, whyEnded(ctx, err)
	}

	answer := make(chan copied, 1)
	go func() { answer <- awaitCopied(front) }()
	for {
		select {
		case a := <-answer: // before its end was sent
			if a.err == nil {
				a.err = errors.New("the server ended COPY before all rows were sent")
			}
			return 0, whyEnded(ctx, a.err)
		case b, more := <-full:
			if !more {
				b = copyDone()
			}
			if _, err := conn.Conn().Write(b); err != nil {
				if ctx.Err() == nil {
					_ = conn.Conn().SetReadDeadline(time.Now().Add(reasonWait))
				}
				a := <-answer
				var server *pgconn.PgError
				if errors.As(a.err, &server) {
					err = a.err
				}
				return 0, whyEnded(ctx, err)
			}
			if !more {
				a := <-answer
				return a.rows, whyEnded(ctx, a.err)
			}
			spare <- b // never waits: there are no more buffers than it has room for
		}
	}
}

func copyDone() []byte { return []byte{'c', 0, 0, 0, 4} }

// whyEnded prefers why a context ended to what the connection saw of it, and a server's own words to both.
func whyEnded(ctx context.Context, err error) error {
	var server *pgconn.PgError
	if err != nil && ctx.Err() != nil && !errors.As(err, &server) {
		return context.Cause(ctx)
	}
	return err
}

// awaitCopyIn reads until the server is ready to take rows.
func awaitCopyIn(front *pgproto3.Frontend) error {
	for {
		message, err := front.Receive()
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pgproto3.CopyInResponse:
			return nil
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return errors.New("the server did not ask for rows")
		}
	}
}

// awaitCopied reads until the server has taken all rows or refuses them.
func awaitCopied(front *pgproto3.Frontend) (c copied) {
	for {
		message, err := front.Receive()
		if err != nil {
			return copied{err: err}
		}
		switch m := message.(type) {
		case *pgproto3.CommandComplete:
			tag := pgconn.NewCommandTag(string(m.CommandTag))
			if !strings.HasPrefix(tag.String(), "COPY ") {
				c.err = errors.New("the server did not answer COPY with a count")
			}
			c.rows = tag.RowsAffected()
		case *pgproto3.ErrorResponse:
			return copied{err: pgconn.ErrorResponseToPgError(m)}
		case *pgproto3.ReadyForQuery:
			return c
		}
	}
}

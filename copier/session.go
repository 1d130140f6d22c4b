package copier

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"pgreshard/pg"
)

// RewrittenError means that a table's file is not the one its chunks were cut from (VACUUM FULL, CLUSTER, pg_repack,
// TRUNCATE, a rewriting ALTER): its chunks mean other rows now, so its marks are void and it is split and read again.
type RewrittenError struct {
	Table   pg.Name // the source's table that holds the rows
	OID     uint32
	Was, Is uint32 // filenodes
}

// Error names the table and both files.
func (e *RewrittenError) Error() string {
	return fmt.Sprintf("the file of %s changed from %d to %d while it was copied; hint: it is read again from its start, keep VACUUM FULL, CLUSTER, pg_repack, TRUNCATE and rewriting ALTERs away meanwhile", e.Table, e.Was, e.Is)
}

const readBuffer = 256 << 10

// session is one worker's connection to the source. COPY is driven at the level of messages: nothing is started or
// allocated for a row.
type session struct {
	conn *pgx.Conn
}

func openSession(ctx context.Context, shard pg.Shard, app string) (*session, error) {
	conn, err := pg.Open(ctx, shard, pg.Reader, app, func(c *pgx.ConnConfig) {
		c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
			return pgproto3.NewFrontend(bufio.NewReaderSize(r, readBuffer), w)
		}
	})
	if err != nil {
		return nil, err
	}
	return &session{conn: conn}, nil
}

// begin opens a chunk's transaction under the snapshot, locks the table for no longer than it and makes sure that the
// file is the one that was split. The filenode in pg_class is read under the snapshot, the other one now: a rewrite
// between the snapshot and the split shows in the first, one after the split in the second.
const beginChunk = `begin isolation level repeatable read read only; %s; lock table only %s in access share mode; ` +
	`select oid::text, pg_relation_filenode(oid)::text, relfilenode::text from pg_class where oid = %s::regclass`

func (s *session) begin(ctx context.Context, snapshot string, t *pg.Table) error {
	name := t.Name.SQL()
	sql := fmt.Sprintf(beginChunk, setSnapshot(snapshot), name, literal(name))
	results, err := s.conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return snapshotError(err)
	}
	rewritten := &RewrittenError{Table: t.Name, OID: t.OID, Was: t.Filenode}
	rows := results[len(results)-1].Rows
	if len(rows) == 0 {
		return rewritten // made after the snapshot: dropped, and made again under the same name
	}
	var oid uint32
	var files [2]uint32
	for i, to := range []*uint32{&oid, &files[0], &files[1]} {
		if _, err := fmt.Sscan(string(rows[0][i]), to); err != nil {
			return fmt.Errorf("read the filenode of %s: %w", t.Name, err)
		}
	}
	for _, rewritten.Is = range files {
		if oid != t.OID || rewritten.Is != t.Filenode {
			return rewritten
		}
	}
	return nil
}

func (s *session) commit(ctx context.Context) error {
	_, err := s.conn.PgConn().Exec(ctx, "commit").ReadAll()
	return err
}

// copySQL reads a chunk's rows. ONLY leaves out inheritance children, which are tables of their own.
func copySQL(c *pg.Chunk) string {
	var b strings.Builder
	b.WriteString("copy (select ")
	for i, name := range c.Copy.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(pgx.Identifier{name}.Sanitize())
	}
	fmt.Fprintf(&b, " from only %s where ctid >= '(%d,0)'", c.Copy.From.Name.SQL(), c.From)
	if c.To != pg.ToTheEnd {
		fmt.Fprintf(&b, " and ctid < '(%d,0)'", c.To)
	}
	b.WriteString(") to stdout")
	if c.Copy.Binary {
		b.WriteString(" (format binary)")
	}
	return b.String()
}

// aLongTimeAgo as a deadline ends a read or write that waits.
func aLongTimeAgo() time.Time { return time.Unix(1, 0) }

// copyOut runs a COPY and hands on what it sends piece by piece. After an error the session is of no use any more.
func (s *session) copyOut(ctx context.Context, sql string, write func([]byte) error) (rows int64, err error) {
	conn := s.conn.PgConn()
	stop := context.AfterFunc(ctx, func() { _ = conn.Conn().SetDeadline(aLongTimeAgo()) })
	defer stop()

	front := conn.Frontend()
	front.SendQuery(&pgproto3.Query{String: sql})
	if err := front.Flush(); err != nil {
		return 0, ended(ctx, err)
	}
	var failed error
	var tag pgconn.CommandTag
	for {
		message, err := front.Receive()
		if err != nil {
			if failed != nil {
				return 0, failed // a fatal error is followed by the connection's end
			}
			return 0, ended(ctx, err)
		}
		switch m := message.(type) {
		case *pgproto3.CopyData:
			if err := write(m.Data); err != nil {
				return 0, err
			}
		case *pgproto3.CommandComplete:
			tag = pgconn.NewCommandTag(string(m.CommandTag))
		case *pgproto3.ErrorResponse:
			failed = pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			if failed == nil && !strings.HasPrefix(tag.String(), "COPY ") {
				failed = errors.New("the server did not answer COPY with rows")
			}
			return tag.RowsAffected(), failed
		}
	}
}

// ended prefers the reason a context ended for to what the connection saw of it.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// close ends a session that is between chunks in peace, and one that is inside a COPY by closing its socket.
func (s *session) close(inside bool) {
	if inside {
		_ = s.conn.PgConn().Conn().Close()
	}
	pg.Close(s.conn)
	<-s.conn.PgConn().CleanupDone()
}

package copier

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// ErrSnapshotLost means that the session which held the copy's snapshot has ended, so that the rest must be read under
// another one. Running the same command again does that.
var ErrSnapshotLost = errors.New("the session that held the copy's snapshot ended; hint: run the same command again, chunks already held stay held")

// Snapshot is a state of a source that stays readable as long as it is not closed.
type Snapshot struct {
	ID string // what SET TRANSACTION SNAPSHOT and pg_dump --snapshot take
	// After is a position no earlier than every commit the snapshot sees: the log's insert position asked after it
	// was taken (the write position lags behind visible asynchronous commits).
	After pg.LSN

	shard pg.Shard
	app   string
	conn  *pgx.Conn
}

const (
	beginSnapshot  = `begin isolation level repeatable read read only`
	exportSnapshot = `select pg_export_snapshot(), pg_current_wal_insert_lsn()::text`
)

// ImportSnapshot holds on to a snapshot another session exported (a slot's), under an ID of its own that stays valid
// when that session goes on to something else.
func ImportSnapshot(ctx context.Context, shard pg.Shard, app, exported string) (*Snapshot, error) {
	s, err := holdSnapshot(ctx, shard, app, exported)
	if err != nil {
		return nil, fmt.Errorf("import the snapshot of the slot on %s: %w", shard, err)
	}
	return s, nil
}

// NewSnapshot takes a snapshot of the source as it is now, for a copy that is resumed.
func NewSnapshot(ctx context.Context, shard pg.Shard, app string) (*Snapshot, error) {
	s, err := holdSnapshot(ctx, shard, app, "")
	if err != nil {
		return nil, fmt.Errorf("take a snapshot of %s: %w", shard, err)
	}
	return s, nil
}

func holdSnapshot(ctx context.Context, shard pg.Shard, app, exported string) (*Snapshot, error) {
	conn, err := openUnder(ctx, shard, app, exported)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{shard: shard, app: app, conn: conn}
	if err := conn.QueryRow(ctx, exportSnapshot).Scan(&s.ID, &s.After); err != nil {
		pg.Close(conn)
		return nil, err
	}
	return s, nil
}

// openUnder opens a session inside a read-only transaction, under the snapshot named, or its own where none is.
func openUnder(ctx context.Context, shard pg.Shard, app, snapshot string) (*pgx.Conn, error) {
	conn, err := pg.Open(ctx, shard, pg.Reader, app)
	if err != nil {
		return nil, err
	}
	sql := beginSnapshot
	if snapshot != "" {
		sql += "; " + setSnapshot(snapshot)
	}
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		pg.Close(conn)
		return nil, snapshotError(err)
	}
	return conn, nil
}

func setSnapshot(id string) string { return "set transaction snapshot " + literal(id) }

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// snapshotError names the ways servers from 14 to 18 say that a snapshot is not there any more.
func snapshotError(err error) error {
	var server *pgconn.PgError
	if errors.As(err, &server) && (server.Code == "22023" || server.Code == "42704" || server.Code == "55000") {
		return fmt.Errorf("%w (%w)", ErrSnapshotLost, err)
	}
	return err
}

// Conn is the holder's own session, inside its transaction: the catalog read there is the snapshot's. It serves one
// caller at a time and must not end the transaction.
func (s *Snapshot) Conn() *pgx.Conn { return s.conn }

// Open opens another session that sees the same snapshot, inside a read-only transaction; the caller closes it.
func (s *Snapshot) Open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := openUnder(ctx, s.shard, s.app, s.ID)
	if err != nil {
		return nil, fmt.Errorf("open a session under the copy's snapshot on %s: %w", s.shard, err)
	}
	return conn, nil
}

// Close lets the snapshot go, and with it the source's vacuum.
func (s *Snapshot) Close() { pg.Close(s.conn) }

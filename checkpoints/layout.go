package checkpoints

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Serving is which layout a node says serves.
type Serving struct {
	Database string
	Version  int
	Since    time.Time
}

// ReadServing reads a node's record; nil where it has none.
func ReadServing(ctx context.Context, q pg.Querier) (*Serving, error) {
	var there bool
	if err := q.QueryRow(ctx, `select to_regclass('pgreshard.serving') is not null`).Scan(&there); err != nil || !there {
		return nil, err
	}
	var s Serving
	err := q.QueryRow(ctx, `select database, version, since from pgreshard.serving`).Scan(&s.Database, &s.Version, &s.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read which layout serves: %w", err)
	}
	return &s, nil
}

// ErrNotServing means that the layout record did not stand where the switch expected it: somebody else has switched.
var ErrNotServing = errors.New("the layout record is not where this switch began")

// PutLayout writes a layout's record on a node; the same version of the same database is written once and stays.
func PutLayout(ctx context.Context, conn *pgx.Conn, database string, version int, record json.RawMessage) error {
	_, err := conn.Exec(ctx, `insert into pgreshard.layout (database, version, record) values ($1, $2, $3)
		on conflict (database, version) do update set record = excluded.record`, database, version, record)
	if err != nil {
		return fmt.Errorf("write the record of layout %d: %w", version, err)
	}
	return nil
}

// Layout reads a layout's record; nil where the node has none.
func Layout(ctx context.Context, q pg.Querier, database string, version int) (json.RawMessage, error) {
	var there bool
	if err := q.QueryRow(ctx, `select to_regclass('pgreshard.layout') is not null`).Scan(&there); err != nil || !there {
		return nil, err
	}
	var record json.RawMessage
	err := q.QueryRow(ctx, `select record from pgreshard.layout where database = $1 and version = $2`, database, version).Scan(&record)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return record, err
}

// Serve writes on a node, before a move begins, which layout serves. The record never goes back by it.
func Serve(ctx context.Context, conn *pgx.Conn, s Serving) error {
	_, err := conn.Exec(ctx, `insert into pgreshard.serving as s (database, version, since) values ($1, $2, $3)
		on conflict (single) do update set database = excluded.database, version = excluded.version, since = excluded.since
		where s.version <= excluded.version`, s.Database, s.Version, s.Since)
	if err != nil {
		return fmt.Errorf("write which layout serves: %w", err)
	}
	return nil
}

// CopyServing writes on a node what the arbiter decided, which after a rollback is an older version.
func (b Book) CopyServing(ctx context.Context, conn *pgx.Conn, s Serving) error {
	return b.write(ctx, conn, statement{`insert into pgreshard.serving (database, version, since) values ($1, $2, $3)
		on conflict (single) do update set database = excluded.database, version = excluded.version, since = excluded.since`, []any{s.Database, s.Version, s.Since}})
}

// Switch is the one write that makes another layout the serving one: the arbiter's record goes from version from to
// version to, under the epoch, synchronously. ErrNotServing where it is not at from; ErrSuperseded where another worker
// has taken over; after any other error the outcome must be read.
func (b Book) Switch(ctx context.Context, conn *pgx.Conn, from int, to Serving) error {
	// COMMIT goes alone: a server that goes on although its worker is dead does not switch by itself.
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, checkEpoch, b.Epoch); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `update pgreshard.serving set database = $2, version = $3,
			since = greatest($4, since + interval '1 millisecond') where version = $1`, // whatever the clocks of two workers say
			from, to.Database, to.Version, to.Since)
		if err == nil && tag.RowsAffected() != 1 {
			return ErrNotServing
		}
		return err
	})
	return b.failed(err)
}

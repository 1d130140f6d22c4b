package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Stream names one source's stream of one move, as its checkpoint on a shard is keyed.
type Stream struct {
	Move   string
	Source int
	Epoch  int64
}

// AdvanceSQL moves a checkpoint in the transaction that wrote the rows; it raises unless the checkpoint is exactly at
// $3. Parameters: move, source, position it is at, position it becomes, epoch.
const AdvanceSQL = `select pgreshard.advance($1, $2::int, $3::pg_lsn, $4::pg_lsn, $5::bigint)`

// Begin writes the first checkpoint of a stream, the slot's consistent point, where there is none.
func (s Stream) Begin(ctx context.Context, conn *pgx.Conn, at pg.LSN) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pgreshard.check_epoch($1)`, s.Epoch); err != nil {
			return Refused(err)
		}
		_, err := tx.Exec(ctx, `insert into pgreshard.checkpoint (move, source, lsn) values ($1, $2, $3::text::pg_lsn)
			on conflict do nothing`, s.Move, s.Source, at.String())
		if err != nil {
			return fmt.Errorf("first checkpoint of source %d: %w", s.Source, err)
		}
		return nil
	})
}

// Lock waits until no transaction holds this stream's checkpoint row on the shard, and reads it. A new connection
// does this first: what an older connection's backend was still committing is then either in the answer or gone.
func (s Stream) Lock(ctx context.Context, conn *pgx.Conn) (pg.LSN, error) {
	var at pg.LSN
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select pgreshard.check_epoch($1)`, s.Epoch); err != nil {
			return Refused(err)
		}
		return tx.QueryRow(ctx, `select lsn::text from pgreshard.checkpoint where move = $1 and source = $2 for update`,
			s.Move, s.Source).Scan(&at)
	})
	if err != nil {
		return 0, fmt.Errorf("read the checkpoint of source %d: %w", s.Source, err)
	}
	return at, nil
}

// Position reads a checkpoint without waiting; ok is false where there is none yet.
func (s Stream) Position(ctx context.Context, q pg.Querier) (at pg.LSN, ok bool, err error) {
	err = q.QueryRow(ctx, `select lsn::text from pgreshard.checkpoint where move = $1 and source = $2`, s.Move, s.Source).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read the checkpoint of source %d: %w", s.Source, err)
	}
	return at, true, nil
}

// Forget drops everything a shard remembers of a stream whose copy begins anew: no row of it was ever committed there.
func (s Stream) Forget(ctx context.Context, conn *pgx.Conn) error {
	for _, table := range []string{"checkpoint", "chunk", "resumed", "outbox", "unmapped"} {
		if _, err := conn.Exec(ctx, "delete from pgreshard."+table+" where move = $1 and source = $2", s.Move, s.Source); err != nil {
			return fmt.Errorf("forget the %ss of source %d: %w", table, s.Source, err)
		}
	}
	return nil
}

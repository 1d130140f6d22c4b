package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// SQLSTATEs the bookkeeping functions raise.
const (
	CodePosition = "PR001"
	CodeEpoch    = "PR002"
	CodeRows     = "PR003"
)

// ErrSuperseded means that another worker has raised the epoch: this one may write nothing any more and stops.
var ErrSuperseded = errors.New("another worker has taken this move over; hint: look at `pgreshard status` for who it is, and leave only one running")

// ErrPositionMoved means that a checkpoint or chunk mark was not where this transaction began: an older connection's
// transaction committed meanwhile. The transaction was rolled back; reading the checkpoint again and going on is safe.
var ErrPositionMoved = errors.New("the checkpoint moved under this transaction")

// Refused turns the errors the bookkeeping raises into the two sentinels and leaves every other error as it is.
func Refused(err error) error {
	switch pg.Code(err) {
	case CodeEpoch:
		return fmt.Errorf("%w (%w)", ErrSuperseded, err)
	case CodePosition:
		return fmt.Errorf("%w (%w)", ErrPositionMoved, err)
	}
	return err
}

// Epoch reads a node's epoch.
func Epoch(ctx context.Context, q pg.Querier) (int64, error) {
	var e int64
	err := q.QueryRow(ctx, `select epoch from pgreshard.epoch`).Scan(&e)
	return e, err
}

// RaiseEpoch sets a node's epoch, which must be below it or already be it. A transaction of an older worker that has
// not written its checkpoint yet fails from here on; one that has still holds its checkpoint row's lock, which
// LockPosition waits for.
func RaiseEpoch(ctx context.Context, conn *pgx.Conn, epoch int64) error {
	tag, err := conn.Exec(ctx, `update pgreshard.epoch set epoch = $1 where epoch <= $1`, epoch)
	if err != nil {
		return fmt.Errorf("raise the epoch: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return ErrSuperseded
	}
	return nil
}

// Check is ErrSuperseded where the node has another epoch than this worker's, or no bookkeeping any more.
func (b Book) Check(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `select pgreshard.check_epoch($1)`, b.Epoch)
	switch pg.Code(err) {
	case undefinedSchema, undefinedFunction:
		return fmt.Errorf("%w (%w)", ErrSuperseded, err)
	}
	return Refused(err)
}

const (
	undefinedSchema   = "3F000"
	undefinedFunction = "42883"
)

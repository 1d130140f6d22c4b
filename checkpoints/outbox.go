package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// OutboxSQL keeps the image of a row that leaves a shard, in the transaction that deletes it. Parameters: move, source,
// commit LSN, number of the change within its transaction, table, columns in text.
const OutboxSQL = `insert into pgreshard.outbox (move, source, commit_lsn, n, tbl, image)
	values ($1, $2::int, $3::pg_lsn, $4::bigint, $5, $6::text[])`

// Outbox reads the image a row left behind when it was deleted by change n of the transaction committed at commit; nil
// where there is none.
func (s Stream) Outbox(ctx context.Context, q pg.Querier, commit pg.LSN, n int64) ([]*string, error) {
	var image []*string
	err := q.QueryRow(ctx, `select image from pgreshard.outbox
		where move = $1 and source = $2 and commit_lsn = $3::text::pg_lsn and n = $4`, s.Move, s.Source, commit.String(), n).Scan(&image)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return image, nil
}

// SweepSQL drops images no replay can ask for any more: the slot is confirmed past them. Parameters: move, source,
// confirmed position.
const SweepSQL = `delete from pgreshard.outbox where move = $1 and source = $2::int and commit_lsn < $3::pg_lsn`

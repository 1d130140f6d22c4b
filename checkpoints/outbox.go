package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// OutboxSQL keeps the image of a row that leaves a shard, in the transaction that deletes it. Parameters: move, source,
// commit LSN, number of the change within its transaction, table, its columns' names, their values in text.
const OutboxSQL = `insert into pgreshard.outbox (move, source, commit_lsn, n, tbl, columns, image)
	values ($1, $2::int, $3::pg_lsn, $4::bigint, $5, $6::text[], $7::text[])`

// Outbox reads the image a row left behind when it was deleted by change n of the transaction committed at commit, with
// the names of the columns its table had then; nil where there is none.
func (s Stream) Outbox(ctx context.Context, q pg.Querier, commit pg.LSN, n int64) (columns []string, image []*string, err error) {
	err = q.QueryRow(ctx, `select columns, image from pgreshard.outbox
		where move = $1 and source = $2 and commit_lsn = $3::text::pg_lsn and n = $4`, s.Move, s.Source, commit.String(), n).Scan(&columns, &image)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the outbox: %w", err)
	}
	return columns, image, nil
}

// Image is a row as it stood when it left a shard.
type Image struct {
	N       int64     // its number within the transaction
	Columns []string  // the names of the columns its table had then
	Values  []*string // in text
}

// OutboxOf reads the images that a transaction left of a table, numbered above from and below to, the highest first; at
// most limit of them.
func (s Stream) OutboxOf(ctx context.Context, q pg.Querier, commit pg.LSN, table string, from, to int64, limit int) ([]Image, error) {
	rows, err := q.Query(ctx, `select n, columns, image from pgreshard.outbox
		where move = $1 and source = $2 and commit_lsn = $3::text::pg_lsn and tbl = $4 and n > $5 and n < $6 order by n desc limit $7`,
		s.Move, s.Source, commit.String(), table, from, to, limit)
	var images []Image
	if err == nil {
		images, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Image])
	}
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return images, nil
}

// SweepSQL drops images no replay can ask for any more: the slot is confirmed past them. Parameters: move, source,
// confirmed position.
const SweepSQL = `delete from pgreshard.outbox where move = $1 and source = $2::int and commit_lsn < $3::pg_lsn`

package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// UnmappedSQL notes, in the transaction that places its rows, that a key had no mapping row at its transaction's end, and
// what it was placed by; NULL where no row of it was to stay. Parameters: move, source, commit LSN, table, key, value.
const UnmappedSQL = `insert into pgreshard.unmapped (move, source, commit_lsn, tbl, key, placed, value)
	values ($1, $2::int, $3::pg_lsn, $4, $5, true, $6)`

// LostSQL notes keys that rows carry and whose mapping rows have gone; a query that gives the keys follows. Parameters: move,
// source, commit LSN, table.
const LostSQL = `insert into pgreshard.unmapped (move, source, commit_lsn, tbl, key) select $1, $2::int, $3::pg_lsn, $4, `

// Unmapped reads what a key was placed by in the transaction committed at commit; noted is false where it was not.
func (s Stream) Unmapped(ctx context.Context, q pg.Querier, commit pg.LSN, table, key string) (value []byte, noted bool, err error) {
	err = q.QueryRow(ctx, `select value from pgreshard.unmapped
		where move = $1 and source = $2 and commit_lsn = $3::text::pg_lsn and tbl = $4 and key = $5 and placed`, s.Move, s.Source, commit.String(), table, key).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read what a key was placed by: %w", err)
	}
	return value, true, nil
}

// UnmappedKeys lists the keys of each table that rows may carry without a mapping row, whichever source they are of; nil: any.
func (s Stream) UnmappedKeys(ctx context.Context, q pg.Querier, each func(table string, key *string)) error {
	rows, err := q.Query(ctx, `select distinct tbl, key from pgreshard.unmapped where move = $1`, s.Move)
	if err == nil {
		var table string
		var key *string
		_, err = pgx.ForEachRow(rows, []any{&table, &key}, func() error {
			each(table, key)
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("read which keys had no mapping row: %w", err)
	}
	return nil
}

// MappedSQL notes, in the transaction that has moved their rows to where their mapping rows say, that keys have some now.
// Parameters: move, source and commit LSN of that transaction, table, keys.
const MappedSQL = `update pgreshard.unmapped set mapped_by = $2::int, mapped_lsn = $3::pg_lsn
	where move = $1 and tbl = $4 and key = any($5::text[]) and mapped_lsn is null`

// AllMappedSQL notes it of every key of a table.
const AllMappedSQL = `update pgreshard.unmapped set mapped_by = $2::int, mapped_lsn = $3::pg_lsn
	where move = $1 and tbl = $4 and mapped_lsn is null`

// SweepUnmappedSQL drops what neither a replay nor a mapping row that comes can ask for any more. Parameters: move, source,
// confirmed position.
const SweepUnmappedSQL = `delete from pgreshard.unmapped
	where move = $1 and source = $2::int and commit_lsn < $3::pg_lsn and mapped_by = source and mapped_lsn < $3::pg_lsn`

package checkpoints

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// MarkSQL marks a chunk as held by the shard, in the transaction that wrote its rows; a second mark violates the
// primary key. Parameters: move, source, leaf's OID as text, chunk number, filenode, epoch.
const MarkSQL = `select pgreshard.mark($1, $2::int, $3, $4::int, $5::bigint, $6::bigint)`

// Mark is a chunk a shard holds.
type Mark struct {
	Table    string // the leaf, as given to MarkSQL
	Chunk    int
	Filenode uint32
}

// Marks lists the chunks of a source that a shard holds.
func (s Stream) Marks(ctx context.Context, q pg.Querier) ([]Mark, error) {
	rows, err := q.Query(ctx, `select tbl, chunk, filenode from pgreshard.chunk where move = $1 and source = $2`, s.Move, s.Source)
	if err != nil {
		return nil, fmt.Errorf("read chunk marks: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Mark])
}

// VoidMarks forgets a table's marks on a shard, because its file changed and its ranges mean other rows now.
func (s Stream) VoidMarks(ctx context.Context, conn *pgx.Conn, table string) error {
	_, err := conn.Exec(ctx, `delete from pgreshard.chunk where move = $1 and source = $2 and tbl = $3`, s.Move, s.Source, table)
	return err
}

// Resumed is what a copy that was interrupted leaves the stream to know about a table. Positions are 0 where unset.
type Resumed struct {
	// ForgiveUntil: changes committed up to and including here may already be in what was copied.
	ForgiveUntil pg.LSN
	// StartsAt: the table (one without key) was emptied and copied again as of here; changes committed before are in it.
	StartsAt pg.LSN
}

// Resume records on a shard, before the rows it covers are committed anywhere, what the stream must know of a table
// whose copy goes on. Positions only ever grow.
func (s Stream) Resume(ctx context.Context, conn *pgx.Conn, table string, r Resumed) error {
	_, err := conn.Exec(ctx, `insert into pgreshard.resumed as f (move, source, tbl, forgive_until, starts_at)
		values ($1, $2, $3, $4::text::pg_lsn, $5::text::pg_lsn)
		on conflict (move, source, tbl) do update
		   set forgive_until = greatest(f.forgive_until, excluded.forgive_until), starts_at = greatest(f.starts_at, excluded.starts_at)`,
		s.Move, s.Source, table, orNull(r.ForgiveUntil), orNull(r.StartsAt))
	if err != nil {
		return fmt.Errorf("record that the copy of %s was resumed: %w", table, err)
	}
	return nil
}

func orNull(l pg.LSN) *string {
	if l == 0 {
		return nil
	}
	s := l.String()
	return &s
}

// ResumedTables reads what Resume recorded, by table.
func (s Stream) ResumedTables(ctx context.Context, q pg.Querier) (map[string]Resumed, error) {
	rows, err := q.Query(ctx, `select tbl, coalesce(forgive_until, '0/0')::text, coalesce(starts_at, '0/0')::text
		from pgreshard.resumed where move = $1 and source = $2`, s.Move, s.Source)
	if err != nil {
		return nil, fmt.Errorf("read which tables were resumed: %w", err)
	}
	out := map[string]Resumed{}
	var table string
	var r Resumed
	_, err = pgx.ForEachRow(rows, []any{&table, &r.ForgiveUntil, &r.StartsAt}, func() error { out[table] = r; return nil })
	return out, err
}

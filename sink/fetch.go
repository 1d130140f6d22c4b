package sink

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/pg"
)

// asked is the connection on which the source is asked, opened when it is first needed.
func (r *router) asked(ctx context.Context) (*pgx.Conn, error) {
	if r.source == nil {
		var err error
		if r.source, err = pg.Open(ctx, r.Source, pg.Reader, r.AppName); err != nil {
			return nil, err
		}
	}
	return r.source, nil
}

// fetch reads a row as it is now on the source; nil where it is gone. The table then forgives up to now, which every
// shard is told before the row is written anywhere.
func (r *router) fetch(ctx context.Context, t *Table, row pg.Row) (pg.Row, error) {
	conn, err := r.asked(ctx)
	if err != nil {
		return nil, err
	}
	var s statement
	sql := fmt.Sprintf("select %s from %s t where %s", t.columnList(all(len(t.Columns))), t.sourceRows(), t.match(t.Key, s.bind(t, t.Key, row)))
	result := conn.PgConn().ExecParams(ctx, sql, s.params, make([]uint32, len(s.params)), nil, nil).Read()
	if result.Err != nil {
		return nil, fmt.Errorf("read a row of %s again from the source: %w", t.Source, result.Err)
	}
	var now pg.LSN
	if err := conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&now); err != nil {
		return nil, err
	}
	if now > t.Forgive {
		if err := r.Forgive(ctx, t, now); err != nil {
			return nil, err
		}
		t.Forgive = now
	}
	if len(result.Rows) == 0 {
		return nil, nil
	}
	return textRow(result.Rows[0]), nil
}

// onlyMine refuses to put a row over one of the same key that another source placed there.
func (r *router) onlyMine(ctx context.Context, t *Table, shard layout.Shard, row pg.Row) error {
	if r.skip[shard] || len(t.mineKey()) == 0 {
		return nil
	}
	var s statement
	s.sql = fmt.Sprintf("select %s from %s t where %s", t.columnList(t.mineKey()), t.destRows(), t.match(t.Key, s.bind(t, t.Key, row)))
	return r.call(ctx, []int{int(shard)}, func(ctx context.Context, a *applier) error {
		result := a.exec(ctx, s)
		for _, values := range result.Rows {
			mine, err := r.Mine(t, textRow(values))
			if err != nil {
				return err
			}
			if !mine {
				return &DivergedError{Table: t.Source, Shard: shard, At: r.tx.Commit, What: "two sources, one key: a row of another source is there already", Key: keyText(row, t.Key)}
			}
		}
		return result.Err
	})
}

package sink

import (
	"context"
	"fmt"
	"sync"

	"pgreshard/layout"
	"pgreshard/pg"
)

// forgiving routes a change that what a resumed copy read may already contain (docs/design.md, "Resume"): inserts and
// complete updates put the row as it is, deletes may find nothing, and an update that lacks columns keeps what the row
// on the destination has, or takes the row as it is now from the source.
func (r *router) forgiving(ctx context.Context, t *Table, kind pg.Op, old, new pg.Row) error {
	if len(t.Feeds) > 0 {
		r.forgetTranslations(t, old, new)
	}
	if kind == pg.OpDelete {
		return r.forgivingDelete(ctx, t, old)
	}
	rekeyed := old != nil && t.keyChanged(old, new)
	if !complete(new) {
		return r.forgivingPartial(ctx, t, old, new, rekeyed)
	}
	if rekeyed {
		if err := r.forgivingDelete(ctx, t, old); err != nil {
			return err
		}
	}
	return r.put(ctx, t, new)
}

// put makes the row stand as it is on its shard, and on no other.
func (r *router) put(ctx context.Context, t *Table, row pg.Row) error {
	if t.Rule.Omni {
		for _, shard := range r.all {
			r.add(layout.Shard(shard), op{kind: opUpsert, table: t, new: row})
		}
		return nil
	}
	to, err := r.place(ctx, t, row)
	if err != nil {
		return err
	}
	if t.loose() {
		for _, shard := range r.others(to) {
			r.add(layout.Shard(shard), op{kind: opDeleteAny, table: t, old: row})
		}
	}
	r.add(to, op{kind: opUpsert, table: t, new: row})
	return nil
}

func (r *router) forgivingDelete(ctx context.Context, t *Table, old pg.Row) error {
	shards := r.all
	if !t.Rule.Omni && !t.loose() {
		shard, err := r.place(ctx, t, old)
		if err != nil {
			return err
		}
		shards = []int{int(shard)}
	}
	for _, shard := range shards {
		r.add(layout.Shard(shard), op{kind: opDeleteAny, table: t, old: old})
	}
	return nil
}

// forgivingPartial handles an update that lacks columns. Across a change of the primary key the row on the destination
// may be another one under that key, so only the source knows.
func (r *router) forgivingPartial(ctx context.Context, t *Table, old, new pg.Row, rekeyed bool) error {
	var image pg.Row
	var err error
	if rekeyed {
		if image, err = r.takeAny(ctx, t, old); err != nil {
			return err
		}
		if t.primaryChanged(old, new) {
			image = nil
		}
	} else if image, err = r.takeAny(ctx, t, new); err != nil {
		return err
	}
	if image != nil {
		return r.put(ctx, t, completed(new, image))
	}
	now, err := r.fetch(ctx, t, new)
	if err != nil || now == nil {
		return err
	}
	return r.put(ctx, t, now)
}

func (t *Table) primaryChanged(old, new pg.Row) bool {
	for _, c := range t.Key {
		if old[c].Kind != pg.Unchanged && string(old[c].Bytes) != string(new[c].Bytes) {
			return true
		}
	}
	return false
}

// takeAny deletes the row from wherever it is among the shards that may hold it and returns it.
func (r *router) takeAny(ctx context.Context, t *Table, row pg.Row) (pg.Row, error) {
	var mu sync.Mutex
	var image pg.Row
	err := r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error {
		got, err := a.takeOut(ctx, t, row)
		mu.Lock()
		defer mu.Unlock()
		if got != nil {
			image = got
		}
		return err
	})
	return image, err
}

// fetch reads a row as it is now on the source; nil where it is gone. The table then forgives up to now, which every
// shard is told before the row is written anywhere.
func (r *router) fetch(ctx context.Context, t *Table, row pg.Row) (pg.Row, error) {
	if r.source == nil {
		var err error
		if r.source, err = pg.Open(ctx, r.Source, pg.Reader, r.AppName); err != nil {
			return nil, err
		}
	}
	var s statement
	sql := fmt.Sprintf("select %s from %s t where %s", t.columnList(all(len(t.Columns))), t.Source.SQL(), t.match(t.Key, s.bind(t, t.Key, row)))
	result := r.source.PgConn().ExecParams(ctx, sql, s.params, make([]uint32, len(s.params)), nil, nil).Read()
	if result.Err != nil {
		return nil, fmt.Errorf("read a row of %s again from the source: %w", t.Source, result.Err)
	}
	var now pg.LSN
	if err := r.source.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&now); err != nil {
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

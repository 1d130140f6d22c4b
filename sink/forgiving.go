package sink

import (
	"context"
	"sync"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// forgiving routes a change that what a resumed copy read may already contain (docs/design.md, "Resume"): inserts and
// complete updates put the row as it is, deletes may find nothing, and an update that lacks columns keeps what the row
// on the destination has, or takes the row as it is now from the source.
func (r *router) forgiving(ctx context.Context, t *Table, kind pg.Op, old, new pg.Row) error {
	if len(t.Feeds) > 0 && kind == pg.OpDelete {
		if err := r.mappingPasses(ctx, t, kind, old, new); err != nil {
			return err
		}
	} else if len(t.Feeds) > 0 {
		for _, row := range []pg.Row{old, new} {
			if row != nil {
				r.forgetTranslations(t, row)
			}
		}
		if kind == pg.OpInsert {
			r.mappingComes(t, new)
		} else { // rows may have been placed by what it was, or by what it is to be
			r.translationsChange(t, old, new)
		}
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
	to, err := r.placeNew(ctx, t, row)
	if err != nil {
		return err
	}
	if t.loose() {
		for _, shard := range r.others(to) {
			r.add(layout.Shard(shard), op{kind: opDeleteAny, table: t, old: row})
		}
	}
	if r.Mine != nil {
		if err := r.onlyMine(ctx, t, to, row); err != nil {
			return err
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
	err = r.put(ctx, t, now)
	if lookup.Missing(err) != nil && changedIn(t.RuleKey, new, now) {
		return nil // its mapping row comes later in the stream, and so does the change that needs it
	}
	return err
}

func (t *Table) primaryChanged(old, new pg.Row) bool { return changedIn(t.Key, old, new) }

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
	if err != nil { // a shard may still be at it
		return nil, err
	}
	return image, nil
}

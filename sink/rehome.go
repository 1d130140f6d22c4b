package sink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// When a mapping changes, the rows that carry its keys move to where the new translation places them, at the end of the
// transaction that changed it (docs/design.md, "Lookup"). Each leaves its image in the outbox of the shard it is deleted
// on, so that either shard may commit first.

// rehoming is a table of which rows may have to move at the end of the open transaction.
type rehoming struct {
	table *Table
	keys  keySet
}

// rehome moves the rows whose keys' translations may have changed to where they are placed now.
func (r *router) rehome(ctx context.Context) error {
	todo := r.rehomings
	r.rehomings = nil
	switch {
	case r.Level:
		return nil
	case len(todo) > 0 && r.together():
		return ErrRemapped
	}
	r.pass++
	for _, h := range mappingsFirst(todo) {
		if err := r.rehomeTable(ctx, h.table, h.keys); err != nil {
			return fmt.Errorf("move the rows of %s whose mapping was changed: %w", h.table.Source, err)
		}
	}
	return nil
}

// mappingsFirst puts tables that others' lookups read before those: a lookup that joins tables answers where their rows have come
// together again.
func mappingsFirst(todo []*rehoming) (out []*rehoming) {
	for len(todo) > 0 {
		first := slices.IndexFunc(todo, func(h *rehoming) bool {
			return !slices.ContainsFunc(todo, func(m *rehoming) bool { return m != h && m.table.feeds(h.table.Query) })
		})
		first = max(first, 0) // they read each other
		out = append(out, todo[first])
		todo = slices.Delete(todo, first, first+1)
	}
	return out
}

func (r *router) rehomeTable(ctx context.Context, t *Table, keys keySet) error {
	r.unsettled = r.unsettled || t.AskAll
	err := r.reach(ctx, t, &keys)
	if err != nil {
		return err
	}
	if keys.all {
		r.changed(t.Query, nil)
		r.homeless = r.ahead
		if err = r.rehomeAll(ctx, t); err == nil && !r.homeless {
			err = r.allMapped(ctx, t)
		}
	} else {
		err = r.rehomeKeys(ctx, t, slices.Sorted(maps.Keys(keys.keys)))
	}
	if err != nil {
		return err
	}
	return r.rehomeLeft(ctx, t)
}

// Keys and rows are taken in blocks: a tenant may be larger than memory.
const (
	rehomedKeys = 1000
	rehomedRows = 100
)

func (r *router) rehomeKeys(ctx context.Context, t *Table, keys []string) error {
	for block := range slices.Chunk(keys, rehomedKeys) {
		data := make([]pg.Datum, len(block))
		for i, key := range block {
			data[i] = pg.Datum{Kind: pg.Text, Bytes: []byte(key)}
			r.changed(t.Query, data[i].Bytes)
		}
		if err := r.rehomeBlock(ctx, t, r.live(r.all), data); err != nil {
			return err
		}
	}
	return nil
}

// rehomeAll looks at every key that rows on the shards carry.
func (r *router) rehomeAll(ctx context.Context, t *Table) error {
	key := t.RuleKey[0]
	for _, shard := range r.live(r.all) {
		for last := (pg.Datum{Kind: pg.Null}); ; {
			s, after := statement{}, "is not null"
			if last.Kind == pg.Text {
				row := make(pg.Row, len(t.Columns))
				row[key] = last
				after = "> " + s.bind(t, []int{key}, row)[0]
			}
			s.sql = fmt.Sprintf("select distinct t.%s from %s t where t.%[1]s %[3]s order by 1 limit %[4]d", t.Columns[key].SQL(), t.destRows(), after, rehomedKeys)
			var keys []pg.Datum
			err := r.call(ctx, []int{shard}, func(ctx context.Context, a *applier) error {
				result := a.exec(ctx, s)
				for _, values := range result.Rows {
					keys = append(keys, textRow(values)[0])
				}
				return result.Err
			})
			if err == nil && len(keys) > 0 {
				last = keys[len(keys)-1]
				err = r.rehomeBlock(ctx, t, []int{shard}, keys)
			}
			if err != nil {
				return err
			}
			if len(keys) < rehomedKeys {
				break
			}
		}
	}
	return nil
}

// rehomeBlock moves the rows of some keys from those of shards where they are not placed.
func (r *router) rehomeBlock(ctx context.Context, t *Table, shards []int, keys []pg.Datum) error {
	homes, err := r.homes(ctx, t, keys)
	if err == nil {
		err = r.mapped(ctx, t, keys, homes)
	}
	if err != nil {
		return err
	}
	wrong := make([][]pg.Datum, len(r.appliers))
	for i, home := range homes {
		r.homeless = r.homeless || home < 0
		for _, shard := range shards {
			if home >= 0 && int(home) != shard {
				wrong[shard] = append(wrong[shard], keys[i])
			}
		}
	}
	shards = slices.DeleteFunc(slices.Clone(shards), func(shard int) bool { return len(wrong[shard]) == 0 })
	for len(shards) > 0 {
		images := make([][]pg.Row, len(r.appliers))
		commit, pass := r.tx.Commit, r.pass
		err := r.call(ctx, shards, func(ctx context.Context, a *applier) (err error) {
			images[a.shard], err = a.takeOutOf(ctx, t, wrong[a.shard], commit, pass)
			return err
		})
		if err != nil {
			return err
		}
		more := shards[:0]
		for _, shard := range shards {
			if err := r.putHome(ctx, t, images[shard]); err != nil {
				return err
			}
			if len(images[shard]) >= rehomedRows {
				more = append(more, shard)
			}
		}
		shards = more
	}
	return nil
}

// homes names the shard of each key as the mapping is here; -1 where it has none, and rows stay where they are.
func (r *router) homes(ctx context.Context, t *Table, keys []pg.Datum) ([]layout.Shard, error) {
	out := make([]layout.Shard, len(keys))
	for i := range keys {
		out[i] = -1
	}
	once := r.askingOnce(t)
	texts := make([][]byte, len(keys))
	for i, key := range keys {
		var err error
		if texts[i], err = t.Rule.KeyText([]byte{}, key); err != nil {
			return nil, &PlaceError{Table: t.Source, At: r.tx.Commit, Err: err}
		}
	}
	values, err := r.Router.Lookups.TranslateMany(ctx, once.Query, texts, r.asker(ctx, t))
	missing := lookup.Missing(err)
	if err != nil && missing == nil {
		return nil, err
	}
	for i, key := range keys {
		var none error
		if values[i] == nil {
			none = missing
		}
		shard, err := r.Router.translated(t, []pg.Datum{key}, values[i], none)
		var place *PlaceError
		switch {
		case err == nil:
			out[i] = shard
		case lookup.Missing(err) != nil:
		case errors.As(err, &place):
			place.At = r.tx.Commit
			return nil, err
		default:
			return nil, err
		}
	}
	return out, nil
}

// putHome gives rows that left a shard to the shards their keys name.
func (r *router) putHome(ctx context.Context, t *Table, images []pg.Row) error {
	if len(images) == 0 {
		return nil
	}
	keys := make([]pg.Datum, len(images))
	for i, image := range images {
		keys[i] = image[t.RuleKey[0]]
	}
	homes, err := r.homes(ctx, t, keys)
	if err != nil {
		return err
	}
	kind := opInsert
	if r.tx.Commit <= t.Forgive && len(t.Key) > 0 {
		kind = opUpsert
	}
	for i, home := range homes {
		if home < 0 {
			return &DivergedError{Table: t.Source, At: r.tx.Commit, Key: keyText(images[i], t.Key), What: "a row was moved by a mapping that is not there any more"}
		}
		r.add(home, op{kind: kind, table: t, new: images[i]})
	}
	return r.pushLarge(ctx)
}

// rehomeLeft puts home what shards that are ahead of this place moved away at it.
func (r *router) rehomeLeft(ctx context.Context, t *Table) error {
	var ahead []int
	for _, shard := range r.all {
		if r.skip[shard] {
			ahead = append(ahead, shard)
		}
	}
	commit, pass := r.tx.Commit, r.pass
	for _, shard := range ahead {
		for after := int64(0); after >= 0; {
			var images []pg.Row
			err := r.call(ctx, []int{shard}, func(ctx context.Context, a *applier) (err error) {
				images, after, err = a.leftOutOf(ctx, t, commit, pass, after)
				return err
			})
			if err == nil {
				err = r.putHome(ctx, t, images)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// takeOutOf deletes some of the rows that carry one of the keys, keeps their images in the outbox, and returns them.
// Where leaves have rows at the same place (ctid) more of them go than were counted, all of those keys.
func (a *applier) takeOutOf(ctx context.Context, t *Table, keys []pg.Datum, commit pg.LSN, pass int64) ([]pg.Row, error) {
	column := []int{t.RuleKey[0]}
	rows := make([]pg.Row, len(keys))
	for i, key := range keys {
		rows[i] = make(pg.Row, len(t.Columns))
		rows[i][column[0]] = key
	}
	w := unnest(t, column, rows, "w", 1)
	match := t.match(column, w.values)
	var s statement
	s.takes(w)
	s.sql = fmt.Sprintf("delete from %[1]s t using %[2]s where %[3]s and t.ctid = any(array(select t.ctid from %[1]s t, %[2]s where %[3]s limit %[4]d)) returning %[5]s",
		t.destRows(), joined(false, w), match, rehomedRows, t.qualified(all(len(t.Columns))))
	result := a.exec(ctx, s)
	if result.Err != nil {
		return nil, result.Err
	}
	images := make([]pg.Row, len(result.Rows))
	b := a.batch()
	for i, values := range result.Rows {
		images[i] = textRow(values)
		a.rehomed++
		b.send(a.outbox(t, images[i], commit, rehomedNumber(pass, a.rehomed)))
	}
	return images, b.run(ctx)
}

// rehomedNumber numbers the images a mapping's change leaves, below those of single changes: by pass within the
// transaction, then in their order on the shard.
func rehomedNumber(pass, i int64) int64 { return -(pass<<40 + i) }

// leftOutOf reads images that a mapping's change left on this shard, from number after on; -1: there are no more.
func (a *applier) leftOutOf(ctx context.Context, t *Table, commit pg.LSN, pass, after int64) (images []pg.Row, next int64, err error) {
	list, err := a.stream.Checkpoint.OutboxOf(ctx, a.conn, commit, t.Source.String(), rehomedNumber(pass+1, 0), rehomedNumber(pass, after), rehomedRows)
	if err != nil {
		return nil, -1, err
	}
	next = -1
	for _, image := range list {
		images = append(images, t.imageRow(image.Columns, image.Values))
		next = -image.N - pass<<40
	}
	if len(list) < rehomedRows {
		return images, -1, nil
	}
	return images, next, nil
}

// qualified lists columns of t.
func (t *Table) qualified(columns []int) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = "t." + t.Columns[c].SQL()
	}
	return strings.Join(out, ", ")
}

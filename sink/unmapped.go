package sink

import (
	"context"
	"fmt"
	"sync"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// A key that has no translation on the shards at the end of its row's transaction may have one on the sources by now: its
// mapping row comes later in the stream. Until that row passes, rows go by what the sources say. What they said is kept on
// every shard, in the transaction that places the row: a replay with a shard that is ahead must place it alike. When the
// mapping row passes, the rows move if it says otherwise (docs/design.md, "Lookup").

// Unmapped are the keys, by table, of which rows were placed without a mapping row. The streams of all sources share it.
type Unmapped struct {
	mu     sync.Mutex
	tables map[string]*keySet
}

func (u *Unmapped) add(table, key string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tables == nil {
		u.tables = map[string]*keySet{}
	}
	if u.tables[table] == nil {
		u.tables[table] = &keySet{}
	}
	u.tables[table].put([]byte(key))
}

// among gives those of keys that are unmapped keys of a table.
func (u *Unmapped) among(t *Table, keys []pg.Datum) (out []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	set := u.tables[t.Source.String()]
	for _, key := range keys {
		if set != nil && key.Kind == pg.Text && set.has(pg.Row{key}, 0) {
			out = append(out, string(key.Bytes))
		}
	}
	return out
}

// of gives a table's unmapped keys as a set of its own.
func (u *Unmapped) of(t *Table) (out keySet) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if set := u.tables[t.Source.String()]; set != nil {
		out.join(set)
	}
	return out
}

func (u *Unmapped) remove(t *Table, keys []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if set := u.tables[t.Source.String()]; set != nil {
		for _, key := range keys {
			delete(set.keys, key)
		}
	}
}

// decision is what the rows of a key without translation are placed by in the open transaction: value, or, where the
// sources hold no row of the key any more, nothing: they go to the first shard, until the stream takes them away.
type decision struct{ value []byte }

// placeNew is place for a row that comes to a shard.
func (r *router) placeNew(ctx context.Context, t *Table, row pg.Row) (layout.Shard, error) {
	shard, err := r.place(ctx, t, row)
	if lookup.Missing(err) == nil || !r.ending {
		return shard, err
	}
	return r.placeUnmapped(ctx, t, row, err)
}

// placeUnmapped places a row whose key has no translation at the end of its transaction.
func (r *router) placeUnmapped(ctx context.Context, t *Table, row pg.Row, missing error) (layout.Shard, error) {
	key := row[t.RuleKey[0]]
	if key.Kind != pg.Text || r.Mine != nil {
		return 0, missing
	}
	d, err := r.decide(ctx, t, key, missing)
	switch {
	case err != nil:
		return 0, err
	case d.value == nil:
		return 0, nil
	}
	shard, err := r.Router.translated(t, []pg.Datum{key}, d.value, nil)
	if e, ok := err.(*PlaceError); ok {
		e.At = r.tx.Commit
	}
	return shard, err
}

func (r *router) decide(ctx context.Context, t *Table, key pg.Datum, missing error) (d decision, err error) {
	id := t.Source.String() + "\x00" + string(key.Bytes)
	if d, ok := r.decided[id]; ok {
		return d, nil
	}
	r.Unmapped.add(t.Source.String(), string(key.Bytes)) // before the sources are asked: what they tell may pass meanwhile
	if r.ahead {
		noted := false
		if d, noted, err = r.decidedBefore(ctx, t, key); err == nil && !noted { // it had its mapping row then
			err = missing
		}
	} else {
		d, err = r.asTheSourcesAre(ctx, t, key)
	}
	if err == nil {
		err = r.noteUnmapped(ctx, t, key, d)
	}
	if err == nil {
		r.decided[id] = d
	}
	return d, err
}

// decidedBefore asks a shard that has the open transaction what it placed the key by.
func (r *router) decidedBefore(ctx context.Context, t *Table, key pg.Datum) (d decision, noted bool, err error) {
	for _, shard := range r.all {
		if r.skip[shard] {
			commit := r.tx.Commit
			err = r.call(ctx, []int{shard}, func(ctx context.Context, a *applier) (err error) {
				d.value, noted, err = r.Checkpoint.Unmapped(ctx, a.conn, commit, t.Source.String(), string(key.Bytes))
				return err
			})
			return d, noted, err
		}
	}
	return d, false, nil
}

// noteUnmapped keeps the decision on every shard, in the transaction that places the row on one.
func (r *router) noteUnmapped(ctx context.Context, t *Table, key pg.Datum, d decision) error {
	p := r.Checkpoint
	s := statement{sql: checkpoints.UnmappedSQL, types: make([]uint32, 6), params: [][]byte{[]byte(p.Move), fmt.Append(nil, p.Source), []byte(r.tx.Commit.String()),
		[]byte(t.Source.String()), key.Bytes, d.value}}
	return r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error { return a.exec(ctx, s).Err })
}

// asTheSourcesAre asks the sources, as they are now, for the translation of a key. Where they have none, and rows that
// carry it, the stream cannot go on before they have.
func (r *router) asTheSourcesAre(ctx context.Context, t *Table, key pg.Datum) (d decision, err error) {
	text, err := t.Rule.KeyText([]byte{}, key)
	if err != nil {
		return d, &PlaceError{Table: t.Source, At: r.tx.Commit, Err: err}
	}
	d.value, err = r.Router.Lookups.Fresh(ctx, t.Query, text, r.sourceAsker(t))
	if missing := lookup.Missing(err); missing == nil {
		return d, err
	}
	none := err
	conn, err := r.asked(ctx)
	if err != nil {
		return d, err
	}
	var s statement
	row := make(pg.Row, len(t.Columns))
	row[t.RuleKey[0]] = key
	s.sql = fmt.Sprintf("select 1 from %s t where t.%s = %s limit 1", t.sourceRows(), t.Columns[t.RuleKey[0]].SQL(), s.bind(t, t.RuleKey[:1], row)[0])
	result := conn.PgConn().ExecParams(ctx, s.sql, s.params, make([]uint32, len(s.params)), nil, nil).Read()
	if result.Err != nil {
		return d, fmt.Errorf("ask the source for rows of %s that carry a key: %w", t.Source, result.Err)
	}
	if len(result.Rows) == 0 {
		return decision{}, nil
	}
	return d, &PlaceError{Table: t.Source, Key: keyText(pg.Row{key}, []int{0}), At: r.tx.Commit, Err: none}
}

// sourceAsker asks where mapping rows come from.
func (r *router) sourceAsker(t *Table) lookup.Asker {
	return lookup.AskerFunc(func(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
		if r.Now != nil {
			return r.Now(ctx, t, q, keys)
		}
		conn, err := r.asked(ctx)
		if err != nil {
			return nil, err
		}
		return lookup.Ask(ctx, conn.PgConn(), q, keys)
	})
}

// mapped notes which of keys were unmapped and have a translation now.
func (r *router) mapped(ctx context.Context, t *Table, keys []pg.Datum, homes []layout.Shard) error {
	var have []pg.Datum
	for i, home := range homes {
		if home >= 0 {
			have = append(have, keys[i])
		}
	}
	were := r.Unmapped.among(t, have)
	if len(were) == 0 {
		return nil
	}
	column := make([]pg.Row, len(were))
	for i, key := range were {
		column[i] = pg.Row{{Kind: pg.Text, Bytes: []byte(key)}}
	}
	p := r.Checkpoint
	s := statement{sql: checkpoints.MappedSQL, types: make([]uint32, 5), params: [][]byte{[]byte(p.Move), fmt.Append(nil, p.Source), []byte(r.tx.Commit.String()),
		[]byte(t.Source.String()), arrayLiteral(column, 0)}}
	err := r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error { return a.exec(ctx, s).Err })
	if err == nil {
		r.Unmapped.remove(t, were)
	}
	return err
}

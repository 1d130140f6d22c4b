package sink

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// A key that has no translation on the shards at the end of its row's transaction may have one on the sources by now: its
// mapping row comes later in the stream. Until that row passes, rows go by what the sources say. What they said is kept on
// every shard, in the transaction that places the row: a replay with a shard that is ahead must place it alike. When the
// mapping row passes, the rows move if it says otherwise (docs/design.md, "Lookup").

// Unmapped are keys that rows may carry though they have no mapping row: by table, those that shards remember, and, by feed, those
// whose mapping rows went while this process follows. A mapping row that comes for one of them moves its rows. The streams of all
// sources share it.
type Unmapped struct {
	mu     sync.Mutex
	tables map[string]*keySet
	feeds  map[feedID]*keySet
}

// feedID tells the feeds of a move apart, whichever stream has them.
type feedID struct {
	table pg.Name
	query string
}

// gone adds the key that a mapping row answered which goes; which may not be known.
func (u *Unmapped) gone(t *Table, f Feed, row pg.Row, column int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.feeds == nil {
		u.feeds = map[feedID]*keySet{}
	}
	id := feedID{t.Source, f.Query.Name}
	if u.feeds[id] == nil {
		u.feeds[id] = &keySet{}
	}
	u.feeds[id].add(row, column)
}

// wasThere says that a mapping row for the key that a new one answers may have gone before.
func (u *Unmapped) wasThere(t *Table, f Feed, row pg.Row) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	set := u.feeds[feedID{t.Source, f.Query.Name}]
	return set != nil && set.has(row, f.Key)
}

// add adds a key of a table; nil: any.
func (u *Unmapped) add(table string, key *string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.tables == nil {
		u.tables = map[string]*keySet{}
	}
	if u.tables[table] == nil {
		u.tables[table] = &keySet{}
	}
	if key == nil {
		u.tables[table].add(nil, -1)
	} else {
		u.tables[table].put([]byte(*key))
	}
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

func (u *Unmapped) removeAll(t *Table) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.tables, t.Source.String())
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
	if key.Kind != pg.Text {
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
	text := string(key.Bytes)
	r.Unmapped.add(t.Source.String(), &text) // before the sources are asked: what they tell may pass meanwhile
	if r.ahead {
		noted := false
		if d, noted, err = r.decidedBefore(ctx, t, key); err == nil && !noted { // it had its mapping row then
			err = missing
		}
	} else {
		d, err = r.asTheSourcesAre(ctx, t, key)
	}
	if err == nil {
		err = r.note(ctx, t, checkpoints.UnmappedSQL, key.Bytes, d.value)
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
	carried, err := t.Carries(ctx, conn, key)
	if err != nil || !carried {
		return decision{}, err
	}
	return d, &PlaceError{Table: t.Source, Key: keyText(pg.Row{key}, []int{0}), At: r.tx.Commit, Err: none}
}

// Carries says whether a source has rows of the table, now, that carry a key of its rule, which has one column.
func (t *Table) Carries(ctx context.Context, source *pgx.Conn, key pg.Datum) (bool, error) {
	var s statement
	row := make(pg.Row, len(t.Columns))
	row[t.RuleKey[0]] = key
	s.sql = fmt.Sprintf("select 1 from %s t where t.%s = %s limit 1", t.sourceRows(), t.Columns[t.RuleKey[0]].SQL(), s.bind(t, t.RuleKey[:1], row)[0])
	result := source.PgConn().ExecParams(ctx, s.sql, s.params, make([]uint32, len(s.params)), nil, nil).Read()
	if result.Err != nil {
		return false, fmt.Errorf("ask the source for rows of %s that carry a key: %w", t.Source, result.Err)
	}
	return len(result.Rows) > 0, nil
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

// keysLost notes keys that have no mapping row from now on, unless another answers them.
func (r *router) keysLost(t *Table, f Feed, row pg.Row, column int) {
	r.Unmapped.gone(t, f, row, column)
	r.loses = r.loses || t.Rule.Omni
	for _, of := range r.fedBy(f.Query) {
		if r.lost[of] == nil {
			r.lost[of] = &keySet{}
		}
		r.lost[of].add(row, column)
	}
}

// noteLost has every shard remember those of the transaction's lost keys that rows on it carry, for whoever follows after this
// process.
func (r *router) noteLost() {
	for t, keys := range r.lost {
		for _, shard := range r.all {
			r.add(layout.Shard(shard), op{kind: opLost, table: t, lost: &lostKeys{*keys, r.Checkpoint}})
		}
	}
	clear(r.lost)
}

// lostKeys are keys and the stream that has taken their mapping rows away.
type lostKeys struct {
	keySet
	by checkpoints.Stream
}

// noteLost is the statement for what a batch has of a table's lost keys. Which of them rows carry it sees at the batch's end:
// rows that came after the key was lost were placed without a mapping row, and are noted as such.
func noteLost(t *Table, ops []*op) statement {
	var all keySet
	for _, o := range ops {
		all.join(&o.lost.keySet)
	}
	p, at := ops[0].lost.by, ops[len(ops)-1].at
	s := statement{types: make([]uint32, 4), params: [][]byte{[]byte(p.Move), fmt.Append(nil, p.Source), []byte(at.String()), []byte(t.Source.String())}}.of(ops...)
	if all.all {
		s.sql = checkpoints.LostSQL + fmt.Sprintf("null where exists (select from %s)", t.destRows())
		return s
	}
	column := t.RuleKey[:1]
	var rows []pg.Row
	for _, key := range slices.Sorted(maps.Keys(all.keys)) {
		row := make(pg.Row, len(t.Columns))
		row[column[0]] = pg.Datum{Kind: pg.Text, Bytes: []byte(key)}
		rows = append(rows, row)
	}
	w := unnest(t, column, rows, "w", 5)
	s.takes(w)
	s.sql = checkpoints.LostSQL + fmt.Sprintf("format('%%s', k) from (select distinct t.%[1]s k from %[2]s t where t.%[1]s = any(array(select %[3]s from %[4]s))) t",
		t.Columns[column[0]].SQL(), t.destRows(), w.values[0], joined(false, w))
	return s
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
	err := r.note(ctx, t, checkpoints.MappedSQL, arrayLiteral(column, 0))
	if err == nil {
		r.Unmapped.remove(t, were)
	}
	return err
}

// allMapped notes that every key of a table has a translation now.
func (r *router) allMapped(ctx context.Context, t *Table) error {
	if set := r.Unmapped.of(t); !set.all {
		return nil // mapped has noted each
	}
	err := r.note(ctx, t, checkpoints.AllMappedSQL)
	if err == nil {
		r.Unmapped.removeAll(t)
	}
	return err
}

// note writes to the bookkeeping of every shard, in its open transaction.
func (r *router) note(ctx context.Context, t *Table, sql string, values ...[]byte) error {
	p := r.Checkpoint
	s := statement{sql: sql, types: make([]uint32, 4+len(values)), params: append([][]byte{[]byte(p.Move), fmt.Append(nil, p.Source), []byte(r.tx.Commit.String()),
		[]byte(t.Source.String())}, values...)}
	return r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error { return a.exec(ctx, s).Err })
}

package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Feed says that the translations of a query come from a table.
type Feed struct {
	Query *lookup.Query
	// Key is the column the query asks the table by, and the only way it does: a row answers the key it has there, and no
	// other. -1 where it is not known which keys a row answers.
	Key int
	// Adds: a row that comes gives a translation to keys that had none, and another one to no key.
	Adds bool
	// Unique: no two rows of the table answer one key, so that none has a translation because a row went.
	Unique bool
	// Reach, where Key is -1, is asked for the value in column By, which is the table's key, of a row that stands, and gives
	// the keys that it answers, as one JSON array of their texts; nil: that is not known.
	Reach *lookup.Query
	By    int
}

// mappingPasses keeps the cache in step with a row that lookups read. One that comes is the answer to its key, where
// the query is that simple; whatever was cached is forgotten, since the key may have had another translation. One that
// goes is forgotten when its transaction ends: rows placed by it may go in the same transaction, after it (ON DELETE
// CASCADE), and are found by it. Rows that came before it in the same transaction, and wait for its end, are translated
// by it now: those that have no other mapping then go with it. Rows placed by what was move at the transaction's end.
func (r *router) mappingPasses(ctx context.Context, t *Table, kind pg.Op, old, new pg.Row) error {
	switch kind {
	case pg.OpInsert:
		r.forgetTranslations(t, new)
		for _, a := range t.Answers {
			if new[a.Key].Kind == pg.Text && new[a.Value].Kind == pg.Text {
				r.Router.Lookups.Store(a.Query, new[a.Key].Bytes, new[a.Value].Bytes)
			}
		}
		r.mappingComes(t, new)
	case pg.OpUpdate:
		return r.mappingUpdated(ctx, t, old, new)
	case pg.OpDelete:
		r.leaving = append(r.leaving, leaving{t, old})
		if err := r.translateHeld(ctx, t); err != nil {
			return err
		}
		r.mappingGoes(t, old)
	}
	return nil
}

// mappingsEmptied is mappingGoes for every row of the tables a TRUNCATE empties.
func (r *router) mappingsEmptied(c heldChange) {
	for _, t := range r.tables(c) {
		if len(t.Feeds) > 0 {
			r.leaving = append(r.leaving, leaving{table: t})
		}
		for _, f := range t.Feeds {
			r.keysLost(t, f, nil, -1)
			if !f.Unique {
				r.rehomeLater(Feed{Query: f.Query, Key: -1}, nil, every)
			}
		}
	}
}

// maxKeys bounds the keys that are remembered one by one; beyond it every key is meant.
const maxKeys = 100_000

// keySet is a set of keys, or all there are.
type keySet struct {
	all  bool
	keys map[string]struct{}
	asks map[*lookup.Query]map[string]struct{} // by the query that gives more of them, what it is to be asked for
}

// add puts in the key a row has in a column: all keys where there is no such column, or the log does not carry it.
func (s *keySet) add(row pg.Row, column int) {
	switch {
	case s.all:
	case column < 0 || row == nil || row[column].Kind == pg.Unchanged || len(s.keys) >= maxKeys:
		s.all, s.keys = true, nil
	case row[column].Kind == pg.Text:
		if s.keys == nil {
			s.keys = map[string]struct{}{}
		}
		s.keys[string(row[column].Bytes)] = struct{}{}
	}
}

// put adds a key.
func (s *keySet) put(key []byte) { s.add(pg.Row{{Kind: pg.Text, Bytes: key}}, 0) }

// join puts in every key of another set.
func (s *keySet) join(other *keySet) {
	if other.all {
		s.all, s.keys = true, nil
	}
	for key := range other.keys {
		s.put([]byte(key))
	}
}

func (s *keySet) has(row pg.Row, column int) bool {
	if s.all || s.keys == nil || column < 0 {
		return s.all
	}
	_, ok := s.keys[string(row[column].Bytes)]
	return ok || row[column].Kind == pg.Unchanged
}

// rehomeLater notes that the translation of a row's key may change, and holds the changes of the tables that go by it.
func (r *router) rehomeLater(f Feed, row pg.Row, which func(*Table) bool) {
	for _, t := range r.fedBy(f.Query) {
		if which(t) {
			r.rehomingOf(t).add(row, f.Key)
		}
	}
}

// rehomingOf are the keys of a table that the transaction's end looks at; until then its changes are held.
func (r *router) rehomingOf(t *Table) *keySet {
	r.holding[t] = true
	for _, h := range r.rehomings {
		if h.table == t {
			return &h.keys
		}
	}
	h := &rehoming{table: t}
	r.rehomings = append(r.rehomings, h)
	return &h.keys
}

func every(*Table) bool { return true }

// fedBy lists the tables whose keys a query translates, each once, whatever its leaves.
func (r *router) fedBy(q *lookup.Query) []*Table {
	if fed, ok := r.fed[q.ID]; ok {
		return fed
	}
	byName := map[pg.Name]*Table{}
	for _, t := range r.Tables {
		if t.Query != nil && t.Query.ID == q.ID && (byName[t.Source] == nil || t.StartsAt < byName[t.Source].StartsAt) {
			byName[t.Source] = t
		}
	}
	r.fed[q.ID] = slices.SortedFunc(maps.Values(byName), func(a, b *Table) int { return strings.Compare(a.Source.String(), b.Source.String()) })
	return r.fed[q.ID]
}

// translationsChange notes that a mapping row has become another one in what lookups read. old is nil where the log does
// not tell it: then the row's identity is the one it had.
func (r *router) translationsChange(t *Table, old, new pg.Row) {
	for _, f := range t.Feeds {
		if f.Reach != nil {
			r.reachLater(t, f, old, new)
			continue
		}
		r.rehomeLater(f, new, every)
		switch {
		case old != nil:
			r.rehomeLater(f, old, every)
		case f.Key >= 0 && !t.inKey(f.Key):
			r.rehomeLater(Feed{Query: f.Query, Key: -1}, nil, every)
		}
	}
}

// reachLater notes that the translations of the keys a mapping row answers may change. Which they are is asked at the
// transaction's end: what else of the query's tables changes until then notes its keys itself. A shard that is ahead does not
// tell of this place.
func (r *router) reachLater(t *Table, f Feed, old, new pg.Row) {
	for _, of := range r.fedBy(f.Query) {
		keys := r.rehomingOf(of)
		if r.ahead || old == nil && !t.inKey(f.By) || old != nil && differ(old[f.By], new[f.By]) || new[f.By].Kind != pg.Text {
			keys.add(nil, -1)
		}
		if !keys.all {
			keys.reached(f.Reach, new[f.By].Bytes)
		}
	}
}

// maxReached bounds the mapping rows whose keys are asked for one by one; beyond it every key is meant.
const maxReached = 1000

// reached puts in the keys that a mapping row answers, which are asked for later.
func (s *keySet) reached(q *lookup.Query, by []byte) {
	if s.asks == nil {
		s.asks = map[*lookup.Query]map[string]struct{}{}
	}
	if s.asks[q] == nil {
		s.asks[q] = map[string]struct{}{}
	}
	if s.asks[q][string(by)] = struct{}{}; len(s.asks[q]) > maxReached {
		s.all, s.keys, s.asks = true, nil, nil
	}
}

// reach asks for the keys that reached has put in.
func (r *router) reach(ctx context.Context, t *Table, s *keySet) error {
	asks := s.asks
	s.asks = nil
	shards := r.all
	if !t.AskAll {
		shards = []int{r.lowest()}
	}
	for q, rows := range asks {
		list := make([][]byte, 0, len(rows))
		for by := range rows {
			list = append(list, []byte(by))
		}
		var mu sync.Mutex
		err := r.call(ctx, shards, func(ctx context.Context, a *applier) error {
			answers, err := lookup.Ask(ctx, a.conn.PgConn(), q, list)
			mu.Lock()
			defer mu.Unlock()
			for _, answer := range answers {
				var keys []string
				if err == nil && !answer.Null {
					err = json.Unmarshal(answer.Value, &keys)
				}
				for _, key := range keys {
					s.put([]byte(key))
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mappingComes looks for rows that go by a key that has a translation from now on.
func (r *router) mappingComes(t *Table, new pg.Row) {
	for _, f := range t.Feeds {
		known := !f.Adds || r.Unmapped.wasThere(t, f, new)
		for _, of := range r.fedBy(f.Query) {
			switch {
			case known || of.Rule.OnMissing != layout.MissingStop || f.Key >= 0 && len(r.Unmapped.among(of, new[f.Key:f.Key+1])) > 0:
				r.rehomingOf(of).add(new, f.Key)
			case f.Key < 0: // it may be for any of those that were placed without
				if placed := r.Unmapped.of(of); placed.all || len(placed.keys) > 0 {
					r.rehomingOf(of).join(&placed)
				}
			}
		}
	}
}

// mappingGoes remembers keys that may have no translation from now on. Rows that carry them stay where they are, unless
// another row answers the key.
func (r *router) mappingGoes(t *Table, old pg.Row) {
	for _, f := range t.Feeds {
		r.keysLost(t, f, old, f.Key)
		if !f.Unique {
			r.rehomeLater(f, old, every)
		}
	}
}

// mappingUpdated finds out whether an update changes what lookups read. The log tells only where it carries the old row;
// else the statement itself looks, and where it could not tell a change from a row that is elsewhere, the shards are asked
// before.
func (r *router) mappingUpdated(ctx context.Context, t *Table, old, new pg.Row) error {
	changed := t.guardChanged(old, new)
	if !changed && r.searches(t, old, new) && !t.guardKnown(old) {
		stands, err := r.standing(ctx, t, find(old, new))
		if err != nil {
			return err
		}
		changed = stands == nil || changedIn(t.Guard, stands, new)
		if stands != nil {
			old = stands
		}
	}
	if r.remaps = changed; !changed {
		return nil
	}
	r.translationsChange(t, old, new)
	r.keysGo(t, old, new)
	return nil
}

// keysGo remembers keys that an updated mapping row answers no more.
func (r *router) keysGo(t *Table, old, new pg.Row) {
	for _, f := range t.Feeds {
		if f.Key < 0 || old == nil && !t.inKey(f.Key) || old != nil && differ(old[f.Key], new[f.Key]) {
			r.keysLost(t, f, old, f.Key)
		}
	}
}

func (t *Table) guardKnown(old pg.Row) bool {
	return old != nil && !slices.ContainsFunc(t.Guard, func(c int) bool { return old[c].Kind == pg.Unchanged })
}

// standing reads a row as it stands on the shards; nil where none that is at this place in the stream has it.
func (r *router) standing(ctx context.Context, t *Table, row pg.Row) (stands pg.Row, err error) {
	shards := r.live(r.all)
	if t.Rule.Omni {
		shards = []int{r.lowest()}
	}
	var s statement
	s.sql = fmt.Sprintf("select %s from %s t where %s limit 1", t.columnList(all(len(t.Columns))), t.destRows(), s.locate(t, row))
	var mu sync.Mutex
	err = r.call(ctx, shards, func(ctx context.Context, a *applier) error {
		result := a.exec(ctx, s)
		mu.Lock()
		defer mu.Unlock()
		for _, values := range result.Rows {
			stands = textRow(values)
		}
		return result.Err
	})
	return stands, err
}

package sink

import (
	"context"
	"slices"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// strict routes a change that must find things exactly as the source had them.
func (r *router) strict(ctx context.Context, t *Table, kind pg.Op, old, new pg.Row) error {
	if len(t.Feeds) > 0 {
		if err := r.mappingPasses(ctx, t, kind, old, new); err != nil {
			return err
		}
	}
	if t.Rule.Omni {
		for _, shard := range r.all {
			r.add(layout.Shard(shard), op{kind: kindOf(kind), table: t, old: old, new: new})
		}
		return nil
	}
	switch kind {
	case pg.OpInsert:
		shard, err := r.placeNew(ctx, t, new)
		r.addIf(err, shard, op{kind: opInsert, table: t, new: new})
		return err
	case pg.OpDelete:
		return r.delete(ctx, t, old)
	}
	if t.loose() {
		return r.updateLoose(ctx, t, old, new)
	}
	return r.update(ctx, t, old, new)
}

func kindOf(o pg.Op) opKind {
	switch o {
	case pg.OpInsert:
		return opInsert
	case pg.OpUpdate:
		return opUpdate
	}
	return opDelete
}

func (r *router) addIf(err error, shard layout.Shard, o op) {
	if err == nil {
		r.add(shard, o)
	}
}

// delete removes a row from the shard its old key names. Where the log does not tell that key, every shard is asked, of
// which exactly one must hold the row.
func (r *router) delete(ctx context.Context, t *Table, old pg.Row) error {
	shard, known, err := r.standsOn(ctx, t, old)
	if err != nil {
		return err
	}
	if known {
		r.add(shard, op{kind: opDelete, table: t, old: old})
		if !t.fixed() && !r.homed(t) { // no shard goes past this before it is done
			r.joints = r.seq
		}
		return nil
	}
	r.deleteJointly(t, old)
	return nil
}

// standsOn names the shard an old row is on, if the log or the cache tells. A key is never translated anew here: its
// mapping may have gone before it.
func (r *router) standsOn(ctx context.Context, t *Table, old pg.Row) (layout.Shard, bool, error) {
	if t.fixed() {
		if t.loose() {
			return 0, false, nil
		}
		shard, err := r.place(ctx, t, old)
		return shard, err == nil, err
	}
	if r.isCareful(t) { // a translation may have been another when the row was placed
		return 0, false, nil
	}
	key := old[t.RuleKey[0]]
	if key.Kind != pg.Text {
		return 0, false, nil
	}
	value, ok := r.Router.Lookups.Cached(t.Query, key.Bytes)
	if !ok {
		return 0, false, nil
	}
	shard, err := placed(t, []pg.Datum{key}, []pg.Datum{{Kind: pg.Text, Bytes: value}})
	return shard, err == nil, err
}

func (r *router) deleteJointly(t *Table, old pg.Row) {
	j := &joint{loss: r.ahead}
	for shard := range r.all {
		if !r.skip[shard] {
			j.pending.Add(1)
		}
	}
	for _, shard := range r.all {
		r.add(layout.Shard(shard), op{kind: opDelete, table: t, old: old, joint: j})
	}
	r.joints = r.seq
}

// update changes a row whose old key the log tells: by an old row, or by carrying none, which means that the identity,
// and the sharding key within it, stayed.
func (r *router) update(ctx context.Context, t *Table, old, new pg.Row) error {
	to, err := r.place(ctx, t, new)
	if err != nil {
		return err
	}
	from := to
	if old != nil {
		if from, err = r.place(ctx, t, old); err != nil {
			return err
		}
	}
	if from == to {
		r.add(to, op{kind: opUpdate, table: t, old: old, new: new})
		if len(t.Guard) > 0 && !r.remaps { // nor does a shard go past it before it is known that translations stay
			r.joints = r.seq
		}
		return nil
	}
	return r.moveRow(ctx, t, from, to, old, new)
}

// updateLoose changes a row by an identity that does not tell its shard. As a rule the row is where its new key places
// it; no shard commits past this before that is known. Where a table has shown otherwise not long before, or a shard is
// ahead, it is asked at once.
func (r *router) updateLoose(ctx context.Context, t *Table, old, new pg.Row) error {
	to, err := r.place(ctx, t, new)
	if lookup.Missing(err) != nil && r.ending {
		return r.updateUnmapped(ctx, t, old, new, err)
	}
	if err != nil {
		return err
	}
	if r.searches(t, old, new) {
		from, known := layout.Shard(0), false
		if old != nil && r.homed(t) { // then the row stands where its old key places it
			if from, known, err = r.standsOn(ctx, t, old); err != nil {
				return err
			}
		}
		switch {
		case !known:
			return r.searchUpdate(ctx, t, to, old, new)
		case from != to:
			return r.moveRow(ctx, t, from, to, old, new)
		}
	}
	r.add(to, op{kind: opUpdate, table: t, old: old, new: new})
	if !r.homed(t) || !t.logs(t.RuleKey[0]) || len(t.Guard) > 0 {
		r.joints = r.seq
	}
	return nil
}

// homed says that rows whose keys are translated stand where the translation as it is here places them: rows move with every
// change of it. With several sources they do so later, a shard that is ahead may tell of a later one, and what a resumed copy
// has read, of the table or of a mapping, is of more than one moment.
func (r *router) homed(t *Table) bool {
	return t.Query != nil && r.Mine == nil && !r.ahead && t.Forgive == 0 &&
		!slices.ContainsFunc(r.mappings, func(m *Table) bool { return m.Forgive != 0 })
}

// searches says that a row is looked for before it is updated.
func (r *router) searches(t *Table, old, new pg.Row) bool {
	return old != nil && t.keyChanged(old, new) || r.ahead || r.isCareful(t)
}

// keyChanged says that the update changes the row's key or its sharding key.
func (t *Table) keyChanged(old, new pg.Row) bool {
	for _, columns := range [][]int{t.Key, t.RuleKey} {
		if changedIn(columns, old, new) {
			return true
		}
	}
	return false
}

// guardChanged says that the log tells of a change in what lookups read. Where it does not tell, the statement looks.
func (t *Table) guardChanged(old, new pg.Row) bool { return old != nil && changedIn(t.Guard, old, new) }

func changedIn(columns []int, old, new pg.Row) bool {
	for _, c := range columns {
		if old[c].Kind != pg.Unchanged && differ(old[c], new[c]) {
			return true
		}
	}
	return false
}

package move

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"pgreshard/pg"
	"pgreshard/verify"
)

// changes are the rows of the moved tables that were changed on any node since they were last taken, whoever changed them:
// they are read from every node's log, by streams of their own (changes_follow.go) that know nothing of what the sink did.
// What a log does not tell, or not by the table's key, makes a table one of which every row may have changed.
type changes struct {
	move  *Move
	inv   *inventory
	of    string               // of what it is an account: tables, their keys and lookups
	keys  map[pg.Name][]string // of the tables that can be followed: their key's columns; none: only that it changed can be told
	never map[pg.Name]string   // why a table is compared whole, whatever changes in it
	end   func()               // ends the streams and waits for them

	mu      sync.Mutex
	touched map[pg.Name]*touched // by root
	shapes  map[node]map[pg.Name]treeShape
	roots   map[node]map[uint32]pg.Name // by the OIDs of a root's parts on a node
	passed  map[node]pg.LSN             // up to where a log was read
	lost    error                       // a log could not be read on: anything may have changed
	stale   bool                        // what a log shows is not what it showed when the account was begun
	covered map[node]pg.LSN             // where the slots last (account.go): up to where comparisons have covered the logs; else nil
}

// touched is what changed of a table.
type touched struct {
	keys  verify.Keys
	whole string // why every row is compared; empty: only those with keys are
	lost  bool   // every row may have changed, and keys do not tell which
}

// notCompared is why everything of a table is to be compared at first.
const notCompared = "it was not compared yet"

// mostChanges bounds the memory of the keys of all tables.
const mostChanges = 64 << 20

// newChanges says which tables can be followed, and begins with all of them unknown.
func newChanges(m *Move, inv *inventory, tables []verify.Table) *changes {
	c := &changes{move: m, inv: inv, keys: map[pg.Name][]string{}, never: map[pg.Name]string{}, touched: map[pg.Name]*touched{},
		shapes: map[node]map[pg.Name]treeShape{}, roots: map[node]map[uint32]pg.Name{}, passed: map[node]pg.LSN{}, end: func() {}}
	for i, t := range inv.tables {
		if why := noKey(tables[i]); why != "" && why != keyless {
			c.never[t.name] = why
			continue
		}
		if why := m.notByKey(inv, t); why != "" {
			c.never[t.name] = why // and yet others' lookups may read it
		}
		c.keys[t.name] = tables[i].Key
		c.touched[t.name] = &touched{whole: notCompared}
	}
	c.of = accountOf(inv, c)
	return c
}

// keyless is why a table is compared whole as soon as one of its rows changes.
const keyless = "it has no key"

// noKey is why it cannot be told by keys which rows of a table changed; empty: it can.
func noKey(vt verify.Table) string {
	var own []string
	for _, k := range vt.Source.Key {
		own = append(own, vt.Source.Columns[k].Name)
	}
	switch {
	case len(vt.Key) == 0:
		return keyless
	case !slices.Equal(own, vt.Key):
		return "its key on the source is another than on the shards"
	}
	for _, name := range vt.Key {
		for _, side := range []*pg.Table{vt.Source, vt.Dest} {
			c, _ := side.Column(name)
			if k := side.Columns[c]; !k.Deterministic || k.BaseOID >= pg.FirstUserOID && k.TypeType != 'e' {
				return fmt.Sprintf("when two values of its key column %s are equal is not the server's own to say", name)
			}
		}
	}
	return ""
}

// notByKey is why a table must be compared whole although it is known which of its rows changed; empty: it need not.
func (m *Move) notByKey(inv *inventory, t *moved) string {
	switch {
	case t.rule.Omni && len(m.Source.Shards) > 1:
		return "the sources' copies of it are compared with each other"
	case t.rule.Lookup == "":
		return ""
	}
	for _, name := range t.reads {
		if inv.byName[name] == nil {
			return fmt.Sprintf("its lookup reads %s, which is not moved", name)
		}
	}
	if len(t.unsteady) > 0 {
		return "its lookup " + t.unsteady[0]
	}
	return ""
}

// take reads a block of a node's log.
func (c *changes) take(n node, b *pg.Block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.Changes {
		switch change := &b.Changes[i]; change.Op {
		case pg.OpInsert, pg.OpUpdate, pg.OpDelete:
			c.row(n, change)
		case pg.OpTruncate:
			for _, r := range change.Truncate.Relations {
				c.whole(c.roots[n][r.OID], "it was truncated on "+n.String())
			}
		case pg.OpCommit:
			c.passed[n] = change.Tx.End
		}
	}
	c.passed[n] = max(c.passed[n], b.Idle)
}

// row notes the keys of a changed row: that of the new row, and that of the old one where the log has it.
func (c *changes) row(n node, change *pg.Change) {
	name, ok := c.roots[n][change.Relation.OID]
	t := c.touched[name]
	if !ok || t == nil || t.lost {
		return
	}
	if len(c.keys[name]) == 0 {
		c.whole(name, keyless)
		return
	}
	was := t.keys.Bytes()
	for _, old := range []bool{true, false} {
		row := change.New
		if old {
			row = change.Old
		}
		if row == nil {
			continue
		}
		key, ok := keyOf(c.keys[name], change, row, old)
		if !ok {
			c.whole(name, "the log of "+n.String()+" does not carry its key")
			return
		}
		t.keys.Add(key)
	}
	if t.keys.Bytes() > was {
		c.bound()
	}
}

// keyOf is the key of the row before or after a change; ok is false where the log does not carry it.
func keyOf(columns []string, change *pg.Change, row pg.Row, old bool) (key []pg.Datum, ok bool) {
	for _, name := range columns {
		i := slices.IndexFunc(change.Relation.Columns, func(c pg.RelationColumn) bool { return c.Name == name })
		if i < 0 {
			return nil, false
		}
		logged, value := change.OldFull || change.Relation.Columns[i].Key, row[i]
		if value.Kind == pg.Unchanged && change.Old != nil && logged {
			value = change.Old[i]
		}
		if value.Kind != pg.Text || old && !logged {
			return nil, false
		}
		key = append(key, value)
	}
	return key, true
}

// whole forgets the keys of a table: every row of it may have changed. mu is held, or nobody else is there yet.
func (c *changes) whole(name pg.Name, why string) {
	if t := c.touched[name]; t != nil && !t.lost {
		*t = touched{whole: cmp.Or(t.whole, why), lost: true}
	}
}

// again has every row of a table compared, and goes on with knowing which have changed: others' lookups may read it. mu is held.
func (c *changes) again(name pg.Name, why string) {
	if t := c.touched[name]; t != nil {
		t.whole = cmp.Or(t.whole, why)
	}
}

// bound gives up the keys of the table that has most, where all together take more than they may.
func (c *changes) bound() {
	bytes, most := 0, pg.Name{}
	for name, t := range c.touched {
		bytes += t.keys.Bytes()
		if most == (pg.Name{}) || t.keys.Bytes() > c.touched[most].keys.Bytes() {
			most = name
		}
	}
	if bound := cmp.Or(c.move.mostChanges, mostChanges); bytes > bound {
		c.whole(most, fmt.Sprintf("more than %s of keys changed since it was compared", sizeText(int64(bound))))
	}
}

// lose says that a log could not be read on.
func (c *changes) lose(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = why
		c.move.log.Info("what changes is not followed any more: a freeze compares everything", "reason", why.Error())
	}
}

func (c *changes) lostBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// takeAll takes what has changed, and goes on with nothing; at is up to where each log was read.
func (c *changes) takeAll() (was map[pg.Name]*touched, at map[node]pg.LSN) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was = c.touched
	c.touched = map[pg.Name]*touched{}
	for name := range was {
		c.touched[name] = &touched{}
	}
	return was, maps.Clone(c.passed)
}

// putBack adds again what was taken of a table and was not found equal. Which rows its lookup places anew is known of what was taken
// of all tables together, so of a table with a lookup everything is to be compared again.
func (c *changes) putBack(name pg.Name, was *touched, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.touched[name] == nil || was == nil {
		return
	}
	c.touched[name].add(was)
	if len(c.keys[name]) > 0 && c.inv.byName[name].rule.Lookup != "" {
		c.again(name, why)
	}
	c.bound()
}

// add adds what changed at another time.
func (t *touched) add(o *touched) {
	t.whole, t.lost = cmp.Or(t.whole, o.whole), t.lost || o.lost
	if t.lost {
		t.keys = verify.Keys{}
		return
	}
	t.keys.Merge(o.keys)
}

// with adds to what was taken what has changed since, which stays for the next time.
func (c *changes) with(taken map[pg.Name]*touched) map[pg.Name]*touched {
	all := c.now()
	for name, t := range taken {
		if all[name] == nil {
			all[name] = &touched{}
		}
		all[name].add(t)
	}
	return all
}

// doubt has everything of a table compared the next time: it was found to differ.
func (c *changes) doubt(name pg.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.again(name, "it differed when it was last compared")
}

// anew has every row of every table compared.
func (c *changes) anew() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.touched {
		c.again(name, notCompared)
	}
}

// onlyWhole says that a table cannot be compared by what changed in it, so that only a freeze makes sure of it.
func (c *changes) onlyWhole(name pg.Name, t *touched) bool {
	return c.never[name] != "" || len(c.keys[name]) == 0 && t != nil && t.whole == keyless
}

// now is what has changed, which goes on changing.
func (c *changes) now() map[pg.Name]*touched {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[pg.Name]*touched{}
	for name, t := range c.touched {
		all[name] = &touched{}
		all[name].add(t)
	}
	return all
}

// many says whether more has changed than is left to the freeze.
func (c *changes) many() (keys int, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, t := range c.touched {
		keys += t.keys.Len()
		whole = whole || t.whole != "" && !c.onlyWhole(name, t)
	}
	return keys, whole
}

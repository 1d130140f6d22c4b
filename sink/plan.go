package sink

import (
	"encoding/binary"
	"slices"

	"pgreshard/pg"
)

// planned turns ops, in log order, into the fewest statements with the same outcome. Within a table the net change of
// each row is taken: all deletes, then all updates, then all inserts, as sets. Between sets the order of different rows
// does not show, save where a unique value is handed on between updates: then the statement fails and the ops are done
// again one by one. What cannot join a set (a changed key, a table without key, TRUNCATE) is a statement of its own, at
// its place in its table's order.
func planned(ops []op) []statement {
	p := planner{groups: map[*Table]*group{}}
	for i := range ops {
		p.add(&ops[i])
	}
	for _, t := range p.order {
		p.flush(t)
	}
	for _, ops := range p.lost {
		p.out = append(p.out, noteLost(ops[0].table, ops))
	}
	return p.out
}

type planner struct {
	groups map[*Table]*group
	order  []*Table
	lost   [][]*op // by table
	out    []statement
}

// group is a table's net changes since its last lone statement.
type group struct {
	rows  map[string]*net
	order []*net
	spare []net // room for more
}

// net is what a batch does to one row: at most one delete, then at most one update or insert.
type net struct {
	gone *op // the row that was there is deleted
	put  *op // insert, update or upsert
}

func (p *planner) add(o *op) {
	switch {
	case o.kind == opBoundary:
	case o.kind == opLost:
		i := slices.IndexFunc(p.lost, func(ops []*op) bool { return ops[0].table == o.table })
		if i < 0 {
			i = len(p.lost)
			p.lost = append(p.lost, nil)
		}
		p.lost[i] = append(p.lost[i], o)
	case o.kind == opTruncate:
		for _, t := range p.order {
			p.flush(t)
		}
		p.out = append(p.out, statement{sql: o.sql, ops: []*op{o}})
	case len(o.table.Key) == 0:
		p.addKeyless(o)
	case o.rekeys():
		p.flush(o.table)
		s, c := updateRow(o.table, o)
		p.out = append(p.out, s.expecting(c, 1))
	default:
		if !p.group(o.table).merge(o) {
			p.flush(o.table)
			p.group(o.table).merge(o)
		}
	}
}

// addKeyless gathers inserts and flushes them before a row is searched by its content.
func (p *planner) addKeyless(o *op) {
	g := p.group(o.table)
	if o.kind == opInsert {
		g.net().put = o
		return
	}
	p.flush(o.table)
	p.out = append(p.out, oneOfEquals(o.table, o))
}

func (p *planner) group(t *Table) *group {
	g := p.groups[t]
	if g == nil {
		g = &group{rows: map[string]*net{}}
		p.groups[t] = g
		p.order = append(p.order, t)
	}
	return g
}

// merge adds an op to its row's net change; false where the two cannot be one, or where the second contradicts the
// first (an insert of a row that is there): then the server is to see both, one after the other.
func (g *group) merge(o *op) bool {
	var room [64]byte
	key := appendKey(room[:0], o)
	n := g.rows[string(key)]
	if n == nil {
		n = g.net()
		g.rows[string(key)] = n
		n.set(o)
		return true
	}
	if o.joint != nil || n.gone != nil && n.gone.joint != nil {
		return false
	}
	switch o.kind {
	case opInsert:
		if n.put != nil {
			return false
		}
		n.put = o
		return true
	case opUpdate:
		if n.put == nil || n.put.kind == opUpsert || n.put.kind == opUpdate && len(o.table.Guard) > 0 ||
			n.put.kind == opInsert && !o.remaps && changedIn(o.table.Guard, n.put.new, o.new) { // the server is to see that it changes
			return false
		}
		n.put = mergeUpdate(n.put, o)
		return true
	case opDelete:
		if n.put == nil || n.put.kind == opUpsert {
			return false
		}
		if n.put.kind == opUpdate { // the row was there before this batch, and is found as it was then
			gone := *o
			gone.old = n.put.find()
			n.gone = &gone
		}
		n.put = nil
		return true
	}
	return false
}

// net adds a row to the group. Rows are many: they are made by the dozen.
func (g *group) net() *net {
	if len(g.spare) == 0 {
		g.spare = make([]net, 64)
	}
	n := &g.spare[0]
	g.spare = g.spare[1:]
	g.order = append(g.order, n)
	return n
}

func (n *net) set(o *op) {
	if o.kind == opDelete || o.kind == opDeleteAny {
		n.gone = o
	} else {
		n.put = o
	}
}

// mergeUpdate lays an update over the insert or update before it: columns the second does not carry keep the first's.
func mergeUpdate(first, second *op) *op {
	merged := *first
	merged.new = make(pg.Row, len(first.new))
	copy(merged.new, first.new)
	for i, d := range second.new {
		if d.Kind != pg.Unchanged {
			merged.new[i] = d
		}
	}
	return &merged
}

func (p *planner) flush(t *Table) {
	g := p.groups[t]
	if g == nil || len(g.order) == 0 {
		return
	}
	delete(p.groups, t)
	for i, other := range p.order {
		if other == t {
			p.order = append(p.order[:i:i], p.order[i+1:]...)
			break
		}
	}
	var b buckets
	for _, n := range g.order {
		b.add(n.gone)
		b.add(n.put)
	}
	b.emit(t, &p.out)
}

// buckets gathers ops that fit one statement: the same kind and the same columns, in order of first use.
type buckets struct {
	byShape map[string]int
	list    [][]*op
}

func (b *buckets) add(o *op) {
	if o == nil {
		return
	}
	if b.byShape == nil {
		b.byShape = map[string]int{}
	}
	var room [64]byte
	shape := appendShape(room[:0], o)
	i, ok := b.byShape[string(shape)]
	if !ok {
		i = len(b.list)
		b.byShape[string(shape)] = i
		b.list = append(b.list, nil)
	}
	b.list[i] = append(b.list[i], o)
}

// emit writes deletes first, inserts last.
func (b *buckets) emit(t *Table, out *[]statement) {
	for _, kind := range []opKind{opDelete, opDeleteAny, opUpdate, opUpsert, opInsert} {
		for _, ops := range b.list {
			if ops[0].kind != kind {
				continue
			}
			switch {
			case kind == opDeleteAny || ops[0].joint != nil:
				*out = append(*out, deleteWherever(t, ops))
			case kind == opDelete:
				*out = append(*out, deleteRows(t, ops))
			case kind == opUpdate:
				*out = append(*out, updateRows(t, ops))
			case kind == opUpsert && t.upsertsInTwo():
				*out = append(*out, deleteWherever(t, ops), insertRows(t, ops, false))
			default:
				*out = append(*out, insertRows(t, ops, kind == opUpsert))
			}
		}
	}
}

// upsertsInTwo says that ON CONFLICT … DO UPDATE cannot do: it may not set a column GENERATED ALWAYS AS IDENTITY.
func (t *Table) upsertsInTwo() bool {
	for i, c := range t.Columns {
		if c.Identity == 'a' && !t.inKey(i) {
			return true
		}
	}
	return false
}

// appendShape tells statements apart: the kind, whether shards agree on it, and which columns are carried or searched.
func appendShape(shape []byte, o *op) []byte {
	shape = append(shape, byte(o.kind), 'n', 'u')
	if o.joint != nil {
		shape[1] = 'j'
	}
	if o.kind == opInsert || o.kind == opUpsert {
		for _, d := range o.new {
			shape = append(shape, carried(d))
		}
		return shape
	}
	for _, c := range o.table.where(o.find()) {
		shape = binary.AppendUvarint(shape, uint64(c))
	}
	if o.kind == opUpdate {
		if o.table.replaces(o) {
			shape[2] = 'r'
		}
		if o.remaps {
			shape = append(shape, 'm')
		}
		for _, d := range o.new {
			shape = append(shape, carried(d))
		}
	}
	return shape
}

func carried(d pg.Datum) byte {
	if d.Kind == pg.Unchanged {
		return 'u'
	}
	return 'v'
}

// appendKey is a row's key as one string in which no two keys look the same.
func appendKey(b []byte, o *op) []byte {
	row := o.find()
	for _, k := range o.table.Key {
		b = binary.AppendUvarint(b, uint64(len(row[k].Bytes)))
		b = append(b, row[k].Bytes...)
	}
	return b
}

package move

import (
	"context"
	"slices"

	"pgreshard/pg"
)

// shape is what of a table the stream relies on and the log does not show.
type shape struct {
	Name    pg.Name
	Parent  pg.Name // zero where it is no partition
	Bound   string
	Replica string
	Leaf    bool   // it holds rows itself
	File    uint32 // pg_relation_filenode: another one where its rows were written anew
	Columns []shapeColumn
	Pending bool `json:",omitempty"` // a new partition that the shards have and whose rows are not copied yet
}

type shapeColumn struct {
	Num       int16 // pg_attribute.attnum: what stays when a column is renamed
	Name      string
	Type      string
	Hashed    string  `json:",omitempty"` // layout.Rule.Hashes, of a column of the sharding key
	Collation string  `json:",omitempty"`
	NotNull   bool    `json:",omitempty"`
	Generated bool    `json:",omitempty"`
	Identity  bool    `json:",omitempty"`
	Default   string  `json:",omitempty"`
	Missing   *string `json:",omitempty"` // pg.Column.Missing
	Row       string  `json:",omitempty"` // pg.Column.Row
	Written   string  `json:",omitempty"` // pg.Column.Written
}

// shapes are the moved trees of one source, by OID (a table dropped and made again is another table), and the labels of
// its enumerations by name.
type shapes struct {
	Tables map[uint32]shape
	Enums  map[string][]string
	Gone   map[uint32]bool `json:",omitempty"` // partitions that were detached since
}

// isRoot says that a table was moved as itself, not as another's partition.
func (s shapes) isRoot(oid uint32) bool {
	t, ok := s.Tables[oid]
	return ok && t.Parent == pg.Name{}
}

func (inv *inventory) shapes(source int) shapes {
	catalog := inv.sources[source]
	out := shapes{Tables: map[uint32]shape{}, Enums: catalog.Enums}
	for _, t := range inv.tables {
		root := catalog.Table(t.name)
		if root == nil {
			continue
		}
		for _, part := range catalog.Tree(root) {
			out.Tables[part.OID] = shapeOf(catalog, part)
		}
		for i, c := range out.Tables[root.OID].Columns {
			if slices.Contains(t.rule.Columns, c.Name) {
				out.Tables[root.OID].Columns[i].Hashed = t.rule.Hashes()
			}
		}
	}
	return out
}

func shapeOf(catalog *pg.Catalog, t *pg.Table) shape {
	s := shape{Name: t.Name, Bound: t.Bound, Replica: string(t.Replica), Leaf: t.IsLeaf(), File: t.Filenode}
	if parent := catalog.ByOID(t.Parent); parent != nil {
		s.Parent = parent.Name
	}
	for _, c := range t.Columns {
		if leaves := catalog.Leaves(t); !t.IsLeaf() && len(leaves) > 0 { // what has no rows has no values they lack
			if i, ok := leaves[0].Column(c.Name); ok {
				c.Missing = leaves[0].Columns[i].Missing
			}
		}
		s.Columns = append(s.Columns, shapeColumn{Num: c.Num, Name: c.Name, Type: c.Type, Collation: c.Collation, NotNull: c.NotNull,
			Generated: c.Generated != 0, Identity: c.Identity != 0, Default: c.Default, Missing: c.Missing,
			Row: c.Row, Written: c.Written})
	}
	return s
}

// column finds a column by its number.
func (s shape) column(num int16) *shapeColumn {
	if i := slices.IndexFunc(s.Columns, func(c shapeColumn) bool { return c.Num == num }); i >= 0 {
		return &s.Columns[i]
	}
	return nil
}

// record keeps with the move what its sources' tables look like, under a key.
func (m *Move) record(ctx context.Context, key string, all []shapes) error {
	return m.setDetail(ctx, key, all)
}

// Keys of the move's details: what the shards' tables are like, in terms of the sources'; what they are being made to
// take as well; and what they are being changed to for good, because every stream has passed it. The last two are
// recorded before the first shard is touched, so that whoever comes after a death goes on with it.
const (
	shapesRecorded = "shapes"
	shapesEarly    = "shapes_early"
	shapesAhead    = "shapes_ahead"
)

// noDefault is no default any source has: a column that was just added to a shard still gets one.
const noDefault = "-"

// grown is what the shards are like when they take rows of both shapes.
func (s shapes) grown(now shapes) shapes {
	out := shapes{Tables: map[uint32]shape{}, Enums: now.Enums, Gone: s.Gone}
	for oid, was := range s.Tables {
		if is, ok := now.Tables[oid]; ok && !was.Pending {
			was = was.grown(is)
		}
		out.Tables[oid] = was
	}
	for oid, is := range now.Tables {
		if _, ok := s.Tables[oid]; !ok {
			is.Pending = true
			out.Tables[oid] = is
		}
	}
	return out
}

func (s shape) grown(now shape) shape {
	columns := slices.Clone(s.Columns)
	for i := range columns {
		is := now.column(columns[i].Num)
		columns[i].NotNull = columns[i].NotNull && is != nil && is.NotNull
		if is != nil {
			columns[i].Type = is.Type
		}
	}
	for _, c := range now.Columns {
		if s.column(c.Num) == nil {
			c.NotNull, c.Default = false, noDefault
			columns = append(columns, c)
		}
	}
	s.Columns, s.File = columns, now.File
	return s
}

func (m *Move) recorded(ctx context.Context, key string) (all []shapes, err error) {
	err = m.detail(ctx, key, &all)
	return all, err
}

// recordShapes remembers what every source's moved tables look like.
func (m *Move) recordShapes(ctx context.Context, inv *inventory) error {
	return m.record(ctx, shapesRecorded, inv.allShapes())
}

// recordCopied remembers which files were copied, and how their columns had come to be: what is written anew from then on
// is in no copy.
func (m *Move) recordCopied(ctx context.Context, inv *inventory) error {
	all, err := m.recorded(ctx, shapesRecorded)
	if err != nil {
		return err
	}
	for n := range all {
		for oid, is := range inv.shapes(n).Tables {
			if was, ok := all[n].Tables[oid]; ok {
				all[n].Tables[oid] = was.copied(is)
			}
		}
	}
	return m.record(ctx, shapesRecorded, all)
}

func (s shape) copied(from shape) shape {
	s.File = from.File
	for i := range s.Columns {
		c := &s.Columns[i]
		if is := from.column(c.Num); is != nil && is.Type == c.Type {
			c.Row, c.Written = is.Row, is.Written
		}
	}
	return s
}

func (inv *inventory) allShapes() (all []shapes) {
	for n := range inv.sources {
		all = append(all, inv.shapes(n))
	}
	return all
}

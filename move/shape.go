package move

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

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
}

type shapeColumn struct {
	Num       int16 // pg_attribute.attnum: what stays when a column is renamed
	Name      string
	Type      string
	Collation string  `json:",omitempty"`
	NotNull   bool    `json:",omitempty"`
	Generated bool    `json:",omitempty"`
	Identity  bool    `json:",omitempty"`
	Default   string  `json:",omitempty"`
	Missing   *string `json:",omitempty"` // pg.Column.Missing
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
			Generated: c.Generated != 0, Identity: c.Identity != 0, Default: c.Default, Missing: c.Missing})
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
	return m.home(ctx, func(conn *pgx.Conn) error { return m.book.SetDetail(ctx, conn, key, all) })
}

// Keys of the move's details. What is recorded under shapesAhead is what the shards are being changed to, once every
// stream has passed it.
const (
	shapesRecorded = "shapes"
	shapesAhead    = "shapes_ahead"
)

func (m *Move) recorded(ctx context.Context, key string) (all []shapes, err error) {
	err = m.detail(ctx, key, &all)
	return all, err
}

// recordShapes remembers what every source's moved tables look like.
func (m *Move) recordShapes(ctx context.Context, inv *inventory) error {
	return m.record(ctx, shapesRecorded, inv.allShapes())
}

func (inv *inventory) allShapes() (all []shapes) {
	for n := range inv.sources {
		all = append(all, inv.shapes(n))
	}
	return all
}

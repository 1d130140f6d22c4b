package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// DDLError means that a moved table was changed in the source's catalog since the move made its schema. Some of these
// changes (a partition made, attached, detached or dropped; ALTER TYPE … USING) send nothing at all to the stream, so
// they are looked for.
type DDLError struct {
	Source  int
	Changes []string
}

func (e *DDLError) Error() string {
	return fmt.Sprintf("source %d was changed while the move runs: %s; hint: where columns changed, run the same ALTER TABLE on every destination shard "+
		"and start the same command again; anything else cannot be followed: `cancel` and start the move again", e.Source, strings.Join(e.Changes, "; "))
}

// shape is what of a table the stream relies on and the log does not show.
type shape struct {
	Name    pg.Name
	Parent  pg.Name // zero where it is no partition
	Bound   string
	Replica string
	Columns map[string]string // name to type, with generated ones marked
}

// shapes are the moved trees of one source, by OID: a table dropped and made again is another table.
type shapes map[uint32]shape

func (inv *inventory) shapes(source int) shapes {
	out := shapes{}
	catalog := inv.sources[source]
	for _, t := range inv.tables {
		root := catalog.Table(t.name)
		if root == nil {
			continue
		}
		for _, part := range catalog.Tree(root) {
			s := shape{Name: part.Name, Bound: part.Bound, Replica: string(part.Replica), Columns: map[string]string{}}
			if parent := catalog.ByOID(part.Parent); parent != nil {
				s.Parent = parent.Name
			}
			for _, c := range part.Columns {
				s.Columns[c.Name] = c.Type
				if c.Generated != 0 {
					s.Columns[c.Name] += " generated"
				}
			}
			out[part.OID] = s
		}
	}
	return out
}

func shapesKey(source int) string { return fmt.Sprintf("shapes_%d", source) }

// recordShapes remembers what every source's moved tables look like.
func (m *Move) recordShapes(ctx context.Context, inv *inventory) error {
	for n := range inv.sources {
		all := inv.shapes(n)
		if err := m.home(ctx, func(conn *pgx.Conn) error { return m.book.SetDetail(ctx, conn, shapesKey(n), all) }); err != nil {
			return err
		}
	}
	return nil
}

// drift compares a source's catalog as it is now with what was recorded. columns says that nothing but columns changed.
func (m *Move) drift(ctx context.Context, inv *inventory, source int) (changes []string, columns bool, err error) {
	var was shapes
	if err := m.detail(ctx, shapesKey(source), &was); err != nil {
		return nil, false, err
	}
	changes, columns = was.changed(inv.shapes(source))
	return changes, columns, nil
}

func (was shapes) changed(now shapes) (changes []string, columns bool) {
	columns = true
	add := func(s string) { changes, columns = append(changes, s), false }
	for oid, old := range was {
		s, ok := now[oid]
		switch {
		case !ok:
			add(old.Name.String() + " was dropped, detached or made again")
		case s.Name != old.Name:
			add(fmt.Sprintf("%s was renamed to %s", old.Name, s.Name))
		case s.Parent != old.Parent || s.Bound != old.Bound:
			add(old.Name.String() + " was attached or detached as a partition")
		case s.Replica != old.Replica:
			add("the replica identity of " + old.Name.String() + " was changed")
		case !maps.Equal(s.Columns, old.Columns):
			changes = append(changes, old.Name.String()+": "+columnChanges(old.Columns, s.Columns))
		}
	}
	for oid, s := range now {
		if _, ok := was[oid]; !ok {
			add(s.Name.String() + " was made or attached")
		}
	}
	slices.Sort(changes)
	return changes, columns && len(changes) > 0
}

func columnChanges(was, now map[string]string) string {
	var out []string
	for name, typ := range was {
		switch now[name] {
		case typ:
		case "":
			out = append(out, fmt.Sprintf("column %q was dropped or renamed", name))
		default:
			out = append(out, fmt.Sprintf("column %q was %s and is %s", name, typ, now[name]))
		}
	}
	for name, typ := range now {
		if was[name] == "" {
			out = append(out, fmt.Sprintf("column %q (%s) was added", name, typ))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// acceptDrift lets a stream start: it refuses a changed catalog, save where columns changed and every shard's table
// has been changed alike since.
func (m *Move) acceptDrift(ctx context.Context, inv *inventory) error {
	changed := false
	for n := range inv.sources {
		changes, columns, err := m.drift(ctx, inv, n)
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			continue
		}
		if !columns {
			return &DDLError{n, changes}
		}
		if err := m.sameOnShards(ctx, inv, n); err != nil {
			return &DDLError{n, append(changes, err.Error())}
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return m.recordShapes(ctx, inv)
}

// sameOnShards says what a shard's tables still have differently from a source's.
func (m *Move) sameOnShards(ctx context.Context, inv *inventory, source int) error {
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		for _, t := range inv.tables {
			into := catalog.Table(t.name)
			if into == nil {
				return fmt.Errorf("shard %d has no %s", n, t.name)
			}
			if what := CompareTables(inv.sources[source].Table(t.name), into); len(what) > 0 {
				return fmt.Errorf("on shard %d %s differs: %s", n, t.name, strings.Join(what, ", "))
			}
		}
		return nil
	})
}

// lookForDDL is acceptDrift's question while a stream runs: any change stops it.
func (m *Move) lookForDDL(ctx context.Context, inv *inventory, source int) error {
	now := *inv
	now.sources = slices.Clone(inv.sources)
	err := m.source(ctx, source, func(conn *pgx.Conn) (err error) {
		now.sources[source], err = pg.ReadCatalog(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	changes, _, err := m.drift(ctx, &now, source)
	for _, t := range now.sources[source].Roots() {
		if m.matches(t.Name) && t.Persistence == 'p' && inv.byName[t.Name] == nil {
			changes = append(changes, "table "+t.Name.String()+" was made")
		}
	}
	if err == nil && len(changes) > 0 {
		return &DDLError{source, changes}
	}
	return err
}

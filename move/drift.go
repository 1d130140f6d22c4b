package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/sink"
)

// What a move does about a moved table that was changed on a source ([stream] on_ddl).
const (
	DDLStop   = "stop"   // end with an error that says what to run where
	DDLIgnore = "ignore" // go on where the destination can take the rows as it is
	DDLExec   = "exec"   // change the destination alike
)

// DDLError means that a moved table was changed in the source's catalog since the move made its schema. Some of these
// changes (a partition made, attached, detached or dropped; ALTER TYPE … USING) send nothing at all to the stream, so
// they are looked for.
type DDLError struct {
	Source  int
	Changes []string
	// Statements carry the changes, run on every destination shard; empty where they cannot be carried.
	Statements []string
	Carried    bool // on_ddl = "exec" carries them
	Back       bool // it was a destination shard that was changed, after the switch

	refused bool // it was looked at and does not let the move go on; else it was only seen
}

func (e *DDLError) Error() string {
	hint := "this cannot be followed: `pgreshard cancel --drop-data` and start the move again"
	switch {
	case e.Back && len(e.Statements) == 0:
		return fmt.Sprintf("destination shard %d was changed: %s; hint: this cannot be followed back: `pgreshard complete` gives the way back up",
			e.Source, strings.Join(e.Changes, "; "))
	case e.Back:
		return fmt.Sprintf("destination shard %d was changed: %s; hint: change the other shards alike, run on the source, then start the same command again, or give the way back up with `pgreshard complete`: %s",
			e.Source, strings.Join(e.Changes, "; "), strings.Join(e.Statements, "; "))
	case e.Carried && len(e.Statements) == 0:
		hint = "set [stream] on_ddl = \"exec\" and start the same command again, which then carries it to the shards"
	case e.Carried:
		hint = "run on every destination shard, then start the same command again (or set [stream] on_ddl = \"exec\"): " + strings.Join(e.Statements, "; ")
	}
	return fmt.Sprintf("source %d was changed while the move runs: %s; hint: %s", e.Source, strings.Join(e.Changes, "; "), hint)
}

// error names what was changed on a source.
func (e *evolution) error(n int, differs error) *DDLError {
	out := &DDLError{Source: n}
	out.Carried = true
	leaves := false
	for _, c := range e.changes[n] {
		text := c.Text
		if c.Why != "" && c.Kind != other {
			text += " (" + c.Why + ")"
		}
		out.Changes = append(out.Changes, text)
		out.Carried = out.Carried && c.Why == ""
		leaves = leaves || c.Kind == leafAdded || c.Kind == leafGone
	}
	if out.Carried && !leaves { // what partitions hold no statement carries
		for _, c := range e.changes[n] {
			out.Statements = append(out.Statements, c.statements(tableOf(e.recorded[n], c.Table))...)
		}
	}
	if differs != nil {
		out.Changes = append(out.Changes, differs.Error())
	}
	return out
}

// sameOnShards says what a shard's tables still have differently from the sources'.
func (m *Move) sameOnShards(ctx context.Context, inv *inventory) error {
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		for source := range inv.sources {
			for _, t := range inv.tables {
				into := catalog.Table(t.name)
				if into == nil {
					return fmt.Errorf("shard %d has no %s", n, t.name)
				}
				if what := CompareTables(inv.sources[source].Table(t.name), into); len(what) > 0 {
					return fmt.Errorf("on shard %d %s differs: %s", n, t.name, strings.Join(what, ", "))
				}
			}
			for name, labels := range inv.sources[source].Enums {
				if there, ok := catalog.Enums[name]; ok && !slices.Equal(there, labels) {
					return fmt.Errorf("on shard %d type %s has other labels", n, name)
				}
			}
		}
		return nil
	})
}

// sourceCatalog reads a source's catalog as it is now.
func (m *Move) sourceCatalog(ctx context.Context, source int) (catalog *pg.Catalog, err error) {
	err = m.reads(ctx, node{true, source}, func(conn *pgx.Conn) error {
		catalog, err = pg.ReadCatalog(ctx, conn)
		return err
	})
	return catalog, err
}

// lookForDDL says what of a source differs from what this run found. It is asked while a stream runs: any change ends it.
func (m *Move) lookForDDL(ctx context.Context, inv *inventory, e *evolution, source int) error {
	catalog, err := m.sourceCatalog(ctx, source)
	if err != nil {
		return err
	}
	return m.changedSince(catalog, inv, e, source)
}

func (m *Move) changedSince(catalog *pg.Catalog, inv *inventory, e *evolution, source int) error {
	now := *inv
	now.sources = slices.Clone(inv.sources)
	now.sources[source] = catalog
	since := &evolution{recorded: e.accepted, changes: make([][]change, len(inv.sources))}
	since.changes[source] = e.accepted[source].changesTo(now.shapes(source))
	if m.OnDDL != DDLExec {
		for _, t := range m.strange(catalog, inv) {
			since.changes[source] = append(since.changes[source], change{Table: t.Name, Text: "table " + t.Name.String() + " was made", Why: "it cannot be followed"})
		}
	}
	if len(since.changes[source]) == 0 {
		return nil
	}
	return since.error(source, nil)
}

// strange are the tables of a source that [tables] takes and that are not the move's.
func (m *Move) strange(catalog *pg.Catalog, inv *inventory) (out []*pg.Table) {
	for _, t := range catalog.Roots() {
		if m.matches(t.Name) && t.Persistence == 'p' && inv.byName[t.Name] == nil {
			out = append(out, t)
		}
	}
	return out
}

// sourceAsFound is lookForDDL before a freeze. A table made since the move began may be, under exec, on its way to become
// a partition, but nothing is switched while there is one; one detached from a table of the move's is left behind.
func (m *Move) sourceAsFound(ctx context.Context, inv *inventory, e *evolution, source int) error {
	catalog, err := m.sourceCatalog(ctx, source)
	if err == nil {
		err = m.changedSince(catalog, inv, e, source)
	}
	if err != nil {
		return err
	}
	for _, t := range m.strange(catalog, inv) {
		if !e.accepted[source].Gone[t.OID] {
			return fmt.Errorf("table %s of source %d was made after the move began and would stay behind; hint: attach it, drop it, or name it in [tables] exclude", t.Name, source)
		}
	}
	return nil
}

// mayBeDDL says that an error may come of a change that the catalog tells of and the stream met first.
func mayBeDDL(err error) bool {
	var schema *sink.SchemaError
	code := pg.Code(err)
	return errors.As(err, &schema) || code != "" && slices.Contains([]string{"22", "23", "42"}, code[:2])
}

// readAgain says that a run ended with what reading the sources' catalogs anew may settle.
func (m *Move) readAgain(err error, e *evolution) bool {
	if m.OnDDL != DDLIgnore && m.OnDDL != DDLExec {
		return false
	}
	var ddl *DDLError
	var schema *sink.SchemaError
	if errors.As(err, &ddl) {
		return !ddl.refused
	}
	// A column that came and went while this run streamed is told from one that is to stay by when it was seen.
	return errors.As(err, &schema) && schema.At >= e.before[schema.Source]
}

// changedBelow looks, after a stream has ended with an error, whether a source was changed: that is then the error. An
// undone cutover stays one, whatever the reason.
func (m *Move) changedBelow(ctx context.Context, inv *inventory, e *evolution, err error) error {
	var ddl *DDLError
	var undone *UndoneError
	if errors.As(err, &ddl) || errors.As(err, &undone) || !mayBeDDL(err) || ctx.Err() != nil {
		return err
	}
	for n := range inv.sources {
		if found := m.lookForDDL(ctx, inv, e, n); found != nil {
			return found
		}
	}
	return err
}

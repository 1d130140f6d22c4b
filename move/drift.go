package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

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

	refused bool // it was looked at and does not let the move go on; else it was only seen
}

func (e *DDLError) Error() string {
	hint := "this cannot be followed: `pgreshard cancel --drop-data` and start the move again"
	switch {
	case e.Carried && len(e.Statements) == 0:
		hint = "set [stream] on_ddl = \"exec\" and start the same command again, which then carries it to the shards"
	case e.Carried:
		hint = "run on every destination shard, then start the same command again (or set [stream] on_ddl = \"exec\"): " + strings.Join(e.Statements, "; ")
	}
	return fmt.Sprintf("source %d was changed while the move runs: %s; hint: %s", e.Source, strings.Join(e.Changes, "; "), hint)
}

// evolution is what the shards still lack of the sources' tables as they are now.
type evolution struct {
	recorded []shapes // what the shards were made like, by source
	accepted []shapes // the sources as this run found them
	changes  [][]change
	before   []pg.LSN          // the sources' positions before they were read
	after    []pg.LSN          // and after: what was changed by then shows in every row beyond
	run      bool              // the shards are changed by this worker
	startsAt map[uint32]pg.LSN // by OID: a partition whose copy this run leads up to begins there
	ended    bool              // every stream has passed after, and nothing is applied meanwhile
}

// pending says that something is to be done once the streams have passed.
func (e *evolution) pending() bool {
	return slices.ContainsFunc(e.changes, func(c []change) bool { return len(c) > 0 })
}

// alike says that the sources do not differ from each other in what was changed: each was changed already.
func (e *evolution) alike() bool {
	texts := func(all []change) (out []string) {
		for _, c := range all {
			out = append(out, c.Text)
		}
		return out
	}
	for _, c := range e.changes[1:] {
		if !slices.Equal(texts(c), texts(e.changes[0])) {
			return false
		}
	}
	return true
}

// positions are the sources' insert positions.
func (m *Move) positions(ctx context.Context) ([]pg.LSN, error) {
	at := make([]pg.LSN, len(m.Source.Shards))
	return at, m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&at[n])
	})
}

// readSources takes the inventory and what was changed since the move's schema was made, and lets a stream start: with
// changes only where on_ddl or the shards themselves allow it, and after the shards take rows of both kinds.
func (m *Move) readSources(ctx context.Context) (*inventory, *evolution, error) {
	if err := m.finishEvolution(ctx); err != nil {
		return nil, nil, err
	}
	e := &evolution{}
	var err error
	if e.before, err = m.positions(ctx); err != nil {
		return nil, nil, err
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, nil, err
	}
	if e.after, err = m.positions(ctx); err != nil {
		return nil, nil, err
	}
	if e.recorded, err = m.recorded(ctx, shapesRecorded); err != nil {
		return nil, nil, err
	}
	e.accepted = inv.allShapes()
	e.compare()
	for n, changes := range e.changes {
		e.accepted[n].Gone = map[uint32]bool{}
		maps.Copy(e.accepted[n].Gone, e.recorded[n].Gone)
		for _, c := range changes {
			if c.Kind == leafGone {
				e.accepted[n].Gone[c.OID] = true
			}
		}
	}
	if !e.pending() {
		return inv, e, nil
	}
	return inv, e, m.accept(ctx, inv, e)
}

func (m *Move) accept(ctx context.Context, inv *inventory, e *evolution) error {
	if err := m.judgeLeaves(ctx, inv, e); err != nil {
		return err
	}
	refused := slices.IndexFunc(e.changes, func(all []change) bool { return slices.ContainsFunc(all, m.refuses) })
	differs := m.sameOnShards(ctx, inv)
	switch {
	case refused < 0 && m.OnDDL == DDLExec:
		e.run = true
		return m.runEarly(ctx, inv, e)
	case refused < 0 && (differs == nil || m.OnDDL == DDLIgnore): // the shards have them already, or need not have them
		return nil
	}
	n := max(refused, 0)
	for len(e.changes[n]) == 0 {
		n++
	}
	found := e.error(n, differs)
	found.refused = true
	return found
}

// refuses says that a change keeps the move from going on.
func (m *Move) refuses(c change) bool {
	if leaf := c.Kind == leafAdded || c.Kind == leafGone; leaf && m.OnDDL != DDLExec {
		return true
	}
	if m.OnDDL != DDLIgnore {
		return c.Why != ""
	}
	switch c.Kind {
	case columnDropped, columnRetyped, columnLoosened, columnTightened, columnDefaulted:
		return c.Why != ""
	}
	return true
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

// tableOf is a table as a shape has it, as far as change.early looks.
func tableOf(s shapes, name pg.Name) *pg.Table {
	t := &pg.Table{Name: name}
	for _, is := range s.Tables {
		if is.Name == name {
			for _, c := range is.Columns {
				t.Columns = append(t.Columns, pg.Column{Name: c.Name, Type: c.Type, NotNull: c.NotNull})
			}
		}
	}
	return t
}

// runEarly lets every shard take rows of both kinds, and brings new partitions over.
func (m *Move) runEarly(ctx context.Context, inv *inventory, e *evolution) error {
	if err := m.unpublishGone(ctx, e); err != nil {
		return err
	}
	if err := m.record(ctx, shapesEarly, e.accepted); err != nil {
		return err
	}
	var err error
	if e.recorded, err = m.finishEarly(ctx); err != nil {
		return err
	}
	e.compare()
	if err := m.addLeaves(ctx, inv, e); err != nil {
		return err
	}
	e.after, err = m.positions(ctx) // beyond it no row of what is not published any more comes
	return err
}

// compare says what the shards lack of what this run found.
func (e *evolution) compare() {
	e.changes = nil
	for n, was := range e.recorded {
		e.changes = append(e.changes, was.changesTo(e.accepted[n]))
	}
}

// finishEarly lets the shards take rows of both kinds, as far as that was begun, and gives what they are like then.
func (m *Move) finishEarly(ctx context.Context) ([]shapes, error) {
	was, err := m.recorded(ctx, shapesRecorded)
	if err != nil {
		return nil, err
	}
	early, err := m.recorded(ctx, shapesEarly)
	if err != nil || early == nil {
		return was, err
	}
	var changes [][]change
	for n := range was {
		changes = append(changes, was[n].changesTo(early[n]))
		was[n] = was[n].grown(early[n])
	}
	if err := m.onShards(ctx, changes, func(c *change, into *pg.Table) []string { return c.early(into) }); err != nil {
		return nil, err
	}
	return was, errors.Join(m.record(ctx, shapesRecorded, was), m.record(ctx, shapesEarly, nil))
}

// onShards runs on every shard what the changes of all sources ask for there, each once.
func (m *Move) onShards(ctx context.Context, changes [][]change, statements func(*change, *pg.Table) []string) error {
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		var run []string
		for source, all := range changes {
			all = slices.Clone(all)
			slices.SortStableFunc(all, func(a, b change) int { return cmp.Compare(a.order(), b.order()) })
			for i := range all {
				into := catalog.Table(all[i].Table)
				if into == nil && all[i].Kind != labelAdded {
					return &DDLError{refused: true, Source: source, Changes: []string{fmt.Sprintf("shard %d has no table %s", n, all[i].Table)}}
				}
				for _, sql := range statements(&all[i], into) {
					if !slices.Contains(run, sql) {
						run = append(run, sql)
					}
				}
			}
		}
		for _, sql := range run { // one by one: a label may be used only when it is committed, and each may be repeated
			if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
				return &DDLError{refused: true, Changes: []string{fmt.Sprintf("on shard %d, %s: %v", n, sql, err)}}
			}
			m.log.Info("the shard was changed as the source was", "shard", n, "sql", sql)
		}
		return nil
	})
}

// order puts renames before what names the column anew.
func (c *change) order() int {
	switch c.Kind {
	case columnDropped:
		return 0
	case columnRenamed:
		return 1
	}
	return 2
}

// errPassed ends the streams of a run: they have passed what was changed, and the shards' tables are changed to the end.
var errPassed = errors.New("the streams have passed what was changed")

// pass waits until every stream has passed the changes that are pending; then it gives errPassed.
func (m *Move) pass(ctx context.Context, e *evolution, followers []*follower) error {
	if !e.pending() {
		return nil
	}
	for told := false; !e.alike(); told = true {
		if !told {
			m.log.Warn("not every source was changed alike yet; the cutover waits for that", "source 0", fmt.Sprint(e.error(0, nil).Changes))
		}
		if err := sleep(ctx, time.Second); err != nil { // lookForDDL ends this when one is changed
			return err
		}
	}
	for _, f := range followers {
		for f.sink.Applied() < e.after[f.source] {
			if err := f.reach(ctx, time.Now().Add(time.Second)); err != nil {
				return err
			}
		}
	}
	e.ended = true
	return errPassed
}

// endEvolution records that every stream has passed the changes, and ends them.
func (m *Move) endEvolution(ctx context.Context, e *evolution) error {
	if !e.run {
		return m.record(ctx, shapesRecorded, e.accepted)
	}
	if err := m.record(ctx, shapesAhead, e.accepted); err != nil {
		return err
	}
	return m.finishEvolution(ctx)
}

// finishEvolution changes the shards' tables to the end, as far as it was begun.
func (m *Move) finishEvolution(ctx context.Context) error {
	was, err := m.finishEarly(ctx)
	if err != nil {
		return err
	}
	ahead, err := m.recorded(ctx, shapesAhead)
	if err != nil || ahead == nil {
		return err
	}
	var changes [][]change
	for n := range was {
		changes = append(changes, was[n].changesTo(ahead[n]))
	}
	if err := m.onShards(ctx, changes, func(c *change, into *pg.Table) []string { return c.late(into) }); err != nil {
		return err
	}
	return errors.Join(m.record(ctx, shapesRecorded, ahead), m.record(ctx, shapesAhead, nil))
}

// renamed are the columns of a table that rows of a source call otherwise than the shards do: at first those from after
// the change, and, once the shards have the new name, those from before.
func (e *evolution) renamed(source int, into *pg.Table) map[string]string {
	if e == nil {
		return nil
	}
	out := map[string]string{}
	for _, c := range e.changes[source] {
		if c.Table != into.Name || c.Kind != columnRenamed {
			continue
		}
		if _, there := into.Column(c.Was.Name); there {
			out[c.Now.Name] = c.Was.Name
		} else {
			out[c.Was.Name] = c.Now.Name
		}
	}
	return out
}

// starts is the position from which a partition's changes are followed, 0: all of them. One that is not copied yet is
// copied as of a later position than any that is read now.
func (e *evolution) starts(source int, leaf uint32) pg.LSN {
	if e == nil {
		return 0
	}
	if at, ok := e.startsAt[leaf]; ok {
		return at
	}
	if t, ok := e.recorded[source].Tables[leaf]; !ok || t.Pending {
		return math.MaxUint64
	}
	return 0
}

// goneLeaves are the partitions of a root that went and that the shards still have, by OID.
func (e *evolution) goneLeaves(source int, root pg.Name) map[uint32]pg.Name {
	out := map[uint32]pg.Name{}
	if e == nil {
		return out
	}
	for _, c := range e.changes[source] {
		if c.Kind == leafGone && e.recorded[source].rootOf(shape{Name: c.Table}) == root {
			out[c.OID] = c.Leaf
		}
	}
	return out
}

// adapt tells a table of the stream what its rows from before the changes may carry.
func (e *evolution) adapt(source int, t *sink.Table) {
	if e == nil {
		return
	}
	t.Before = e.before[source]
	for _, c := range e.changes[source] {
		if c.Table == t.Source && c.Kind == columnDropped {
			t.Gone[c.Was.Name] = true
		}
	}
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

// changedSince says what of a source differs from what this run found.
func (m *Move) changedSince(ctx context.Context, inv *inventory, e *evolution, source int) (*DDLError, error) {
	now := *inv
	now.sources = slices.Clone(inv.sources)
	err := m.source(ctx, source, func(conn *pgx.Conn) (err error) {
		now.sources[source], err = pg.ReadCatalog(ctx, conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	since := &evolution{recorded: e.accepted, changes: make([][]change, len(inv.sources))}
	since.changes[source] = e.accepted[source].changesTo(now.shapes(source))
	for _, t := range now.sources[source].Roots() {
		if m.OnDDL != DDLExec && m.matches(t.Name) && t.Persistence == 'p' && inv.byName[t.Name] == nil {
			since.changes[source] = append(since.changes[source], change{Table: t.Name, Text: "table " + t.Name.String() + " was made", Why: "it cannot be followed"})
		}
	}
	if len(since.changes[source]) == 0 {
		return nil, nil
	}
	return since.error(source, nil), nil
}

// strangers names tables that were made since the move began, or detached from one of its own. Under exec they may be
// on their way to become partitions, but nothing is switched while there are any.
func (m *Move) strangers(ctx context.Context, inv *inventory, e *evolution, source int) error {
	var catalog *pg.Catalog
	err := m.source(ctx, source, func(conn *pgx.Conn) (err error) {
		catalog, err = pg.ReadCatalog(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range catalog.Roots() {
		if m.matches(t.Name) && t.Persistence == 'p' && inv.byName[t.Name] == nil && !e.accepted[source].Gone[t.OID] {
			return fmt.Errorf("table %s of source %d was made after the move began and would stay behind; hint: attach it, drop it, or name it in [tables] exclude", t.Name, source)
		}
	}
	return nil
}

// lookForDDL is asked while a stream runs: any change ends it.
func (m *Move) lookForDDL(ctx context.Context, inv *inventory, e *evolution, source int) error {
	found, err := m.changedSince(ctx, inv, e, source)
	if err != nil || found == nil {
		return err
	}
	return found
}

// mayBeDDL says that an error may come of a change that the catalog tells of and the stream met first.
func mayBeDDL(err error) bool {
	var ddl *DDLError
	var schema *sink.SchemaError
	code := pg.Code(err)
	return errors.As(err, &ddl) || errors.As(err, &schema) || code != "" && slices.Contains([]string{"22", "23", "42"}, code[:2])
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

// changedBelow looks, after a stream has ended with an error, whether a source was changed: that is then the error.
func (m *Move) changedBelow(ctx context.Context, inv *inventory, e *evolution, err error) error {
	if !mayBeDDL(err) || ctx.Err() != nil {
		return err
	}
	for n := range inv.sources {
		if found := m.lookForDDL(ctx, inv, e, n); found != nil {
			return found
		}
	}
	return err
}

package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

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
	switch {
	case refused < 0 && m.OnDDL == DDLExec:
		e.run = true
		return m.runEarly(ctx, inv, e)
	case refused < 0 && m.OnDDL == DDLIgnore: // the shards need not have them
		return nil
	}
	differs := m.sameOnShards(ctx, inv)
	if refused < 0 && differs == nil { // the shards have them already
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
				return fmt.Errorf("change shard %d as the source was, by %s: %w; hint: mend there what is in the way, and run the same command again", n, sql, err)
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

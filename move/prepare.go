package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// recordLayouts writes both layouts' records on every node and says, where none said so before, that the source serves.
func (m *Move) recordLayouts(ctx context.Context) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	next, err := json.Marshal(m.layoutRecord(m.Destination, inv.layout))
	if err != nil {
		return err
	}
	now, err := json.Marshal(m.layoutRecord(m.Source, inv.sourceLayout))
	if err != nil {
		return err
	}
	serving := checkpoints.Serving{Database: m.Source.Database, Version: m.Source.Layout, Since: time.Now().UTC()}
	return m.nodes(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return errors.Join(
			checkpoints.PutLayout(ctx, conn, m.Source.Database, m.Source.Layout, now),
			checkpoints.PutLayout(ctx, conn, m.Destination.Database, m.Destination.Layout, next),
			checkpoints.Serve(ctx, conn, serving))
	})
}

// slot and publication share one name: pgreshard_<move>_<source>, with - as _.
func (m *Move) slot(source int) string {
	if m.forward != nil {
		return m.forward.reverseSlot(source)
	}
	return fmt.Sprintf("pgreshard_%s_%d", m.slotName(), source)
}

// reverseSlot is the name of the slot and publication of one destination shard, whose changes go back to the sources.
func (m *Move) reverseSlot(shard int) string {
	return fmt.Sprintf("pgreshard_%s_back_%d", m.slotName(), shard)
}

func (m *Move) slotName() string {
	name := []byte(m.Name)
	for i, c := range name {
		if c == '-' {
			name[i] = '_'
		}
	}
	return string(name)
}

// slotAgain is the temporary slot of a table that is copied a second time.
func (m *Move) slotAgain(source int) string { return m.slot(source) + "_again" }

// makeSchema publishes the sources' tables and makes the destination's, without anything that slows the copy down.
// Publications come first of all: a slot decodes only what is published at its position.
func (m *Move) makeSchema(ctx context.Context) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if err := m.identities(ctx, inv); err != nil {
		return err
	}
	err = m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		var leaves []pg.Name
		for _, leaf := range inv.leaves(n) {
			leaves = append(leaves, leaf.Name)
		}
		err := replicator.CreatePublication(ctx, conn, m.slot(n), leaves)
		if errors.Is(err, replicator.ErrPublicationExists) {
			if own := replicator.OwnPublication(ctx, conn, m.slot(n)); own != nil || m.resumed {
				err = own
			}
		}
		if err != nil {
			return err
		}
		return m.rememberPublication(ctx, n, conn)
	})
	if err != nil {
		return err
	}
	if m.CreateSchema {
		if err := m.restoreTables(ctx, inv); err != nil {
			return err
		}
	}
	if err := m.recordShapes(ctx, inv); err != nil {
		return err
	}
	if err := m.closeDestination(ctx, inv); err != nil {
		return err
	}
	return m.emptyDestination(ctx, inv)
}

// emptyDestination looks, once nobody else can write there any more and before the first row is copied, whether somebody has.
func (m *Move) emptyDestination(ctx context.Context, inv *inventory) error {
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		for _, t := range inv.tables {
			var rows bool
			if err := conn.QueryRow(ctx, "select exists (select from "+t.name.SQL()+")").Scan(&rows); err != nil {
				return err
			}
			if rows {
				return fmt.Errorf("%s holds rows of somebody who wrote to it before the move closed it: destination shard %d; hint: stop who writes there, empty it there (set session_replication_role = replica; truncate %s), and run the same command again",
					t.name, n, t.name.SQL())
			}
		}
		return nil
	})
}

func (m *Move) restoreTables(ctx context.Context, inv *inventory) error {
	dump, err := m.dumpSchema(ctx, inv)
	if err != nil {
		return err
	}
	defer dump.Close()
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		return dump.Restore(ctx, m.Destination.Shards[n], conn, PhaseTables, m.resumed)
	})
}

// closeDestination puts the fence on the destination's tables, closed: until the switch only this worker writes there.
func (m *Move) closeDestination(ctx context.Context, inv *inventory) error {
	return m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		f := m.fence(conn)
		if err := f.setUp(ctx, int64(m.Destination.Layout), int64(m.Source.Layout), true); err != nil {
			return err
		}
		return f.arm(ctx, inv.names(), false)
	})
}

// identities sets REPLICA IDENTITY FULL on tables that need it, where the configuration says so. It must be there
// before the slot. What was there before is remembered first.
func (m *Move) identities(ctx context.Context, inv *inventory) error {
	if !m.SetIdentity {
		return nil
	}
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		var was identities
		if err := m.detail(ctx, identitiesKey(n), &was); err != nil {
			return err
		}
		for _, leaf := range inv.leaves(n) {
			if !m.needsFull(inv, leaf, n) {
				continue
			}
			if column := virtual(leaf); column != "" {
				return &PlanError{layout.Problems{virtualProblem(leaf, column)}}
			}
			was = append(was, identity{leaf.Name, leaf.Replica, leaf.ReplicaIndex})
			if err := m.setDetail(ctx, identitiesKey(n), was); err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, fmt.Sprintf("alter table only %s replica identity full", leaf.Name.SQL())); err != nil {
				return fmt.Errorf("set the replica identity of %s: %w", leaf.Name, err)
			}
			leaf.Replica = pg.IdentityFull
		}
		return nil
	})
}

// identities is what the move changed of one source's tables, in the order it did.
type identities []identity

type identity struct {
	Table pg.Name
	Was   pg.ReplicaIdentity
	Index string // of IdentityIndex
}

func identitiesKey(source int) string { return fmt.Sprintf("identities_%d", source) }

// restoreIdentities puts back what identities changed.
func (m *Move) restoreIdentities(ctx context.Context, source int, conn *pgx.Conn) error {
	var was identities
	if err := m.detail(ctx, identitiesKey(source), &was); err != nil {
		return err
	}
	for _, i := range was {
		to := map[pg.ReplicaIdentity]string{pg.IdentityDefault: "default", pg.IdentityNothing: "nothing", pg.IdentityFull: "full",
			pg.IdentityIndex: "using index " + ident(i.Index)}[i.Was]
		alter := fmt.Sprintf("alter table only %s replica identity %s", i.Table.SQL(), to)
		err := m.fence(conn).patiently(ctx, alter)
		if err != nil && pg.Code(err) != "42P01" {
			return fmt.Errorf("put back the replica identity of %s: %w", i.Table, err)
		}
	}
	return nil
}

// needsFull: without a usable identity the application's own UPDATE and DELETE would fail once the table is published;
// with several sources an old row must tell whose it is.
func (m *Move) needsFull(inv *inventory, leaf *pg.Table, source int) bool {
	if leaf.Replica == pg.IdentityFull {
		return false
	}
	if len(leaf.Logged) == 0 {
		return true
	}
	if len(m.Source.Shards) == 1 {
		return false
	}
	t := inv.tableOf(leaf, source)
	return t != nil && !t.tellsSource(leaf)
}

// tellsSource says that the old rows a leaf logs tell which of several sources they are of.
func (t *moved) tellsSource(leaf *pg.Table) bool {
	return t.rule.Omni || logsAll(leaf, t.rule.Columns) && logsAll(leaf, t.sourceRule.Columns)
}

// tableOf finds the moved table a leaf belongs to.
func (inv *inventory) tableOf(leaf *pg.Table, source int) *moved {
	root := inv.sources[source].ByOID(leaf.Root)
	if root == nil {
		return nil
	}
	return inv.byName[root.Name]
}

func logsAll(t *pg.Table, columns []string) bool {
	for _, name := range columns {
		found := false
		for _, i := range t.Logged {
			found = found || t.Columns[i].Name == name
		}
		if !found {
			return false
		}
	}
	return true
}

func (m *Move) dumpSchema(ctx context.Context, inv *inventory) (dump *Dump, err error) {
	if err := os.MkdirAll(m.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	major, err := m.newestMajor(ctx)
	if err != nil {
		return nil, err
	}
	err = m.source(ctx, 0, func(conn *pgx.Conn) error {
		dump, err = DumpSchema(ctx, m.Source.Shards[0], conn, SchemaOptions{
			Bin: m.PgBin, Major: major, Dir: m.StateDir, App: m.app() + " schema", Tables: inv.tree(0),
			Skip: m.SkipConstraint, Owners: m.Owners, Grants: m.Grants})
		return err
	})
	return dump, err
}

func (m *Move) newestMajor(ctx context.Context) (major int, err error) {
	var mu sync.Mutex
	err = m.nodes(ctx, func(_ context.Context, conn *pgx.Conn) error {
		mu.Lock()
		defer mu.Unlock()
		major = max(major, serverMajor(conn))
		return nil
	})
	return major, err
}

// destCatalog reads the first destination shard's catalog: all shards were made from one dump.
func (m *Move) destCatalog(ctx context.Context) (catalog *pg.Catalog, err error) {
	err = m.dest(ctx, 0, func(conn *pgx.Conn) error {
		catalog, err = pg.ReadCatalog(ctx, conn)
		return err
	})
	return catalog, err
}

func (m *Move) restoreLater(ctx context.Context, inv *inventory, phases []Phase) error {
	dump, err := m.dumpSchema(ctx, inv)
	if err != nil {
		return err
	}
	defer dump.Close()
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		for _, phase := range phases {
			if err := dump.Restore(ctx, m.Destination.Shards[n], conn, phase, true); err != nil {
				return err
			}
		}
		return nil
	})
}

// mixedUntil is, by source, the position up to which the shards' rows may be of different moments, because a copy was
// resumed; 0 where they never were.
func (m *Move) mixedUntil(ctx context.Context) ([]pg.LSN, error) {
	until := make([]pg.LSN, len(m.Source.Shards))
	err := m.home(ctx, func(conn *pgx.Conn) error {
		for n := range until {
			tables, err := m.stream(n).ResumedTables(ctx, conn)
			if err != nil {
				return err
			}
			for _, t := range tables {
				until[n] = max(until[n], t.ForgiveUntil, t.StartsAt)
			}
		}
		return nil
	})
	return until, err
}

// finishUnique makes the unique constraints a resumed copy had to go without, once every stream has passed what was
// mixed. Writing to a shard waits while its index is built.
func (m *Move) finishUnique(ctx context.Context, inv *inventory, followers []*follower) error {
	if !m.CreateSchema {
		return nil
	}
	for {
		until, err := m.mixedUntil(ctx) // it grows where a row is read again from the source
		if err != nil || slices.Max(until) == 0 {
			return err
		}
		passed := true
		for n, f := range followers {
			passed = passed && f.sink.Applied() >= until[n]
		}
		if passed {
			return m.restoreLater(ctx, inv, []Phase{PhaseUnique})
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// buildIndexes makes what the copy did without, then freezes and analyses every table, shard by shard at once.
func (m *Move) buildIndexes(ctx context.Context) error {
	for n := range m.Source.Shards { // or all of it would be in vain
		if err := m.slotThere(ctx, n); err != nil {
			return err
		}
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if m.CreateSchema {
		phases := []Phase{PhaseIndexes, PhaseUnique, PhaseTriggers}
		if mixed, err := m.mixedUntil(ctx); err != nil {
			return err
		} else if slices.Max(mixed) > 0 { // finishUnique makes them
			phases = []Phase{PhaseIndexes, PhaseTriggers}
		}
		if err := m.restoreLater(ctx, inv, phases); err != nil {
			return err
		}
		if err := m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error { return DisableTriggers(ctx, conn, inv.tree(0)) }); err != nil {
			return err
		}
	}
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		for _, t := range inv.tables {
			if _, err := conn.Exec(ctx, "vacuum (freeze, analyze) "+t.name.SQL()); err != nil {
				return fmt.Errorf("vacuum %s on shard %d: %w", t.name, n, err)
			}
		}
		return nil
	})
}

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// Partitions that come and go while a move streams send nothing to the log: DROP and DETACH take their rows away, ATTACH
// brings rows, and what is written to a new partition before it is published is in no stream.

// judgeLeaves says of partitions that came or went why they cannot be followed, where they cannot.
func (m *Move) judgeLeaves(ctx context.Context, inv *inventory, e *evolution) error {
	e.goneFirst()
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return err
	}
	for n, all := range e.changes {
		for i := range all {
			c := &all[i]
			if c.Kind != leafAdded && c.Kind != leafGone {
				continue
			}
			above, same := dest.Table(c.Table), dest.Table(c.Leaf)
			switch leaf := inv.sources[n].ByOID(c.OID); {
			case above == nil || above.Kind != 'p':
				c.Why = "the shards do not have the partitions the source has"
			case c.Kind == leafGone && (same == nil || same.Parent != above.OID):
				c.Why = "the shards do not have it as a partition of its own"
			case c.Kind == leafAdded && same != nil && same.Parent != above.OID:
				c.Why = "the shards have another table of this name"
			case c.Kind == leafAdded && m.needsFull(inv, leaf, n):
				c.Why = "its replica identity does not carry what it must: alter table " + c.Leaf.SQL() + " replica identity full"
			}
		}
	}
	return nil
}

// goneFirst leaves partitions that came to the next run where others went: they may have taken their places.
func (e *evolution) goneFirst() {
	for n, all := range e.changes {
		if !slices.ContainsFunc(all, func(c change) bool { return c.Kind == leafGone }) {
			continue
		}
		e.changes[n] = slices.DeleteFunc(all, func(c change) bool {
			if c.Kind == leafAdded {
				delete(e.accepted[n].Tables, c.OID)
			}
			return c.Kind == leafAdded
		})
	}
}

// unpublishGone takes detached partitions out of the publications: they are tables of their own now.
func (m *Move) unpublishGone(ctx context.Context, e *evolution) error {
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		for _, c := range e.changes[n] {
			if c.Kind == leafGone {
				if err := replicator.Unpublish(ctx, conn, m.slot(n), c.OID); err != nil {
					return err
				}
				if err := m.rememberPublication(ctx, n, conn); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// addLeaves brings new partitions over: each is published, its stream's other tables are followed up to the very
// position of a snapshot, its rows are copied from that, and everything goes on together from there.
func (m *Move) addLeaves(ctx context.Context, inv *inventory, e *evolution) error {
	for n := range e.changes {
		for _, c := range e.changes[n] {
			if c.Kind != leafAdded {
				continue
			}
			if err := m.addLeaf(ctx, inv, e, n, c); err != nil {
				return fmt.Errorf("bring %s over, which was made or attached: %w", c.Leaf, m.changedBelow(ctx, inv, e, err))
			}
			m.log.Info("a new partition was brought over", "source", n, "table", c.Leaf.String())
		}
		e.changes[n] = slices.DeleteFunc(e.changes[n], func(c change) bool { return c.Kind == leafAdded })
	}
	return nil
}

func (m *Move) addLeaf(ctx context.Context, inv *inventory, e *evolution, n int, c change) error {
	if inv.tableOf(inv.sources[n].ByOID(c.OID), n).follows(n) {
		if err := m.bringLeaf(ctx, inv, e, n, c); err != nil {
			return err
		}
	}
	e.recorded[n].Tables[c.OID] = e.accepted[n].Tables[c.OID]
	return m.record(ctx, shapesRecorded, e.recorded)
}

func (m *Move) bringLeaf(ctx context.Context, inv *inventory, e *evolution, n int, c change) error {
	if err := m.closeDestination(ctx, inv); err != nil { // the fence on the shards' new partition
		return err
	}
	err := m.source(ctx, n, func(conn *pgx.Conn) error {
		if err := replicator.Publish(ctx, conn, m.slot(n), c.Leaf); err != nil {
			return err
		}
		return m.rememberPublication(ctx, n, conn)
	})
	if err != nil {
		return err
	}
	copied, err := m.leafCopy(ctx, inv, n, c)
	if err != nil {
		return err
	}
	slot, err := replicator.CreateSlot(ctx, m.Source.Shards[n], m.slot(n)+"_leaf", true)
	if err != nil {
		return err
	}
	defer slot.Close()
	snap, err := copier.ImportSnapshot(ctx, m.Source.Shards[n], m.app(), slot.Snapshot)
	if err != nil {
		return err
	}
	defer snap.Close()
	e.startsAt = map[uint32]pg.LSN{c.OID: slot.ConsistentPoint}
	if err := m.followTo(ctx, inv, e, n, slot.ConsistentPoint); err != nil {
		return err
	}
	if err := copied.leaf(ctx, snap, c); err != nil {
		return err
	}
	e.startsAt = nil
	return nil
}

// leafCopy readies the copy of one new partition: nothing of it is on a shard, also where an earlier try had begun.
func (m *Move) leafCopy(ctx context.Context, inv *inventory, n int, c change) (*sourceCopy, error) {
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.progress == nil {
		m.progress = make([]*copier.Progress, len(m.Source.Shards))
	}
	if m.progress[n] == nil {
		m.progress[n] = &copier.Progress{}
	}
	m.mu.Unlock()
	root := inv.tableOf(inv.sources[n].ByOID(c.OID), n)
	s := &sourceCopy{Move: m, inv: inv, dest: dest, n: n}
	return s, m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		if err := m.stream(n).VoidMarks(ctx, conn, fmt.Sprint(c.OID)); err != nil {
			return err
		}
		return s.emptyOf(ctx, conn, root, dest.Table(root.name), c.Leaf)
	})
}

// leaf copies one partition's rows under a snapshot.
func (c *sourceCopy) leaf(ctx context.Context, snap *copier.Snapshot, added change) error {
	if err := c.readMarks(ctx); err != nil {
		return err
	}
	catalog, err := pg.ReadCatalog(ctx, snap.Conn())
	if err != nil {
		return err
	}
	leaf := catalog.ByOID(added.OID)
	var root *moved
	if leaf != nil && catalog.ByOID(leaf.Root) != nil {
		root = c.inv.byName[catalog.ByOID(leaf.Root).Name]
	}
	if root == nil { // detached, if not dropped
		return &DDLError{Source: c.n, Changes: []string{added.Leaf.String() + " is gone again"}}
	}
	plan, err := copier.Plan(leaf, c.dest.Table(root.name), root.rule.Columns, root.rule.BinaryKey(), c.CopyFormat)
	if err != nil {
		return err
	}
	chunks := copier.Split(plan, copier.ChunkPages(leaf, c.CopyWorkers))
	return c.load(ctx, snap.ID, snap, chunks, func(pg.Name) bool { return false })
}

// errReached ends a stream that was to be followed up to a position.
var errReached = errors.New("the position is reached")

// followTo follows one source up to a position and no further: every shard then holds exactly what was committed before.
func (m *Move) followTo(ctx context.Context, inv *inventory, e *evolution, n int, at pg.LSN) error {
	followers, err := m.newFollowers(ctx, inv, e)
	if err != nil {
		return err
	}
	defer m.forgetFollowers()
	if err := followers[n].upTo(ctx, at); err != nil {
		return m.changedBelow(ctx, inv, e, err)
	}
	return nil
}

package move

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
	"pgreshard/verify"
)

// changesName is the name of the temporary slot by which a node's changes are read and, on the destination, of the publication.
func (m *Move) changesName(n node) string {
	side := "d"
	if n.source {
		side = "s"
	}
	return fmt.Sprintf("pgreshard_%s_seen_%s%d", m.slotName(), side, n.number)
}

// changesPublication is what a node's changes are read by: what the streams read by, where there are any.
func (m *Move) changesPublication(n node) string {
	switch {
	case n.source:
		return m.slot(n.number)
	case m.forward != nil:
		return m.forward.slot(n.number)
	}
	return m.changesName(n)
}

// followChanges begins to read what changes on every node. Where it fails, nothing runs.
func (m *Move) followChanges(ctx context.Context, inv *inventory, tables []verify.Table) (c *changes, err error) {
	c = newChanges(m, inv, tables)
	if len(c.keys) == 0 {
		return c, nil
	}
	if err := m.publishChanges(ctx, c); err != nil {
		return c, err
	}
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	c.end = func() {
		stop()
		all.Wait()
	}
	defer func() {
		if err != nil {
			c.end()
		}
	}()
	nodes := m.allNodes()
	streams := make([]*replicator.Stream, len(nodes))
	err = atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		began, ended := make(chan struct{}), make(chan error, 1)
		streams[i] = replicator.New(replicator.Config{Shard: m.shardOf(nodes[i]), Slot: m.changesName(nodes[i]), Publication: m.changesPublication(nodes[i]),
			Temporary: slotPatience, QueueBytes: changesQueue, Began: func(context.Context, int32) error { close(began); return nil }})
		all.Go(func() {
			err := streams[i].Run(running)
			ended <- err
			if running.Err() == nil {
				c.lose(err)
			}
		})
		select {
		case <-began:
			return nil
		case err := <-ended:
			return err
		}
	})
	if err == nil {
		err = c.settled(ctx)
	}
	if err == nil {
		err = c.remember(ctx)
	}
	if err != nil {
		return c, err
	}
	for i, n := range nodes {
		all.Go(func() {
			for b := range streams[i].Blocks() {
				c.take(n, b)
				streams[i].Release(b)
				streams[i].Confirm(c.passedBy(n))
			}
		})
		all.Go(func() { c.keepBudget(running, n, stop) })
	}
	return c, nil
}

// changesQueue bounds what is received of one node and not yet looked at.
const changesQueue = 4 << 20

// publishChanges makes the shards' publications, recorded first as what is made for the way back is. On tables without
// replica identity one would refuse updates.
func (m *Move) publishChanges(ctx context.Context, c *changes) error {
	if m.forward != nil {
		return nil
	}
	if err := m.wayBack().setDetail(ctx, madeKey, true); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	return m.dests(bounded, func(ctx context.Context, n int, conn *pgx.Conn) error {
		name := m.changesName(node{number: n})
		if err := m.dropPublication(ctx, n, conn, name); err != nil {
			return err
		}
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		var leaves []pg.Name
		for root := range c.keys {
			for _, leaf := range catalog.Leaves(catalog.Table(root)) {
				if len(leaf.Logged) > 0 {
					leaves = append(leaves, leaf.Name)
				}
			}
		}
		if len(leaves) == 0 {
			return nil
		}
		return replicator.CreatePublication(ctx, conn, name, leaves)
	})
}

// stop ends what followChanges began and takes the shards' publications away; what cannot be reached now is taken away with
// what was made for the way back.
func (c *changes) stop(ctx context.Context) {
	c.end()
	if c.move.forward != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slotPatience)
	defer cancel()
	err := c.move.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		return c.move.dropPublication(ctx, n, conn, c.move.changesName(node{number: n}))
	})
	if err != nil {
		c.move.log.Debug("a publication is left for later", "error", err.Error())
	}
}

// reads runs fn on a session of a node that only reads.
func (m *Move) reads(ctx context.Context, n node, fn func(*pgx.Conn) error) error {
	side := &m.Destination
	if n.source {
		side = &m.Source
	}
	return m.kept(ctx, sessionKey{side, n.number, pg.Reader}, fn)
}

const (
	selectBegun = `select pg_snapshot_xmax(pg_current_snapshot())::text`
	selectEnded = `select pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8`
)

// settled waits until every transaction that has begun on the shards has ended there: one that waits for a standby is in the
// log already, and no snapshot shows it. Whatever a log has shown by now is in every snapshot that is taken afterwards.
func (c *changes) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	return atOnce(ctx, len(c.move.Destination.Shards), func(ctx context.Context, i int) error {
		n := node{number: i}
		return c.move.reads(ctx, n, func(conn *pgx.Conn) error {
			var last string
			err := conn.QueryRow(ctx, selectBegun).Scan(&last)
			for ended := false; err == nil && !ended; {
				if err = conn.QueryRow(ctx, selectEnded, last).Scan(&ended); err == nil && !ended {
					err = sleep(ctx, 5*time.Millisecond)
				}
			}
			if err != nil {
				return fmt.Errorf("wait for transactions that are open on %s: %w", n, err)
			}
			return nil
		})
	})
}

// reach reads every log up to here, where any is read.
func (c *changes) reach(ctx context.Context) error {
	if len(c.keys) == 0 {
		return nil
	}
	nodes := c.move.allNodes()
	return atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		var end pg.LSN
		on := c.move.dest
		if nodes[i].source {
			on = c.move.source
		}
		err := on(ctx, nodes[i].number, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select pg_logical_emit_message(true, $1, 'compare')::text`, sink.MessagePrefix).Scan(&end)
		})
		for err == nil && c.passedBy(nodes[i]) < end {
			if err = c.lostBy(); err == nil {
				err = sleep(ctx, time.Millisecond)
			}
		}
		return err
	})
}

func (c *changes) passedBy(n node) pg.LSN {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed[n]
}

const selectKept = `select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
		(select nullif(setting::bigint, -1) << 20 from pg_settings where name = 'max_slot_wal_keep_size')
	from pg_replication_slots where slot_name = $1 and restart_lsn is not null`

// keepBudget gives the streams up where a slot keeps more log than it may, as it would for a transaction that stays open.
func (c *changes) keepBudget(ctx context.Context, n node, stop context.CancelFunc) {
	var disk int64
	for first := true; sleep(ctx, lookEvery) == nil; first = false {
		var kept, budget int64
		err := c.move.reads(ctx, n, func(conn *pgx.Conn) error {
			if first {
				disk = seenDisk(ctx, conn)
			}
			var limit *int64
			err := conn.QueryRow(ctx, selectKept, c.move.changesName(n)).Scan(&kept, &limit)
			budget = c.move.budgetFor(limit, disk)
			return err
		})
		if err == nil && kept > budget {
			c.lose(fmt.Errorf("the slot that reads what changes on %s keeps %s of log, more than the %s it may ([stream] wal_budget)", n, sizeText(kept), sizeText(budget)))
			stop()
		}
	}
}

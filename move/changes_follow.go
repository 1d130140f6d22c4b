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

// changesName is the name of the slot by which a node's changes are read and, on the destination, of the publication.
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

// followChanges begins to read what changes on every node: where a worker that was killed had begun, if that can be. Where it fails,
// nothing runs.
func (m *Move) followChanges(ctx context.Context, inv *inventory, tables []verify.Table) (c *changes, err error) {
	c = newChanges(m, inv, tables)
	if len(c.keys) == 0 {
		return c, nil
	}
	var kept *keptAccount
	if m.forward == nil {
		if err := m.detail(ctx, accountKey, &kept); err != nil {
			return c, err
		}
	}
	if kept != nil {
		err := m.readOn(ctx, c, kept)
		if err == nil {
			return c, nil
		}
		m.log.Info("what was compared before is compared again", "reason", err.Error())
		c.end()
		c = newChanges(m, inv, tables)
	}
	if err := m.dropAccount(ctx, m.allNodes()...); err != nil {
		return c, err
	}
	if m.forward == nil { // recorded before it is made
		if err := m.setDetail(ctx, accountKey, keptAccount{Of: c.of}); err != nil {
			return c, err
		}
	}
	if err := m.publishChanges(ctx, c); err != nil {
		return c, err
	}
	err = m.read(ctx, c, func(int) replicator.Config {
		return replicator.Config{Temporary: slotPatience, Lasting: m.forward == nil}
	})
	if err == nil && m.forward == nil { // of what was compared before nothing is known any more
		err = m.keepProving(ctx, func(p *proving) { clear(p.Tables) })
		if err == nil {
			err = c.remembered(ctx, c.covered)
		}
	}
	if err != nil {
		c.end()
	}
	return c, err
}

// read begins a stream on every node, as from says of each. Until c.end is called they run, whatever becomes of ctx.
func (m *Move) read(ctx context.Context, c *changes, from func(i int) replicator.Config) (err error) {
	outlives := context.WithoutCancel(ctx)
	running, stop := context.WithCancel(outlives)
	tending, rest := context.WithCancel(outlives)
	var all sync.WaitGroup
	c.end = func() {
		stop()
		rest()
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
		config := from(i)
		config.Shard, config.Slot, config.Publication = m.shardOf(nodes[i]), m.changesName(nodes[i]), m.changesPublication(nodes[i])
		config.QueueBytes, config.Began = changesQueue, func(context.Context, int32) error { close(began); return nil }
		streams[i] = replicator.New(config)
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
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err == nil {
		err = c.settled(ctx)
	}
	if err == nil {
		err = c.remember(ctx)
	}
	if err != nil {
		return err
	}
	if m.forward == nil {
		c.covered = map[node]pg.LSN{}
		for i, n := range nodes {
			c.covered[n] = max(from(i).Start, streams[i].Stats().Confirmed)
		}
	}
	for i, n := range nodes {
		all.Go(func() {
			for b := range streams[i].Blocks() {
				c.take(n, b)
				streams[i].Release(b)
				streams[i].Confirm(c.done(n))
			}
		})
	}
	all.Go(func() { c.tend(tending, stop) })
	return nil
}

// done is up to where the log of a node is not needed any more.
func (c *changes) done(n node) pg.LSN {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.covered != nil {
		return c.covered[n]
	}
	return c.passed[n]
}

// changesQueue bounds what is received of one node and not yet looked at.
const changesQueue = 4 << 20

// publishChanges makes the shards' publications. On tables without replica identity one would refuse updates.
func (m *Move) publishChanges(ctx context.Context, c *changes) error {
	if m.forward != nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	return m.dests(bounded, func(ctx context.Context, n int, conn *pgx.Conn) error {
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
		return replicator.CreatePublication(ctx, conn, m.changesName(node{number: n}), leaves)
	})
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

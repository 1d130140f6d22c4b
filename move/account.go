package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/verify"
)

// From the first comparison beside the writers on account is kept of what changes on every node, until the switch, so that a later
// comparison reads again only that. Its streams read from slots that last, and that are confirmed only up to where a comparison has
// covered everything: a worker that comes after a kill reads on from there, and knows from the bookkeeping what had been compared.

// keptAccount is what the bookkeeping has of an account. Without nodes it says only that something was made for one.
type keptAccount struct {
	Of     string            `json:"of"`
	Nodes  []keptNode        `json:"nodes,omitempty"` // as allNodes has them
	Shapes map[string]string `json:"shapes,omitempty"`
}

// keptNode is where the log of a node is read on from, which a server that was restarted may have lost the end of.
type keptNode struct {
	From    pg.LSN `json:"from"`
	Started string `json:"started"`
}

// accountKey is under what is kept that slots and publications were made for an account.
const accountKey = "account"

// accountOf tells an account of some tables, their keys and lookups from any other.
func accountOf(inv *inventory, c *changes) string {
	var all []any
	for _, t := range inv.tables {
		var feeds []any
		for _, f := range t.feeds {
			feeds = append(feeds, []any{f.query.Name, f.key})
		}
		all = append(all, []any{t.name.String(), c.keys[t.name], c.never[t.name], t.rule.Omni, t.rule.Lookup, fmt.Sprint(t.reads), feeds})
	}
	text, _ := json.Marshal(all) // texts all
	return string(text)
}

// account is the account of what changes, begun where there is none that can be gone on with. It may be lost from the start, and says
// why. m.verifying is held.
func (m *Move) account(ctx context.Context, inv *inventory, tables []verify.Table) *changes {
	if c := m.since; c != nil {
		if c.of == newChanges(m, inv, tables).of && c.lostBy() == nil && c.lookAgain(ctx) == nil && !c.stale {
			return c
		}
		c.end()
		m.since = nil
	}
	c, err := m.followChanges(ctx, inv, tables)
	if err != nil {
		c.lose(err)
	}
	m.since = c
	return c
}

// endAccount ends the account and takes away what was made for it. m.verifying is held.
func (m *Move) endAccount(ctx context.Context) {
	if m.since == nil {
		return
	}
	m.since.end()
	m.since = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slotPatience)
	defer cancel()
	if err := m.dropAccount(ctx, m.allNodes()...); err != nil {
		m.log.Debug("what the account of changes was read from is left for later", "error", err.Error())
	}
}

// leaveAccount ends the account with its worker: of a comparison that is not at its end it stays for the next one.
func (m *Move) leaveAccount(ctx context.Context) {
	m.mu.Lock()
	stop := m.stopComparing
	m.mu.Unlock()
	if stop != nil {
		stop()
	}
	m.verifying.Lock()
	defer m.verifying.Unlock()
	if m.since == nil || m.superseded(ctx) {
		if m.since != nil {
			m.since.end()
			m.since = nil
		}
		return
	}
	if p := m.lastProving(); p == nil || p.Ended {
		m.endAccount(ctx)
		return
	}
	m.since.end()
	m.since = nil
}

// takeUpAccount goes on with the account that a worker before this one has left, so that what it keeps of the logs is looked after;
// where that cannot be, it goes.
func (m *Move) takeUpAccount(ctx context.Context, inv *inventory) error {
	if m.forward != nil || !m.MustVerify {
		return nil
	}
	m.verifying.Lock()
	defer m.verifying.Unlock()
	var kept *keptAccount
	if err := m.detail(ctx, accountKey, &kept); err != nil || kept == nil || m.since != nil {
		return err
	}
	request, err := m.verification(ctx, inv)
	if err != nil {
		return err
	}
	c := newChanges(m, inv, request.Tables)
	if err := m.readOn(ctx, c, kept); err != nil {
		m.log.Info("what was compared before this worker is compared again", "reason", err.Error())
		c.end()
		return m.dropAccount(ctx, m.allNodes()...)
	}
	m.since = c
	return nil
}

// dropAccount takes away slots and publications of an account on nodes.
func (m *Move) dropAccount(ctx context.Context, nodes ...node) error {
	if m.forward != nil {
		return nil
	}
	var kept *keptAccount
	if err := m.detail(ctx, accountKey, &kept); err != nil || kept == nil {
		return err
	}
	err := atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		n := nodes[i]
		// On a session of its own: a walsender that ends is waited for, and a freeze may need the kept one.
		return m.on(ctx, m.shardOf(n), pg.Admin, func(conn *pgx.Conn) error {
			err := m.unlessForeign(n.number, replicator.DropSlot(ctx, conn, m.changesName(n)))
			if err != nil || n.source {
				return err
			}
			return m.dropPublication(ctx, n.number, conn, m.changesName(n))
		})
	})
	if err != nil || len(nodes) < len(m.allNodes()) {
		return err
	}
	return m.setDetail(ctx, accountKey, nil)
}

// readOn begins to read the logs where an account before this one had covered them. What is not in the last pass is compared whole, and
// what looks other than it did.
func (m *Move) readOn(ctx context.Context, c *changes, kept *keptAccount) error {
	nodes := m.allNodes()
	switch {
	case kept.Of != c.of:
		return errors.New("tables, keys or lookups are not those it was begun with")
	case len(kept.Nodes) != len(nodes):
		return errors.New("it was not read on from any place")
	}
	started, err := m.started(ctx)
	if err != nil {
		return err
	}
	for i, n := range nodes {
		if kept.Nodes[i].Started != started[i] {
			return fmt.Errorf("%s was restarted", m.nodeWords(n))
		}
	}
	pass := m.lastProving()
	for name, t := range c.touched {
		if pass != nil && pass.has(name) {
			t.whole = ""
		}
	}
	err = m.read(ctx, c, func(i int) replicator.Config { return replicator.Config{Start: kept.Nodes[i].From} })
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, shape := range c.shapeTexts() {
		if kept.Shapes[name.String()] != shape {
			c.whole(name, "it was changed or rewritten")
		}
	}
	return nil
}

// shapeTexts are what the tables look like on all nodes together. mu is held.
func (c *changes) shapeTexts() map[pg.Name]string {
	all := map[pg.Name]string{}
	for name := range c.keys {
		for _, n := range c.move.allNodes() {
			all[name] += c.shapes[n][name].text + " "
		}
	}
	return all
}

// remembered keeps with the move from where the logs are to be read on.
func (c *changes) remembered(ctx context.Context, from map[node]pg.LSN) error {
	started, err := c.move.started(ctx)
	if err != nil {
		return err
	}
	kept := keptAccount{Of: c.of, Shapes: map[string]string{}}
	for i, n := range c.move.allNodes() {
		kept.Nodes = append(kept.Nodes, keptNode{From: from[n], Started: started[i]})
	}
	c.mu.Lock()
	for name, shape := range c.shapeTexts() {
		kept.Shapes[name.String()] = shape
	}
	c.mu.Unlock()
	return c.move.setDetail(ctx, accountKey, kept)
}

// covers lets go of the logs up to where a comparison that found everything equal has covered them. That is kept first.
func (c *changes) covers(ctx context.Context, up map[node]pg.LSN) error {
	c.mu.Lock()
	covered := maps.Clone(c.covered)
	c.mu.Unlock()
	if covered == nil {
		return nil
	}
	for n, at := range up {
		covered[n] = max(covered[n], at)
	}
	if err := c.remembered(ctx, covered); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.covered != nil {
		c.covered = covered
	}
	return nil
}

// started is since when each node's server runs.
func (m *Move) started(ctx context.Context) ([]string, error) {
	nodes := m.allNodes()
	at := make([]string, len(nodes))
	return at, atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		return m.reads(ctx, nodes[i], func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select pg_postmaster_start_time()::text`).Scan(&at[i])
		})
	})
}

const selectKept = `select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
		` + slotLimit + `
	from pg_replication_slots where slot_name = $1 and restart_lsn is not null`

// tend looks once a second at what the slots keep. Beyond half of what one may, what is read is let go at once, and only this worker
// knows then what changed; beyond all of it, as for a transaction that stays open, the account is given up. The slots of one that is
// lost go as soon as their servers let them.
func (c *changes) tend(ctx context.Context, stop context.CancelFunc) {
	disks := map[node]int64{}
	for sleep(ctx, lookEvery) == nil {
		if c.lostBy() != nil {
			stop()
			if c.move.dropAccount(ctx, c.move.allNodes()...) == nil {
				return
			}
			continue
		}
		for _, n := range c.move.allNodes() {
			var kept, budget int64
			err := c.move.reads(ctx, n, func(conn *pgx.Conn) error {
				if _, seen := disks[n]; !seen {
					disks[n] = seenDisk(ctx, conn)
				}
				var limit *int64
				err := conn.QueryRow(ctx, selectKept, c.move.changesName(n)).Scan(&kept, &limit)
				budget = c.move.budgetFor(limit, disks[n])
				return err
			})
			switch {
			case err != nil: // the stream says so if it is gone
			case kept > budget:
				c.lose(fmt.Errorf("the slot that reads what changes on %s keeps %s of log, more than the %s it may ([stream] wal_budget)", n, sizeText(kept), sizeText(budget)))
			case kept > budget/2:
				c.letGo(ctx)
			}
		}
	}
}

// letGo has the logs let go as they are read: after this worker nobody can read on.
func (c *changes) letGo(ctx context.Context) {
	c.mu.Lock()
	lasted := c.covered != nil
	c.covered = nil
	c.mu.Unlock()
	if !lasted {
		return
	}
	if err := c.move.setDetail(ctx, accountKey, keptAccount{Of: c.of}); err != nil {
		c.lose(err)
	}
}

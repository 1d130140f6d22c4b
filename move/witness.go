package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgreshard/copier"
	"pgreshard/verify"
)

// What every table added up to on every node when the new layout began to serve is read afterwards, at leisure: from snapshots taken in the
// freeze, when everything was drained and nobody wrote. It takes nothing from the freeze but their taking, beside the comparison there.

// witnessTime bounds the taking of the snapshots: without them the switch is made all the same.
const witnessTime = time.Second

// witness takes the snapshots. It is for the freeze.
func (c *cutover) witness(ctx context.Context) {
	c.dropWitness()
	if c.forward != nil || !c.MustVerify || c.rehearsal {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, witnessTime)
	defer cancel()
	mo := &moment{sources: make([]*copier.Snapshot, len(c.Source.Shards)), shards: make([]*copier.Snapshot, len(c.Destination.Shards))}
	for _, z := range c.frozen {
		mo.at = append(mo.at, z.Barrier)
	}
	nodes := c.allNodes()
	err := atOnce(ctx, len(nodes), func(ctx context.Context, i int) (err error) {
		side := mo.shards
		if nodes[i].source {
			side = mo.sources
		}
		side[nodes[i].number], err = copier.NewSnapshot(ctx, c.shardOf(nodes[i]), c.app())
		return err
	})
	if err != nil {
		c.log.Info("what the tables add up to at the switch will not be read", "reason", err.Error())
		mo.close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.witnessed = mo
}

// dropWitness lets the snapshots go.
func (m *Move) dropWitness() {
	m.mu.Lock()
	mo := m.witnessed
	m.witnessed = nil
	m.mu.Unlock()
	if mo != nil {
		mo.close()
	}
}

// totalsKey is under what is kept what the tables added up to at the switch.
const totalsKey = "totals"

// switchTotals is that. Unread says why it is not known of all tables.
type switchTotals struct {
	At     []string             `json:"at"` // of each source
	Tables []verify.TableTotals `json:"tables"`
	Unread string               `json:"unread,omitempty"`
}

// readWitness reads what the tables added up to at the switch, and keeps it with the move.
func (m *Move) readWitness(ctx context.Context, inv *inventory) error {
	m.mu.Lock()
	mo := m.witnessed
	m.mu.Unlock()
	if mo == nil {
		return nil
	}
	found := switchTotals{At: mo.positions()}
	m.log.Info("what every table added up to at the switch is read")
	err := m.addUp(ctx, inv, mo, &found)
	var failed *verify.Failure
	switch {
	case ctx.Err() != nil: // to be read when the move is completed
		return ctx.Err()
	case errors.Is(err, verify.ErrRewritten):
		found.Unread = "a table was truncated or rewritten before it was read"
	case errors.As(err, &failed):
		found.Unread = fmt.Sprintf("%s %d did not answer: %s", failed.Side, failed.Number, failed.Reason)
	case err != nil: // no reason to hold the move up
		found.Unread = "the worker's log says why"
	}
	if err != nil {
		m.log.Warn("what every table added up to at the switch was not read", "error", oneLine(err))
	}
	m.dropWitness()
	slices.SortFunc(found.Tables, func(a, b verify.TableTotals) int { return strings.Compare(a.Table, b.Table) })
	for _, t := range found.Tables {
		if !t.Equal {
			m.log.Error("the layouts were not equal when the new one began to serve; hint: `pgreshard rollback` while it can be made", "table", t.Table)
		}
	}
	return m.setDetail(ctx, totalsKey, found)
}

// addUp reads every table under the snapshots.
func (m *Move) addUp(ctx context.Context, inv *inventory, mo *moment, found *switchTotals) error {
	request, err := m.verification(ctx, inv)
	if err != nil {
		return err
	}
	return verify.Totals(ctx, mo.under(request), func(t verify.TableTotals) { found.Tables = append(found.Tables, t) })
}

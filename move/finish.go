package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/verify"
)

// open lets the destination serve: triggers as the source has them, then the flags. It may be repeated.
func (m *Move) open(ctx context.Context, inv *inventory) error {
	var triggers []Trigger
	if m.forward == nil { // the sources' own were never changed
		var err error
		if triggers, err = m.sourceTriggers(ctx, inv); err != nil {
			return err
		}
	}
	return m.openWith(ctx, triggers)
}

// openWith is open, with the triggers' states known.
func (m *Move) openWith(ctx context.Context, triggers []Trigger) error {
	m.switchOnStandby(ctx)
	return m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		// Of a shard that is open already, or was before its fence was taken away, the application may have changed triggers
		// since; and opening takes the lock that writers hold.
		state, err := readFence(ctx, conn)
		if open := state.Until == 0 && state.Serving == int64(m.Destination.Layout); err != nil || open || !state.Installed {
			return err
		}
		if err := m.setTriggers(ctx, n, conn, triggers); err != nil {
			return err
		}
		return m.fence(conn).open(ctx, int64(m.Destination.Layout))
	})
}

// switchOnStandby waits until the record that decides which layout serves is on a standby of the home, before anybody may
// write to the new one. Both sides refuse writes meanwhile, so it is not waited for longer than a freeze may take.
func (m *Move) switchOnStandby(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.MaxFreeze)
	defer cancel()
	if err := m.home(ctx, func(conn *pgx.Conn) error { return m.onStandby(ctx, 0, conn) }); err != nil {
		m.log.Warn("that the new layout serves is not known to be on a standby of destination shard 0; do not fail it over before it has caught up", "error", err.Error())
	}
}

func (m *Move) sourceTriggers(ctx context.Context, inv *inventory) (triggers []Trigger, err error) {
	err = m.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		triggers, err = TriggerStates(ctx, conn, inv.tree(0))
		return err
	})
	return triggers, err
}

// setTriggers gives a shard's triggers the states given. One that the shard does not have was made after the check that
// looks for such; nothing goes back for it.
func (m *Move) setTriggers(ctx context.Context, shard int, conn *pgx.Conn, want []Trigger) error {
	there, err := TriggerStates(ctx, conn, tablesOf(want))
	if err != nil {
		return err
	}
	want = slices.DeleteFunc(slices.Clone(want), func(t Trigger) bool {
		missing := !slices.ContainsFunc(there, func(o Trigger) bool { return o.Table == t.Table && o.Name == t.Name })
		if missing {
			m.log.Warn("a trigger of the source is not on the shard", "shard", shard, "table", t.Table.String(), "trigger", t.Name)
		}
		return missing
	})
	return SetTriggerStates(ctx, conn, want)
}

// settledKey is under what is kept that what follows the switch is done: what the application changes of the shards later
// is not changed back by the next worker.
const settledKey = "settled"

// settleSwitch does what follows the switch once the shards are open: everything here rolls forward and may be repeated.
// Copies of the record, the sources' refusals name the new layout, and foreign keys are validated.
func (m *Move) settleSwitch(ctx context.Context, inv *inventory) error {
	var settled bool
	if err := m.detail(ctx, settledKey, &settled); err != nil {
		return err
	}
	if err := m.countFrom(ctx, !settled); err != nil || settled {
		return err
	}
	if err := m.afterSwitch(ctx); err != nil {
		return err
	}
	if err := m.copyRecord(ctx); err != nil {
		return err
	}
	if err := m.endOldSessions(ctx); err != nil {
		return err
	}
	var keys []ForeignKey
	err := m.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		keys, err = ForeignKeys(ctx, conn, inv.tree(0), m.SkipConstraint)
		return err
	})
	if err != nil {
		return err
	}
	err = atOnce(ctx, len(m.Destination.Shards), func(ctx context.Context, n int) error {
		// On a session of its own: it may take long, and the home is asked for other things meanwhile.
		return m.on(ctx, m.Destination.Shards[n], pg.Writer, func(conn *pgx.Conn) error {
			if err := AddForeignKeys(ctx, conn, keys); err != nil {
				return err
			}
			broken, err := ValidateForeignKeys(ctx, conn, keys)
			for _, e := range broken { // its rows are on two shards: it was so before the switch, and nothing can mend it now
				m.log.Warn("a foreign key refers to rows on another shard and stays NOT VALID", "error", e.Error())
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	return m.setDetail(ctx, settledKey, true)
}

// copyRecord writes on every node what the arbiter decided.
func (m *Move) copyRecord(ctx context.Context) error {
	var decided *checkpoints.Serving
	err := m.home(ctx, func(conn *pgx.Conn) (err error) {
		decided, err = checkpoints.ReadServing(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(
		m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error { return m.book.CopyServing(ctx, conn, *decided) }),
		m.sources(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
			return errors.Join(m.book.CopyServing(ctx, conn, *decided), m.fence(conn).retire(ctx, int64(decided.Version)))
		}))
}

// cleanUp drops slots, publications, marks, checkpoints and the destination's fence. Two things stay: the layout
// record, and the fence on the retired sources, so that a forgotten writer is refused and not lost.
func (m *Move) cleanUp(ctx context.Context) error {
	err := errors.Join(m.forgetReverse(ctx), m.dropAccount(ctx, m.allNodes()...))
	if !m.Publishes { // else it goes on with the layout that serves
		_, stopped := m.newCDC(ctx, nil)
		err = errors.Join(err, stopped)
	}
	err = errors.Join(err, m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		return errors.Join(m.dropSlotAndPublication(ctx, n, conn), m.restoreIdentities(ctx, n, conn))
	}))
	return errors.Join(err, m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		if err := m.removeFence(ctx, node{number: n}, conn); err != nil {
			return err
		}
		for n := range m.Source.Shards {
			if err := m.stream(n).Forget(ctx, conn); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Verify compares the sources with the shards as they are now. It is exact where nothing writes: in the freeze of a
// cutover, and on a move whose applications are stopped.
func (m *Move) Verify(ctx context.Context) (*verify.Report, error) {
	if known, err := m.find(ctx); err != nil {
		return nil, err
	} else if known == nil {
		return nil, ErrNoMove
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return nil, err
	}
	return m.runVerify(ctx, inv)
}

// errSourcesApart means that the destination is right and the sources differ from each other in an omnisharded table.
// The application writes such a table on one source after another, and the freeze came in between: its next attempt
// may find them equal.
var errSourcesApart = errors.New("the sources' copies of an omnisharded table differ")

func onlySources(r *verify.Report) bool {
	for i := range r.Tables {
		t := &r.Tables[i]
		if t.State != verify.Clean && (t.State != verify.Differs || t.BetweenSources == 0 || t.BetweenSources != t.Differences()) {
			return false
		}
	}
	return true
}

func (m *Move) setVerified(v VerifyStatus) (was VerifyStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, m.verified = m.verified, v
	return was
}

func (m *Move) runVerify(ctx context.Context, inv *inventory) (*verify.Report, error) {
	request, err := m.verification(ctx, inv)
	if err != nil {
		return nil, err
	}
	report, err := verify.Run(ctx, request)
	if err == nil {
		err = m.beyondRows(ctx, inv, request, nil, report)
	}
	return report, err
}

// verification is the comparison of everything the move moves. Its sessions are kept from one Run to the next.
func (m *Move) verification(ctx context.Context, inv *inventory) (verify.Request, error) {
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return verify.Request{}, err
	}
	request := verify.Request{Place: m.placer(inv, dest), HideKeys: m.HideKeys}
	for n := range m.Source.Shards {
		request.Sources = append(request.Sources, m.verifyNode(&m.Source, n))
	}
	for n := range m.Destination.Shards {
		request.Shards = append(request.Shards, m.verifyNode(&m.Destination, n))
	}
	for _, t := range inv.tables {
		from, into := inv.sources[0].Table(t.name), dest.Table(t.name)
		if into == nil {
			return verify.Request{}, fmt.Errorf("table %s is missing on the destination", t.name)
		}
		vt := verify.Table{Source: from, Dest: into, Omni: t.rule.Omni}
		for _, c := range from.Columns {
			vt.Columns = append(vt.Columns, c.Name)
		}
		for _, k := range into.Key {
			vt.Key = append(vt.Key, into.Columns[k].Name)
		}
		if !t.rule.Omni {
			vt.PlaceColumns, vt.PlacedBy = t.rule.Columns, t.reads
		}
		request.Tables = append(request.Tables, vt)
	}
	return request, nil
}

func (m *Move) verifyNode(side *Side, n int) verify.Node {
	shard, key := side.Shards[n], sessionKey{side, n, pg.Reader}
	return verify.Node{
		Number: shard.Number,
		Open: func(ctx context.Context) (*pgx.Conn, error) {
			if conn := m.spares.take(key); conn != nil {
				return conn, nil
			}
			return pg.Open(ctx, shard, pg.Reader, m.app())
		},
		Keep: func(conn *pgx.Conn) { m.spares.keep(key, conn) },
	}
}

// layoutRecord is what the layout record says: the layout's shards with their nodes, and its rules.
func (m *Move) layoutRecord(side Side, l *layout.Layout) layout.Record {
	record := layout.Record{Version: side.Layout, Database: side.Database}
	if l != nil {
		record = l.Describe()
	}
	record.Shards = nil
	for n, shard := range side.Shards {
		record.Shards = append(record.Shards, layout.RecordShard{Shard: layout.Shard(n), Node: m.node(shard)})
	}
	return record
}

// recordedSlots is which shard has which slots, where a layout's rules use them and it is recorded on its first shard.
func (m *Move) recordedSlots(ctx context.Context, side Side, spec layout.Spec) (tables []layout.SlotTable, err error) {
	if !slices.ContainsFunc(spec.Tables, func(t layout.ShardedTable) bool { return t.Placement == layout.PlacementSlots }) {
		return nil, nil
	}
	err = m.on(ctx, side.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		text, err := checkpoints.Layout(ctx, conn, side.Database, side.Layout)
		if err != nil || text == nil {
			return err
		}
		var record layout.Record
		err = json.Unmarshal(text, &record)
		tables = record.SlotTables
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the slots of layout %d: %w", side.Layout, err)
	}
	return tables, nil
}

// DatabasesOf names the databases of a layout's shards, as their addresses have them.
func (m *Move) DatabasesOf(r layout.Record) (names []string, err error) {
	side := m.Destination
	if r.Database == m.Source.Database && r.Version == m.Source.Layout {
		side = m.Source
	}
	for _, shard := range side.Shards {
		c, err := pg.Config(shard, pg.Reader, m.app())
		if err != nil {
			return nil, err
		}
		names = append(names, c.Database)
	}
	return names, nil
}

// ServingLayout is the record of the layout that serves, as JSON with serving_since filled in.
func (m *Move) ServingLayout(ctx context.Context) (record layout.Record, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		serving, err := checkpoints.ReadServing(ctx, conn)
		if err != nil {
			return err
		}
		if serving == nil {
			return ErrNoMove
		}
		text, err := checkpoints.Layout(ctx, conn, serving.Database, serving.Version)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &record); err != nil {
			return fmt.Errorf("read the record of layout %d: %w", serving.Version, err)
		}
		record.ServingSince = &serving.Since
		return nil
	})
	return record, err
}

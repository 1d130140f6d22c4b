package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// After the switch the old layout follows the new one, so that a rollback loses nothing ([cutover] reverse). The way back
// is a Move of its own with the layouts exchanged: same name, home, epoch and state, but its own slots, publications,
// checkpoints and details. Its slots are made before the freeze; where its streams start is decided within it, when the
// shards hold everything and nobody writes there yet, so that nothing comes back that came from the sources.

// reverseStreams is added to the move's name in the checkpoints of the way back; no name of a move has a slash in it.
const reverseStreams = "/reverse"

// The states a switch leads from, through and to, either way.
func (m *Move) steady() string    { return m.eitherWay(StateStreaming, StateSwitched) }
func (m *Move) switching() string { return m.eitherWay(StateCuttingOver, StateRollingBack) }

func (m *Move) eitherWay(forward, reverse string) string {
	if m.forward != nil {
		return reverse
	}
	return forward
}

// bothWays changes what the move and its way back have in common, with the mutex of each held.
func (m *Move) bothWays(change func(*Move)) {
	if m.forward != nil {
		m = m.forward
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
	if m.reverse != nil {
		m.reverse.mu.Lock()
		defer m.reverse.mu.Unlock()
		change(m.reverse)
	}
}

// wayBack is the way back of this move; there is one as long as this worker has its epoch.
func (m *Move) wayBack() *Move {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reverse == nil {
		m.reverse = newReverse(m)
		m.reverse.state, m.reverse.serving = m.state, m.serving
	}
	return m.reverse
}

// endReverse forgets the way back.
func (m *Move) endReverse() {
	m.mu.Lock()
	reverse := m.reverse
	m.reverse = nil
	m.mu.Unlock()
	if reverse != nil {
		reverse.Close()
	}
}

func newReverse(m *Move) *Move {
	c := m.Config
	c.Source, c.Destination = m.Destination, m.Source
	c.CreateSchema, c.SetIdentity, c.OnDDL = false, false, DDLStop
	// The sources' fence fires for every role and lets pass who names the epoch.
	c.Destination.Shards = nil
	for _, s := range m.Source.Shards {
		s.Settings = map[string]string{"pgreshard.epoch": strconv.FormatInt(m.book.Epoch, 10)}
		c.Destination.Shards = append(c.Destination.Shards, s)
	}
	b := New(c, m.log.With("way", "back"))
	b.Source.Shards, b.Destination.Shards = c.Source.Shards, c.Destination.Shards // with what is known of their nodes
	b.forward, b.book = m, m.book
	b.beforeStep = m.beforeStep
	return b
}

// placeBack gives the way back its rules: the source layout's. One source needs none, since everything belongs to it, but
// what is omnisharded comes from the first shard alone all the same.
func (m *Move) placeBack(inv *inventory) {
	if len(m.Destination.Shards) > 1 {
		return
	}
	var omni []string
	for _, t := range inv.tables {
		if t.rule.Omni {
			omni = append(omni, t.name.String())
		}
	}
	m.Destination.Spec = layout.Spec{}
	if len(omni) > 0 {
		m.Destination.Spec.Omni = []layout.OmniTables{{Tables: omni}}
	}
}

// slotPatience bounds how long a slot waits for transactions that are open on its server.
const slotPatience = 10 * time.Second

// errSlotWaits means that open transactions on a shard's server kept a slot from being made. They end by themselves.
var errSlotWaits = errors.New("the slot of the way back waits for open transactions")

// prepareReverse makes anew what the way back reads from: on every shard a publication and a slot.
func (m *Move) prepareReverse(ctx context.Context, inv *inventory) error {
	back := m.wayBack()
	if err := errors.Join(back.setDetail(ctx, madeKey, true), back.readShapes(ctx, inv)); err != nil {
		return err
	}
	err := back.dests(ctx, func(context.Context, int, *pgx.Conn) error { return nil }) // sessions the freeze will need
	if err != nil {
		return err
	}
	return back.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		if err := back.dropSlotAndPublication(ctx, n, conn); err != nil {
			return err
		}
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		var leaves []pg.Name
		for _, t := range inv.tables {
			if n > 0 && t.rule.Omni {
				continue
			}
			for _, leaf := range catalog.Leaves(catalog.Table(t.name)) {
				if len(leaf.Logged) == 0 {
					return fmt.Errorf("%s has no replica identity on destination shard %d, so that it cannot be followed back; hint: alter table %s replica identity full there, or set [cutover] reverse = false",
						leaf.Name, n, leaf.Name.SQL())
				}
				leaves = append(leaves, leaf.Name)
			}
		}
		if err := replicator.CreatePublication(ctx, conn, back.slot(n), leaves); err != nil {
			return err
		}
		if err := back.rememberPublication(ctx, n, conn); err != nil {
			return err
		}
		return back.makeReverseSlot(ctx, n)
	})
}

// readShapes remembers what the shards' tables look like when they begin to be followed.
func (m *Move) readShapes(ctx context.Context, inv *inventory) error {
	found := &inventory{tables: inv.tables, sources: make([]*pg.Catalog, len(m.Source.Shards))}
	err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (err error) {
		found.sources[n], err = pg.ReadCatalog(ctx, conn)
		for _, t := range inv.tables {
			if err == nil && found.sources[n].Table(t.name) == nil {
				err = fmt.Errorf("table %s is missing on %s", t.name, m.nodeWords(node{true, n}))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return m.recordShapes(ctx, found)
}

// makeReverseSlot records that it makes a slot before it does.
func (m *Move) makeReverseSlot(ctx context.Context, n int) error {
	if err := m.setDetail(ctx, slotKey(n), true); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	slot, err := replicator.CreateSlot(bounded, m.Source.Shards[n], m.slot(n), false)
	var blocked *replicator.BlockedError
	switch {
	case errors.Is(err, replicator.ErrSlotExists):
		return errors.Join(err, m.setDetail(ctx, slotKey(n), false))
	case errors.As(err, &blocked):
		return fmt.Errorf("%w: %w", errSlotWaits, err)
	case err != nil:
		return err
	}
	slot.Close()
	return m.rememberTimeline(ctx, n, slot.Timeline)
}

// madeKey is under what is kept that something was made for the way back.
const madeKey = "made"

// dropReverse takes away what prepareReverse made on these shards, on all where none is named.
func (m *Move) dropReverse(ctx context.Context, shards ...node) error {
	if m.forward != nil {
		return nil
	}
	back, made := m.wayBack(), false
	if err := back.detail(ctx, madeKey, &made); err != nil || !made {
		return err
	}
	all := len(shards) == 0
	if all {
		shards = back.sourceNodes()
	}
	err := atOnce(ctx, len(shards), func(ctx context.Context, i int) error {
		n := shards[i].number
		return back.source(ctx, n, func(conn *pgx.Conn) error {
			return back.dropSlotAndPublication(ctx, n, conn)
		})
	})
	if err != nil || !all {
		return err
	}
	return back.setDetail(ctx, madeKey, false)
}

// startsKey is under what is kept where the streams of a way start that has been switched away from.
const startsKey = "starts"

// startHere has the streams of one way begin at what its sources write from now on. It is for a moment at which its
// destination has everything and nobody may write to its sources.
func (m *Move) startHere(ctx context.Context) error {
	at := make([]pg.LSN, len(m.Source.Shards))
	err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&at[n]); err != nil {
			return err
		}
		// A stream cannot start where the log is not flushed yet; this commit flushes it.
		_, err := conn.Exec(ctx, `select pg_logical_emit_message(true, $1, 'start')`, sink.MessagePrefix)
		return err
	})
	if err != nil {
		return err
	}
	if err := m.setDetail(ctx, startsKey, at); err != nil {
		return err
	}
	return m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		for n := range at {
			s := m.stream(n)
			if err := errors.Join(s.Forget(ctx, conn), s.Begin(ctx, conn, at[n])); err != nil {
				return err
			}
		}
		return nil
	})
}

// followable says whether there is a way back after a switch.
func (m *Move) followable(ctx context.Context) (bool, error) {
	var starts []pg.LSN
	if err := m.wayBack().detail(ctx, startsKey, &starts); err != nil || !m.Reverse || starts == nil {
		return false, err
	}
	return true, nil
}

// forgetReverse drops everything the way back has made, on both sides.
func (m *Move) forgetReverse(ctx context.Context) error {
	back := m.wayBack()
	err := errors.Join(m.dropReverse(ctx), back.setDetail(ctx, startsKey, nil))
	return errors.Join(err, m.sources(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		for n := range m.Destination.Shards {
			if err := back.stream(n).Forget(ctx, conn); err != nil {
				return err
			}
		}
		return nil
	}))
}

// keepAlong confirms the sources' slots along while the sources follow: what the way back writes there must not keep log,
// and where the streams start again after a rollback lies ahead. The position is asked before the state, so that it does.
func (m *Move) keepAlong(ctx context.Context) error {
	for {
		for n, shard := range m.Source.Shards {
			err := m.on(ctx, shard, pg.Admin, func(conn *pgx.Conn) error {
				var end pg.LSN
				if err := conn.QueryRow(ctx, `select pg_current_wal_lsn()::text`).Scan(&end); err != nil || m.currentState() != StateSwitched {
					return err
				}
				_, err := conn.Exec(ctx, `select pg_replication_slot_advance(slot_name, $2::text::pg_lsn) from pg_replication_slots
					where slot_name = $1 and database = current_database() and not active and confirmed_flush_lsn < $2::text::pg_lsn`, m.slot(n), end.String())
				return err
			})
			if err != nil && ctx.Err() == nil && errors.Is(err, checkpoints.ErrSuperseded) {
				return err
			}
			if err != nil && ctx.Err() == nil { // the log it keeps is seen by watchNodes
				m.log.Debug("the slot was not confirmed along", "source", n, "error", err.Error())
			}
		}
		if err := sleep(ctx, alongEvery); err != nil {
			return err
		}
	}
}

const alongEvery = 5 * time.Second

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// prepareLeg makes, in a cutover's check, the slots by which changes are published once the other layout serves. Where the
// layout that is left is not published yet, publishing begins with the other one after the switch.
func (c *cutover) prepareLeg(ctx context.Context) error {
	p := c.publishing()
	if p == nil {
		return nil
	}
	if err := p.takeBack(ctx); err != nil {
		return err
	}
	if legs := p.legs(); len(legs) == 0 || !legs[len(legs)-1].made() {
		return nil
	}
	if err := p.addLeg(ctx, c.forward == nil, true); err != nil {
		return err
	}
	legs := p.legs()
	leg := legs[len(legs)-1]
	return atOnce(ctx, len(leg.Shards), func(ctx context.Context, n int) error {
		key := cdcKey{leg.Number, n}
		slot, err := p.makeSlot(ctx, key, leg.node(n))
		var blocked *replicator.BlockedError
		if errors.As(err, &blocked) {
			return fmt.Errorf("%w: %w", errSlotWaits, err)
		}
		if err != nil {
			return err
		}
		slot.Close()
		return p.keepShard(ctx, key, func(s *cdcShard) { s.Slot, s.Timeline = slot.ConsistentPoint, slot.Timeline })
	})
}

// handOver decides, in a freeze, when all is drained and nobody writes on either side, where the changes of the layout that is
// left end and those of the other one begin. What lies between is the worker's own.
func (c *cutover) handOver(ctx context.Context) error {
	p := c.publishing()
	if p == nil {
		return nil
	}
	legs := p.legs()
	if len(legs) < 2 || legs[len(legs)-1].Destination != (c.forward == nil) {
		return nil
	}
	left, next := legs[len(legs)-2], legs[len(legs)-1]
	here := func(leg cdcLeg) ([]pg.LSN, error) {
		at := make([]pg.LSN, len(leg.Shards))
		err := atOnce(ctx, len(at), func(ctx context.Context, n int) error {
			return p.move.onNode(ctx, leg.node(n), func(conn *pgx.Conn) error {
				if err := conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&at[n]); err != nil {
					return err
				}
				_, err := conn.Exec(ctx, `select pg_logical_emit_message(true, $1, 'publish')`, sink.MessagePrefix) // a stream comes by
				return err
			})
		})
		return at, err
	}
	until, err := here(left)
	if err != nil {
		return err
	}
	from, err := here(next)
	if err != nil {
		return err
	}
	return p.keep(ctx, func(k *cdcKept) {
		for n := range until {
			if s := shardOf(k.Legs, cdcKey{left.Number, n}); s != nil { // else it was begun anew
				s.Until = until[n]
			}
		}
		for n := range from {
			if s := shardOf(k.Legs, cdcKey{next.Number, n}); s != nil {
				s.From = from[n]
			}
		}
	})
}

// takeBack takes away the slots of a cutover that was not made.
func (c *cdc) takeBack(ctx context.Context) error {
	legs := c.legs()
	if len(legs) < 2 || legs[len(legs)-1].Destination == c.move.destinationServes() {
		return nil
	}
	left := legs[len(legs)-2]
	if err := c.drop(ctx, legs[len(legs)-1]); err != nil {
		return err
	}
	return c.keep(ctx, func(k *cdcKept) {
		for n := range left.Shards {
			if s := shardOf(k.Legs, cdcKey{left.Number, n}); s != nil {
				s.Until = 0
			}
		}
	})
}

// takeLegBack is takeBack where anything is published.
func (m *Move) takeLegBack(ctx context.Context) error {
	if p := m.publishing(); p != nil {
		return p.takeBack(ctx)
	}
	return nil
}

// dropLegs drops slots and publications of legs on nodes, whoever reads from them.
func (m *Move) dropLegs(ctx context.Context, legs []cdcLeg, nodes ...node) error {
	var failed []error
	for _, leg := range legs {
		for n, s := range leg.Shards {
			if !slices.Contains(nodes, leg.node(n)) {
				continue
			}
			failed = append(failed, m.on(ctx, m.shardOf(leg.node(n)), pg.Admin, func(conn *pgx.Conn) error { return m.dropLegShard(ctx, conn, cdcKey{leg.Number, n}, s) }))
		}
	}
	return errors.Join(failed...)
}

func (m *Move) dropLegShard(ctx context.Context, conn *pgx.Conn, key cdcKey, s cdcShard) error {
	name := m.cdcSlot(key.leg, key.shard)
	if s.Made {
		const end = `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and database = current_database() and active`
		if _, err := conn.Exec(ctx, end, name); err != nil {
			return err
		}
		if err := m.unlessForeign(key.shard, replicator.DropSlot(ctx, conn, name)); err != nil {
			return err
		}
	}
	return m.dropPublication(ctx, key.shard, conn, name)
}

// onNode runs fn on a session of one shard of either side.
func (m *Move) onNode(ctx context.Context, n node, fn func(*pgx.Conn) error) error {
	if n.source {
		return m.source(ctx, n.number, fn)
	}
	return m.dest(ctx, n.number, fn)
}

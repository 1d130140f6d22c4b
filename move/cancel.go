package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// ErrSwitched means that the new layout serves already, so that there is nothing to cancel.
var ErrSwitched = errors.New("the new layout serves already; hint: run `pgreshard migrate` to the end, a move back is a move of its own")

// HeldError means that another worker holds the move: it must stop, or be taken over, before this verb may act.
type HeldError struct{ Lease checkpoints.Lease }

func (e *HeldError) Error() string {
	return fmt.Sprintf("a worker runs this move: pid %d on %s, last heard %.0f s ago; hint: stop it first (SIGTERM), or, if it cannot be reached, "+
		"--take-over, after which it can write nothing", e.Lease.PID, e.Lease.Host, e.Lease.Age.Seconds())
}

// CancelOptions is what the command line adds.
type CancelOptions struct {
	DropData bool // drop the destination tables the move made, and empty those it found
	TakeOver bool // although another worker holds the lease
}

// Cancel ends a move before the switch and takes away everything it made on every node, save the data unless DropData.
// A node that cannot be reached is named; running it again finishes there. The home comes last, so that the move is
// known until nothing else is left.
func (m *Move) Cancel(ctx context.Context, o CancelOptions) error {
	known, err := m.mine(ctx, o.TakeOver)
	if errors.Is(err, ErrNoMove) {
		return m.nothingToCancel(ctx)
	}
	if err != nil {
		return err
	}
	return m.whileHeld(ctx, func(ctx context.Context) error { return m.cancel(ctx, known, o) })
}

func (m *Move) cancel(ctx context.Context, known *checkpoints.Move, o CancelOptions) error {
	serving, err := m.readServing(ctx)
	if err != nil {
		return err
	}
	if serving == m.Destination.Layout || known.State == StateSwitched || known.State == StateCompleted {
		return ErrSwitched
	}
	if err := m.releaseSources(ctx); err != nil {
		return err
	}
	for n := len(m.Destination.Shards) - 1; n >= 0; n-- {
		err := m.dest(ctx, n, func(conn *pgx.Conn) error { return m.clearShard(ctx, n, conn, o.DropData) })
		if err != nil {
			return fmt.Errorf("destination shard %d: %w; hint: run the same command again when it can be reached", n, err)
		}
	}
	m.setState(StateCancelled)
	m.log.Info("state", "state", StateCancelled)
	return nil
}

// mine makes this process the move's worker for a verb that acts alone.
func (m *Move) mine(ctx context.Context, takeOver bool) (*checkpoints.Move, error) {
	known, err := m.find(ctx)
	if err != nil {
		return nil, err
	}
	if known == nil {
		return nil, ErrNoMove
	}
	if err := m.expect(known.Spec); err != nil {
		return nil, err
	}
	lease, err := m.lease(ctx)
	if err != nil {
		return nil, err
	}
	if lease.Live() && !gone(*lease) {
		if !takeOver {
			return nil, &HeldError{*lease}
		}
		if err := m.home(ctx, func(conn *pgx.Conn) error { return checkpoints.DropLease(ctx, conn, m.Name, lease.Epoch) }); err != nil {
			return nil, err
		}
	}
	if err := m.nodes(ctx, checkpoints.Install); err != nil { // an earlier cancel may have cleared some of them
		return nil, err
	}
	return known, m.takeOver(ctx)
}

// releaseSources lets every source serve, and takes fence, slot, publication and bookkeeping off it.
func (m *Move) releaseSources(ctx context.Context) error {
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		err := m.releaseSource(ctx, n, conn)
		if err != nil {
			return fmt.Errorf("source %d: %w; hint: run the same command again when it can be reached", n, err)
		}
		return nil
	})
}

// releaseSource goes in the order of what presses: writes pass, the log is let go, and then what may wait for others'
// transactions.
func (m *Move) releaseSource(ctx context.Context, n int, conn *pgx.Conn) error {
	if err := m.letWrite(ctx, conn); err != nil {
		return err
	}
	err := errors.Join(replicator.DropSlot(ctx, conn, m.slot(n)), replicator.DropPublication(ctx, conn, m.slot(n)))
	if err == nil {
		err = m.removeFence(ctx, fmt.Sprintf("source shard %d", n), conn)
	}
	if err == nil {
		err = m.restoreIdentities(ctx, n, conn)
	}
	if err != nil {
		return err
	}
	return m.dropBookkeeping(ctx, conn)
}

// letWrite ends a freeze or a seal. Where writes pass already nothing is lifted: the lock that lifting takes refuses
// writers while it waits for one in flight, and only a source that is not frozen has any.
func (m *Move) letWrite(ctx context.Context, conn *pgx.Conn) error {
	for {
		state, err := readFence(ctx, conn)
		if err != nil || !state.Installed || !state.Refuses() {
			return err
		}
		err = m.fence(conn).lift(ctx, liftAny)
		if !errors.Is(err, errWritersInFlight) { // else the freeze ran out meanwhile, or is about to
			return err
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// removeFence takes the fence off a node, one table at a time. A table whose lock is not had within lock_timeout is tried
// again until it is, or ctx ends; whose transaction is in the way is logged meanwhile.
func (m *Move) removeFence(ctx context.Context, where string, conn *pgx.Conn) error {
	state, err := readFence(ctx, conn)
	if err != nil || !state.Installed {
		return err
	}
	f, told := m.fence(conn), time.Time{}
	f.Stuck = func(t pg.Name) {
		if time.Since(told) < tellAgain {
			return
		}
		told = time.Now()
		if by := holders(ctx, conn, t); by != "" {
			m.log.Warn("waiting to take the fence off a table; hint: end the transaction that uses it", "node", where, "table", t.String(), "in_the_way", by)
		}
	}
	return f.remove(ctx)
}

const tellAgain = 10 * time.Second

// dropBookkeeping drops schema pgreshard, unless an earlier move left a layout record there or another move uses it.
func (m *Move) dropBookkeeping(ctx context.Context, conn *pgx.Conn) error {
	var others bool
	err := conn.QueryRow(ctx, `select exists (select from pgreshard.move where name <> $1)
		or exists (select from pgreshard.layout where database = $2 and version < $3)`,
		m.Name, m.Source.Database, m.Source.Layout).Scan(&others)
	if pg.Code(err) == "42P01" {
		return nil // not there
	}
	if err != nil {
		return err
	}
	if !others {
		_, err = conn.Exec(ctx, `drop schema pgreshard cascade`)
		return err
	}
	for _, sql := range []string{
		`delete from pgreshard.move where name = $1`, `delete from pgreshard.lease where move = $1`, `delete from pgreshard.journal where move = $1`,
		`delete from pgreshard.checkpoint where move = $1`, `delete from pgreshard.chunk where move = $1`,
		`delete from pgreshard.resumed where move = $1`, `delete from pgreshard.unmapped where move = $1`, `delete from pgreshard.outbox where move = $1`,
	} {
		if _, err := conn.Exec(ctx, sql, m.Name); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, `delete from pgreshard.layout where database = $1 and version = $2`, m.Destination.Database, m.Destination.Layout)
	return err
}

// clearShard takes fence, bookkeeping and, if wanted, the data off one destination shard.
func (m *Move) clearShard(ctx context.Context, n int, conn *pgx.Conn, dropData bool) error {
	if err := m.removeFence(ctx, fmt.Sprintf("destination shard %d", n), conn); err != nil {
		return err
	}
	if dropData {
		if err := m.dropTables(ctx, conn); err != nil {
			return err
		}
	}
	return m.dropBookkeeping(ctx, conn)
}

func (m *Move) dropTables(ctx context.Context, conn *pgx.Conn) error {
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		return err
	}
	verb := "truncate %s cascade"
	if m.CreateSchema {
		verb = "drop table %s cascade"
	}
	for _, t := range catalog.Roots() {
		if !m.matches(t.Name) {
			continue
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf(verb, t.Name.SQL())); err != nil && pg.Code(err) != "42P01" {
			return fmt.Errorf("drop the data of %s: %w", t.Name, err)
		}
	}
	return nil
}

// Complete ends a move that has switched: with release it also takes the fence off the retired sources, after which a
// forgotten writer there is no longer refused.
func (m *Move) Complete(ctx context.Context, release bool) error {
	known, err := m.mine(ctx, false)
	if err != nil {
		return err
	}
	return m.whileHeld(ctx, func(ctx context.Context) error { return m.complete(ctx, known, release) })
}

func (m *Move) complete(ctx context.Context, known *checkpoints.Move, release bool) error {
	if known.State != StateCompleted {
		return fmt.Errorf("the move is %s, not %s; hint: run `pgreshard migrate` to the end first", known.State, StateCompleted)
	}
	m.setState(known.State)
	if !release {
		return nil
	}
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		return m.removeFence(ctx, fmt.Sprintf("source shard %d", n), conn)
	})
}

// SourceFenced says whether a source still has the fence.
func (m *Move) SourceFenced(ctx context.Context) (bool, error) {
	fenced := make([]bool, len(m.Source.Shards))
	err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		state, err := readFence(ctx, conn)
		fenced[n] = state.Installed
		return err
	})
	return slices.Contains(fenced, true), err
}

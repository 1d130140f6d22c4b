package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// ErrSwitched means that the new layout serves already, so that there is nothing to cancel.
var ErrSwitched = errors.New("the new layout serves already; hint: `pgreshard migrate` goes on from there, `pgreshard rollback` switches back and `pgreshard complete` ends the move")

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

// LeftError means that nodes did not answer, so that what a move made there is still there.
type LeftError struct{ nodes []string }

func (e *LeftError) Error() string {
	return "not everything is gone yet: " + strings.Join(e.nodes, "; ") + "; hint: run the same command again when it can be reached"
}

// Cancel ends a move before the switch and takes away everything it made on every node, save the data unless DropData.
// A node that cannot be reached is named; running it again finishes there. The home comes last, so that the move is
// known until nothing else is left.
func (m *Move) Cancel(ctx context.Context, o CancelOptions) error {
	w, err := m.mine(ctx, o.TakeOver)
	if errors.Is(err, ErrNoMove) {
		return m.nothingToCancel(ctx)
	}
	if err != nil {
		return err
	}
	return m.whileHeld(ctx, func(ctx context.Context) error { return m.cancel(ctx, w, o) })
}

func (m *Move) cancel(ctx context.Context, w *work, o CancelOptions) error {
	if m.publishesOnly() {
		return m.cancelPublishing(ctx, w)
	}
	serving, err := m.readServing(ctx)
	if err != nil {
		return err
	}
	if serving == m.Destination.Layout || w.known.State == StateSwitched || w.known.State == StateCompleted {
		return ErrSwitched
	}
	if err := m.enter(ctx, StateCancelled); err != nil { // no migrate goes on from here
		return err
	}
	home := func(n node) bool { return n == node{} }
	dropData := o.DropData && w.known.State != StateCreated // then the tables of these names are not the move's
	if err := m.endPaused(ctx); err != nil {
		return err
	}
	kept, err := m.keptCDC(ctx)
	if err != nil {
		return err
	}
	clearOne := nodeNamed(func(ctx context.Context, n node, conn *pgx.Conn) error {
		if err := m.dropLegs(ctx, kept.Legs, n); err != nil {
			return err
		}
		return m.clearShard(ctx, n, conn, dropData)
	})
	release := nodeNamed(func(ctx context.Context, n node, conn *pgx.Conn) error {
		return m.releaseSource(ctx, n, conn, kept.Legs)
	})
	err = errors.Join(
		m.dropReverse(ctx, w.present(false)...),
		m.dropAccount(ctx, w.nodes...),
		m.each(ctx, w.present(true), release),
		m.each(ctx, slices.DeleteFunc(w.present(false), home), clearOne),
		w.left("what the move made there is left"))
	if err != nil {
		return err
	}
	return m.each(ctx, []node{{}}, clearOne)
}

// nodeNamed says of an error on which node it happened.
func nodeNamed(fn onNode) onNode {
	return func(ctx context.Context, n node, conn *pgx.Conn) error {
		if err := fn(ctx, n, conn); err != nil {
			return fmt.Errorf("%s: %w; hint: run the same command again when it can be reached", n, err)
		}
		return nil
	}
}

// work is what a verb that acts alone finds.
type work struct {
	known  *checkpoints.Move
	nodes  []node   // that answer
	silent []string // the others, and why
}

func (w *work) present(source bool) (list []node) {
	for _, n := range w.nodes {
		if n.source == source {
			list = append(list, n)
		}
	}
	return list
}

// left is nil where every node answers.
func (w *work) left(what string) error {
	var list []string
	for _, n := range w.silent {
		list = append(list, n+": "+what)
	}
	if list == nil {
		return nil
	}
	return &LeftError{list}
}

// mine makes this process the move's worker for a verb that acts alone, on the nodes that answer. The home must.
func (m *Move) mine(ctx context.Context, takeOver bool) (*work, error) {
	m.lookAtNodes(ctx)
	if err := m.homeSilent(); err != nil {
		return nil, err
	}
	w := &work{}
	for _, n := range m.allNodes() {
		if why, silent := m.silent(n); silent {
			w.silent = append(w.silent, m.nodeWords(n)+" does not answer: "+why)
		} else {
			w.nodes = append(w.nodes, n)
		}
	}
	var err error
	if w.known, err = m.find(ctx); err != nil {
		return nil, err
	}
	if w.known == nil {
		return nil, ErrNoMove
	}
	if err := m.expect(w.known.Spec); err != nil {
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
	err = m.each(ctx, w.nodes, func(ctx context.Context, _ node, conn *pgx.Conn) error {
		return checkpoints.Install(ctx, conn) // an earlier cancel may have cleared some of them
	})
	if err != nil {
		return nil, err
	}
	return w, m.takeOver(ctx, w.nodes)
}

// releaseSource goes in the order of what presses: writes pass, the log is let go, and then what may wait for others'
// transactions.
func (m *Move) releaseSource(ctx context.Context, n node, conn *pgx.Conn, legs []cdcLeg) error {
	if err := m.letWrite(ctx, conn); err != nil {
		return err
	}
	err := errors.Join(m.dropLegs(ctx, legs, n), m.dropSlotAndPublication(ctx, n.number, conn))
	if err == nil {
		err = m.removeFence(ctx, n, conn)
	}
	if err == nil {
		err = m.restoreIdentities(ctx, n.number, conn)
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
func (m *Move) removeFence(ctx context.Context, n node, conn *pgx.Conn) error {
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
			m.log.Warn("waiting to take the fence off a table; hint: end the transaction that uses it", "node", n.String(), "table", t.String(), "in_the_way", by)
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
		`delete from pgreshard.move where name = any($1)`, `delete from pgreshard.lease where move = any($1)`, `delete from pgreshard.journal where move = any($1)`,
		`delete from pgreshard.checkpoint where move = any($1)`, `delete from pgreshard.chunk where move = any($1)`,
		`delete from pgreshard.resumed where move = any($1)`, `delete from pgreshard.outbox where move = any($1)`, `delete from pgreshard.unmapped where move = any($1)`,
	} {
		if _, err := conn.Exec(ctx, sql, []string{m.Name, m.Name + reverseStreams}); err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, `delete from pgreshard.layout where database = $1 and version = $2`, m.Destination.Database, m.Destination.Layout)
	return err
}

// clearShard takes fence, bookkeeping and, if wanted, the data off one destination shard.
func (m *Move) clearShard(ctx context.Context, n node, conn *pgx.Conn, dropData bool) error {
	if err := m.removeFence(ctx, n, conn); err != nil {
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
	w, err := m.mine(ctx, false)
	if err != nil {
		return err
	}
	return m.whileHeld(ctx, func(ctx context.Context) error { return m.complete(ctx, w, release) })
}

func (m *Move) complete(ctx context.Context, w *work, release bool) error {
	m.setState(w.known.State)
	switch w.known.State {
	case StateCompleted:
		if !m.Publishes {
			if _, err := m.newCDC(ctx, nil); err != nil {
				return err
			}
		}
	case StateSwitched:
		if err := w.left("what the move made there would be left"); err != nil {
			return err
		}
		inv, err := m.takeInventory(ctx)
		if err == nil {
			err = m.open(ctx, inv)
		}
		if err == nil {
			err = m.end(ctx, inv)
		}
		if err != nil {
			return err
		}
	case StateRolledBack:
		return fmt.Errorf("the move is %s; hint: `pgreshard cancel` takes away what is left of it, `pgreshard migrate` follows the source again", w.known.State)
	default:
		return fmt.Errorf("the move is %s, not %s; hint: run `pgreshard migrate` to the end first", w.known.State, StateSwitched)
	}
	if !release {
		return nil
	}
	return errors.Join(m.each(ctx, w.present(true), nodeNamed(m.removeFence)), w.left("its fence is left"))
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

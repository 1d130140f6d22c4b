package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// undo gives the cutover up: the source serves writes again. It runs to its end even where ctx has ended, but not
// against a worker that has taken over, who decides. Where a source could not be told, no UndoneError claims that it
// serves: decideCutover goes on from there.
func (c *cutover) undo(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.MaxFreeze+10*time.Second)
	defer cancel()
	c.log.Warn("cutover undone", "reason", cause.Error())
	if c.verdict != nil {
		c.verdict.stop()
	}
	err := c.liftAll(ctx)
	_ = c.verdict.await() // it was for a switch that is not made
	c.verdict = nil
	if err != nil {
		return fmt.Errorf("%v, and not every server could be told to take writes again: %w; hint: what was only frozen takes writes again by itself "+
			"within max_freeze, what was sealed when a worker reaches it; `pgreshard status` names it", cause, err)
	}
	c.setUndone(time.Since(c.began))
	c.dropWitness()
	step, why := "", cause
	var s *stepError
	if errors.As(cause, &s) {
		step, why = s.step, s.err
	}
	if c.finishing {
		err = c.dropForeignKeys(ctx)
	}
	if err == nil { // else the state stays, for decideCutover to drop them
		err = errors.Join(c.noteUndone(ctx, undoNote{step, undoneBecause(why)}), c.enter(ctx, c.steady()))
	}
	if err != nil {
		why = errors.Join(why, err)
	}
	return &UndoneError{Step: step, Err: why, Back: c.forward != nil}
}

func (c *cutover) noteUndone(ctx context.Context, note undoNote) error {
	return c.home(ctx, func(conn *pgx.Conn) error { return c.book.Journal(ctx, conn, "undo", "after", note, c.owed...) })
}

func (m *Move) setUndone(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds := d.Seconds()
	m.cutover = CutoverStatus{FreezeSeconds: &seconds}
}

// liftAll lets every source serve again, whatever a freeze or seal had got to there.
func (m *Move) liftAll(ctx context.Context) error {
	return m.sources(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error { return m.letWrite(ctx, conn) })
}

// dropForeignKeys takes back what finish made: with it a TRUNCATE in the stream would fail. The stream goes on
// meanwhile, and others may use the tables, so a lock that is not had is given up and asked for again until ctx ends.
func (c *cutover) dropForeignKeys(ctx context.Context) error {
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		for _, k := range c.keys {
			drop := fmt.Sprintf("alter table %s drop constraint if exists %s", k.Table.SQL(), pgx.Identifier{k.Name}.Sanitize())
			if err := c.fence(conn).patiently(ctx, drop); err != nil {
				return fmt.Errorf("drop foreign key %s of %s: %w", k.Name, k.Table, err)
			}
		}
		return nil
	})
}

// forthSwitched goes on from a switch that was made and not noted. That the step after it begins tells the hooks so.
func (m *Move) forthSwitched(ctx context.Context, state string) error {
	if err := m.note(ctx, stepOpen, "before"); err != nil {
		return err
	}
	return m.enter(ctx, state)
}

// decideCutover goes on after a death inside a cutover: if the switch happened, forward; if not, the source serves.
func (m *Move) decideCutover(ctx context.Context) error {
	serving, err := m.readServing(ctx)
	if err != nil {
		return err
	}
	if serving == m.Destination.Layout {
		return m.forthSwitched(ctx, StateSwitched)
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if err := m.liftAll(ctx); err != nil {
		return err
	}
	if err := m.endPaused(ctx); err != nil {
		return err
	}
	c := &cutover{Move: m, inv: inv}
	err = m.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		c.keys, err = ForeignKeys(ctx, conn, inv.tree(0), m.SkipConstraint)
		return err
	})
	if err := errors.Join(err, c.dropForeignKeys(ctx)); err != nil {
		return err
	}
	return m.enter(ctx, StateStreaming)
}

package move

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Rollback asks the worker of this process, which Migrate runs in another goroutine, to switch back to the old layout now,
// and waits for what came of it: a cutover with the layouts exchanged.
func (m *Move) Rollback(ctx context.Context) (CutoverReport, error) {
	m.mu.Lock()
	back, because := m.reverse, m.noWayBack()
	m.mu.Unlock()
	if len(because) > 0 {
		return CutoverReport{}, &NotReadyError{Because: because, Back: true}
	}
	return back.Cutover(ctx, CutoverOptions{})
}

// noWayBack says why a rollback cannot be tried now, whatever the streams are like; m.mu is held.
func (m *Move) noWayBack() (because []string) {
	switch {
	case m.state != StateSwitched:
		because = append(because, "the move is "+m.state)
	case m.lost != "":
		because = append(because, m.lost+"; what was written since then would be lost")
	case m.reverse == nil || !m.settled:
		because = append(because, "what follows the switch is not done yet")
	}
	return because
}

// decideRollback goes on after a death inside a rollback: if the switch happened, on to the old layout; if not, the new one
// serves.
func (m *Move) decideRollback(ctx context.Context) error {
	back := m.wayBack()
	serving, err := m.readServing(ctx)
	if err != nil {
		return err
	}
	if serving == m.Source.Layout {
		return back.forthSwitched(ctx, StateRolledBack)
	}
	if err := errors.Join(back.liftAll(ctx), back.endPaused(ctx)); err != nil {
		return err
	}
	return back.enter(ctx, StateSwitched)
}

// returnedKey is under what is kept that a rollback is done to its end.
const returnedKey = "returned"

// finishRollback does what follows a switch back, after which this run is done. The next one follows the source again.
func (m *Move) finishRollback(ctx context.Context) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	var returned bool
	if err := m.detail(ctx, returnedKey, &returned); err != nil {
		return err
	}
	if returned && !m.returning {
		return m.followAgain(ctx, inv)
	}
	m.returning = true
	back := m.wayBack()
	if err := back.open(ctx, inv); err != nil {
		return err
	}
	if err := back.afterSwitch(ctx); err != nil {
		return err
	}
	if err := errors.Join(back.copyRecord(ctx), back.endOldSessions(ctx), m.forgetReverse(ctx)); err != nil {
		return err
	}
	if err := m.setDetail(ctx, returnedKey, true); err != nil {
		return err
	}
	return errEnd
}

// followAgain makes the shards ready to be filled again after a rollback, from where it has left the streams.
func (m *Move) followAgain(ctx context.Context, inv *inventory) error {
	c := &cutover{Move: m, inv: inv}
	err := m.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		c.keys, err = ForeignKeys(ctx, conn, inv.tree(0), m.SkipConstraint)
		return err
	})
	if err := errors.Join(err, c.dropForeignKeys(ctx)); err != nil {
		return err
	}
	err = m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error { return DisableTriggers(ctx, conn, inv.tree(0)) })
	if err := errors.Join(err, m.closeDestination(ctx, inv)); err != nil {
		return err
	}
	if err := errors.Join(m.setDetail(ctx, settledKey, false), m.setDetail(ctx, countedKey, nil), m.setDetail(ctx, returnedKey, false)); err != nil {
		return err
	}
	return m.enter(ctx, StateStreaming)
}

// completion is a completion somebody waits for.
type completion struct {
	release bool       // take the fence off the sources too
	answer  chan error // has room for one
}

// CompleteNow asks the worker of this process, which keeps the old layout following, to end the move; release as Complete.
func (m *Move) CompleteNow(ctx context.Context, release bool) error {
	if state := m.currentState(); state != StateSwitched {
		return &NotReadyError{Because: []string{"the move is " + state}, Complete: true}
	}
	asked := completion{release, make(chan error, 1)}
	select {
	case m.completes <- asked:
	case <-time.After(takeTime):
		return &NotReadyError{Because: []string{"the worker is busy with something else"}, Complete: true}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-asked.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

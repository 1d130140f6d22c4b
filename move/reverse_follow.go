package move

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
)

// Ends of what keeps the sources following, and of a Migrate that is done although its move could go on.
var (
	errCompleted  = errors.New("the move is to be completed")
	errRolledBack = errors.New("the move is rolled back")
	errUndecided  = errors.New("a rollback was interrupted")
	errEnd        = errors.New("this run is done")
)

// finishSwitch opens the new layout and does what follows. Where the sources are to follow, it keeps them following until
// the move is completed or rolled back; where they are not, wait says to wait for the completion too.
func (m *Move) finishSwitch(ctx context.Context, wait bool) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if err := m.open(ctx, inv); err != nil {
		return err
	}
	// What a worker that was killed behind the switch had not dropped yet; where a node is away, it goes with the move's end.
	if err := m.dropAccount(ctx, m.allNodes()...); err != nil && ctx.Err() == nil {
		m.log.Debug("what the account of changes was read from is left for later", "error", err.Error())
	}
	follow, err := m.followable(ctx)
	if err != nil {
		return err
	}
	var ending bool
	if err := m.detail(ctx, endingKey, &ending); err != nil {
		return err
	}
	if ending || !follow && !wait {
		return m.end(ctx, inv)
	}
	return m.keepFollowing(ctx, inv, follow)
}

// endingKey is under what is kept that the move is being completed: the way back is not taken up again.
const endingKey = "ending"

// end takes away what the move made and completes it.
func (m *Move) end(ctx context.Context, inv *inventory) error {
	if err := m.settleSwitch(ctx, inv); err != nil {
		return err
	}
	if err := m.readWitness(ctx, inv); err != nil {
		return err
	}
	if err := m.setDetail(ctx, endingKey, true); err != nil {
		return err
	}
	if err := m.cleanUp(ctx); err != nil {
		return err
	}
	if err := m.allOnStandbys(ctx); err != nil {
		return err
	}
	return m.enter(ctx, StateCompleted)
}

// noReverse is why there is no way back where none was wanted.
const noReverse = "the old layout does not follow ([cutover] reverse)"

// keepFollowing has the sources follow, if they are to, while what follows the switch is done beside it.
func (m *Move) keepFollowing(ctx context.Context, inv *inventory, follow bool) error {
	back := m.wayBack()
	back.placeBack(inv)
	var asked completion
	g, following := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := m.settleSwitch(following, inv); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.settled = true
		return nil
	})
	g.Go(func() error {
		if err := m.readWitness(following, inv); err != nil && following.Err() == nil {
			m.log.Warn("what every table added up to at the switch is not kept yet", "error", oneLine(err))
		}
		return nil
	})
	g.Go(func() error { return m.keepAlong(following) })
	g.Go(func() error {
		if follow {
			return m.followBack(following, back)
		}
		m.setLost(noReverse)
		<-following.Done()
		return following.Err()
	})
	g.Go(func() error {
		select {
		case <-following.Done():
			return following.Err()
		case asked = <-m.completes:
			return errCompleted
		}
	})
	err := g.Wait()
	m.mu.Lock()
	m.settled = false
	m.mu.Unlock()
	if asked.answer != nil {
		err = m.completeFor(ctx, inv, asked, err)
		asked.answer <- err
		return err
	}
	switch {
	case errors.Is(err, errRolledBack):
		return back.enter(ctx, StateRolledBack)
	case errors.Is(err, errUndecided): // the state says what comes next
		return nil
	}
	return err
}

// completeFor ends the move for who asked, unless a rollback was faster; ended is how following has ended.
func (m *Move) completeFor(ctx context.Context, inv *inventory, asked completion, ended error) error {
	if m.servingVersion() != m.Destination.Layout || m.currentState() != StateSwitched {
		return errors.Join(&NotReadyError{Because: []string{"a rollback was under way"}, Complete: true}, ended)
	}
	if err := m.end(ctx, inv); err != nil || !asked.release {
		return err
	}
	return m.each(ctx, m.sourceNodes(), nodeNamed(m.removeFence))
}

// lostKey is under what is kept why there is no way back any more.
const lostKey = "lost"

// followBack has the sources follow the shards until a rollback has switched back, which is errRolledBack, or ctx ends. A
// slot that keeps too much, or that a fail-over of its shard has lost, ends the way back, not the move: the new layout serves on.
func (m *Move) followBack(ctx context.Context, back *Move) error {
	var lost string
	if err := back.detail(ctx, lostKey, &lost); err != nil {
		return err
	}
	if lost == "" {
		following, stop := context.WithCancelCause(ctx)
		watching := make(chan struct{})
		go func() {
			defer close(watching)
			back.watchNodes(following, stop)
		}()
		err := back.retry(following, func(ctx context.Context) error {
			if m.currentState() != StateSwitched {
				return errUndecided
			}
			return back.streamAndCutOver(ctx, MigrateOptions{Ready: never})
		})
		cause := context.Cause(following)
		stop(nil)
		<-watching
		var over *BudgetError
		var unknown *UnknownError
		switch {
		case errors.As(err, &unknown), errors.Is(err, errUndecided):
			return err
		case err == nil:
			return errRolledBack
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(cause, &over):
			lost = fmt.Sprintf("replication slot %s of %s kept %s of log, more than the %s it may ([stream] wal_budget)",
				over.Slot, back.sourceWords(over.Source), sizeText(over.Kept), sizeText(over.Budget))
		case isEnded(err):
			lost = oneLine(err)
		default:
			return reverseError(err)
		}
		if lost, err = back.loseWayBack(ctx, lost); err != nil {
			return err
		}
	}
	m.setLost(lost)
	<-ctx.Done()
	return ctx.Err()
}

// loseWayBack drops the slots of the way back, because of what is said. That is recorded first.
func (m *Move) loseWayBack(ctx context.Context, because string) (why string, err error) {
	why = "the old layout does not follow any more: " + because
	if err := m.setDetail(ctx, lostKey, why); err != nil {
		return "", err
	}
	m.log.Warn("there is no way back any more; the new layout serves on", "reason", why)
	return why, m.dropSlots(ctx, lostKey, why)
}

// never is asked whether the rollback is to be made without anybody's asking for it.
func never(ctx context.Context) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// ReverseError means that the old layout cannot follow the new one, which serves all the same.
type ReverseError struct{ Err error }

func (e *ReverseError) Error() string {
	return "the old layout cannot follow the new one: " + e.Err.Error()
}
func (e *ReverseError) Unwrap() error { return e.Err }

// reverseError has errors that tell what to do about a move say what to do about the way back.
func reverseError(err error) error {
	var ddl *DDLError
	var publication *PublicationError
	if errors.As(err, &ddl) {
		ddl.Back = true
	}
	if errors.As(err, &publication) {
		publication.Back = true
	}
	return &ReverseError{err}
}

// Hint is said in place of the error's own, which is about a move that has not switched.
func (e *ReverseError) Hint() string {
	return "the new layout serves all along; mend what is named and run the same command again, or give the way back up with `pgreshard complete`"
}

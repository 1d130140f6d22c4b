package move

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
)

// CutoverOptions is what a person asks of a worker that follows its sources.
type CutoverOptions struct {
	DryRun   bool `json:"dry_run"`  // tell the steps, change nothing
	Rehearse bool `json:"rehearse"` // all but the switch, then undo
}

// CutoverReport is what came of it. FreezeSeconds is for how long writes were refused, nil for a dry run.
type CutoverReport struct {
	Steps         []StepReport `json:"steps"`
	FreezeSeconds *float64     `json:"freeze_seconds"`
	Serving       int          `json:"serving"` // the layout that serves now
}

// NotReadyError means that a cutover was asked for at a moment at which it cannot be made. Nothing was changed.
type NotReadyError struct {
	Because  []string
	Back     bool // it was a rollback
	Complete bool // it was the end of the move
	Compare  bool // it was a comparison, or a repair
}

func (e *NotReadyError) Error() string {
	switch because := strings.Join(e.Because, "; "); {
	case e.Back:
		return "it cannot be rolled back now: " + because + "; hint: `pgreshard status` says what a rollback would lose"
	case e.Compare:
		return "both sides cannot be compared now: " + because + "; hint: `pgreshard status` says what the worker does"
	case e.Complete:
		return "it cannot be completed now: " + because + "; hint: `pgreshard status` says where the move stands"
	}
	return "it is not safe to cut over: " + strings.Join(e.Because, "; ") + "; hint: `pgreshard status --watch` says when it is"
}

func (m *Move) notReady(because ...string) error {
	return &NotReadyError{Because: because, Back: m.forward != nil}
}

// request is a cutover somebody waits for.
type request struct {
	CutoverOptions
	answer chan outcome // has room for one
}

type outcome struct {
	report CutoverReport
	err    error
}

// takeTime is how long the worker may take to take up a request; it is busy with one thing at a time.
const (
	takeTime  = 10 * time.Second
	takeAgain = 50 * time.Millisecond // until it is looked again whether it is still safe
)

// Cutover asks the worker of this process, which Migrate runs in another goroutine, to cut over now, and waits for what
// came of it. What keeps a cutover from being made is a NotReadyError; a cutover under way goes on to its end although
// ctx ends.
func (m *Move) Cutover(ctx context.Context, o CutoverOptions) (CutoverReport, error) {
	r := request{o, make(chan outcome, 1)}
	if err := m.hand(ctx, r); err != nil {
		return CutoverReport{}, err
	}
	select {
	case done := <-r.answer:
		return done.report, done.err
	case <-ctx.Done():
		return CutoverReport{}, ctx.Err()
	}
}

// hand has the worker take up a request. Of two, the second is told of the first as soon as that has begun to freeze.
func (m *Move) hand(ctx context.Context, r request) error {
	for patience := time.After(takeTime); ; {
		m.mu.Lock()
		safe := m.safe()
		m.mu.Unlock()
		if !safe.OK {
			return m.notReady(safe.Because...)
		}
		select {
		case m.requests <- r:
			return nil
		case <-time.After(takeAgain):
		case <-patience:
			return m.notReady("the worker is busy with something else")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// await makes the cutover when Ready says so, or when it is asked for, whichever comes first. What is asked for and
// undone leaves the move following its sources, as before.
func (c *cutover) await(ctx context.Context, o MigrateOptions) error {
	if o.Ready == nil {
		return c.attempts(ctx)
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	type word struct {
		yes bool
		err error
	}
	ready := make(chan word, 1)
	go func() {
		yes, err := o.Ready(asking)
		ready <- word{yes, err}
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case w := <-ready:
			if w.err != nil {
				return w.err
			}
			if w.yes {
				return c.attempts(ctx)
			}
		case r := <-c.requests:
			if switched, err := c.serve(ctx, r); switched || err != nil {
				return err
			}
		}
	}
}

// serve does what was asked. An error it returns ends the following; one that leaves the sources serving and the move as
// it was is for who asked alone.
func (c *cutover) serve(ctx context.Context, r request) (switched bool, err error) {
	var report CutoverReport
	if r.DryRun {
		report.Steps, err = c.dryRun(ctx)
		report.Serving = c.servingVersion()
		r.answer <- outcome{report, err}
		return false, nil
	}
	c.rehearsal, c.asked = r.Rehearse, true
	err = c.attempts(ctx)
	c.rehearsal, c.asked = false, false
	report.Steps, report.Serving = c.done, c.servingVersion()
	report.FreezeSeconds = c.Snapshot().Cutover.FreezeSeconds
	var undone *UndoneError
	var notReady *NotReadyError
	var differs *DifferenceError
	stays := errors.As(err, &undone) || errors.As(err, &notReady) || GaveUp(err) || refusedNothing(err) && (c.forward != nil || errors.As(err, &differs))
	if stays && undone != nil && undone.Err == errRehearsed { // and nothing else went wrong
		r.answer <- outcome{report, nil}
		return false, nil
	}
	r.answer <- outcome{report, err}
	if stays {
		return false, nil
	}
	return err == nil, err
}

// refusedNothing says that a cutover ended before it refused anything.
func refusedNothing(err error) bool {
	var s *stepError
	return errors.As(err, &s) && (s.step == "arm" || s.step == "check")
}

// attempts tries the cutover up to the configured number of times.
func (c *cutover) attempts(ctx context.Context) error {
	if err := c.catchUpSoon(ctx); err != nil {
		return err
	}
	c.verifying.Lock() // nobody else compares meanwhile
	defer c.verifying.Unlock()
	defer func() {
		if c.forward != nil || c.servingVersion() == c.Destination.Layout { // after a switch, what waits for it comes first
			c.endAccount(ctx)
		}
	}()
	err := c.tries(ctx)
	var unknown *UnknownError
	if !errors.As(err, &unknown) && c.servingVersion() != c.Destination.Layout {
		err = withHook(err, c.withoutReverse(ctx))
	}
	switch {
	case errors.As(err, &unknown):
		return err
	case c.servingVersion() == c.Destination.Layout:
		return cmp.Or(err, c.afterSwitch(ctx))
	}
	if c.paused { // even where ctx has ended: nobody else lets go what it holds
		c.paused = false
		err = withHook(err, c.afterUndo(ctx))
	}
	return err
}

// withoutReverse takes away what was made for the way back, since nothing has switched: its slots would keep the log.
func (c *cutover) withoutReverse(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slotPatience)
	defer cancel()
	return errors.Join(c.dropReverse(ctx), c.takeLegBack(ctx))
}

// withHook adds to why a cutover was undone that what comes after it failed.
func withHook(err, hook error) error {
	var undone *UndoneError
	if hook != nil && errors.As(err, &undone) {
		return &UndoneError{Step: undone.Step, Err: errors.Join(undone.Err, hook), Back: undone.Back}
	}
	return errors.Join(err, hook)
}

func (c *cutover) tries(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := c.try(ctx)
		if !mayPass(err) || attempt >= c.Attempts {
			return err
		}
		c.log.Info("the cutover is put off, trying again", "attempt", attempt, "reason", err.Error())
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		var notReady *NotReadyError
		late := c.catchUpSoon(ctx)
		if errors.As(late, &notReady) {
			return withHook(err, late)
		}
		if late != nil {
			return late
		}
	}
}

package move

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/verify"
)

// streamAndCutOver follows every source, and, once the shards are level with them, switches to the new layout. Where a
// source's tables are changed meanwhile, it begins again with the shards changed alike, if on_ddl says so.
func (m *Move) streamAndCutOver(ctx context.Context, o MigrateOptions) error {
	for {
		inv, e, err := m.readSources(ctx)
		if err == nil {
			err = m.followAndCutOver(ctx, inv, e, o)
		}
		if e != nil && e.ended {
			err = m.endEvolution(ctx, e)
		} else if e != nil && m.readAgain(err, e) {
			m.log.Info("the sources' tables are looked at again", "because", err.Error())
			err = nil
		} else if err == nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (m *Move) followAndCutOver(ctx context.Context, inv *inventory, e *evolution, o MigrateOptions) error {
	followers, err := m.newFollowers(ctx, inv, e)
	if err != nil {
		return err
	}
	defer m.forgetFollowers()
	following, stop := context.WithCancel(ctx)
	defer stop()
	g, following := errgroup.WithContext(following)
	g.Go(func() error { return m.followAll(following, followers) })
	g.Go(func() error {
		defer stop()
		return m.conduct(following, inv, e, followers, o)
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil && m.servingVersion() == m.Destination.Layout {
		return nil
	}
	return m.changedBelow(ctx, inv, e, err)
}

func (m *Move) forgetFollowers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followers = nil
	m.router.Lookups.Clear() // of what was learnt from transactions that are to come again
}

// conduct arms the sources, waits until they are followed closely, and tries the cutover up to the configured number
// of times.
func (m *Move) conduct(ctx context.Context, inv *inventory, e *evolution, followers []*follower, o MigrateOptions) error {
	if err := m.pass(ctx, e, followers); err != nil {
		return err
	}
	if err := m.finishUnique(ctx, inv, followers); err != nil {
		return err
	}
	if err := m.arm(ctx, inv); err != nil {
		return err
	}
	if err := m.level(ctx, followers); err != nil {
		return err
	}
	if o.Ready != nil {
		if ready, err := o.Ready(ctx); err != nil {
			return err
		} else if !ready {
			<-ctx.Done()
			return ctx.Err()
		}
	}
	c := &cutover{Move: m, inv: inv, evolution: e, followers: followers}
	for attempt := 1; ; attempt++ {
		if err := m.catchUp(ctx, followers); err != nil {
			return err
		}
		err := c.try(ctx)
		if !mayPass(err) || attempt >= m.Attempts {
			return err
		}
		m.log.Info("the cutover is put off, trying again", "attempt", attempt, "reason", err.Error())
		if err := m.arm(ctx, inv); err != nil {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// cutover is the protocol of docs/design.md, "Cutover". Everything before the switch is undone by undo.
type cutover struct {
	*Move
	inv       *inventory
	evolution *evolution
	followers []*follower
	keys      []ForeignKey
	began     time.Time
	deadline  time.Time // by our clock: when the earliest freeze would end by itself
	frozen    []frozen  // by source
	sequences [][]Sequence
	proof     verify.Request
	finishing bool // foreign keys may have been made
}

// try runs the recipe once. An error before the switch comes back as an UndoneError, after everything is undone.
func (c *cutover) try(ctx context.Context) error {
	c.frozen = make([]frozen, len(c.Source.Shards))
	if err := c.step(ctx, "check", c.check); err != nil {
		return err
	}
	if err := c.enter(ctx, StateCuttingOver); err != nil {
		return err
	}
	c.began = time.Now() // once more in freeze, which may not be reached
	err := c.step(ctx, "freeze", c.freeze)
	if err == nil {
		bounded, cancel := context.WithDeadline(ctx, c.deadline)
		defer cancel()
		for _, s := range []struct {
			name string
			run  func(context.Context) error
		}{{"drain", c.drain}, {"finish", c.finish}, {"verify", c.verifyDrained}, {"seal", c.seal}} {
			if err = c.step(bounded, s.name, s.run); err != nil {
				break
			}
		}
	}
	if err != nil {
		return c.undo(ctx, err)
	}
	if err := c.step(ctx, "switch", c.switchLayout); err != nil {
		var unknown *UnknownError
		if errors.As(err, &unknown) {
			return err
		}
		return c.undo(ctx, err)
	}
	if err := c.step(ctx, "open", func(ctx context.Context) error { return c.open(ctx, c.inv) }); err != nil {
		return err
	}
	c.setFreeze(time.Since(c.began))
	return nil
}

// step journals what begins and what is done, around doing it.
func (c *cutover) step(ctx context.Context, name string, run func(context.Context) error) error {
	c.mu.Lock()
	c.cutover.Step = name
	c.mu.Unlock()
	if c.beforeStep != nil {
		c.beforeStep(name)
	}
	began := time.Now()
	if err := c.journal(ctx, name, "before"); err != nil {
		return &stepError{name, err}
	}
	if err := run(ctx); err != nil {
		return &stepError{name, err}
	}
	c.log.Info("cutover", "step", name, "seconds", time.Since(began).Seconds())
	if name == "switch" { // its own record is the journal: nothing may stand between it and open
		return nil
	}
	if err := c.journal(ctx, name, "after"); err != nil {
		return &stepError{name, err}
	}
	return nil
}

func (c *cutover) journal(ctx context.Context, step, phase string) error {
	return c.home(ctx, func(conn *pgx.Conn) error { return c.book.Journal(ctx, conn, step, phase, struct{}{}) })
}

type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// readServing asks the arbiter which layout serves.
func (m *Move) readServing(ctx context.Context) (version int, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		s, err := checkpoints.ReadServing(ctx, conn)
		if err == nil && s != nil {
			version = s.Version
		}
		return err
	})
	return version, err
}

func (m *Move) setServing(version int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serving = version
}

func (m *Move) servingVersion() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.serving
}

func (m *Move) setFreeze(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds := d.Seconds()
	m.cutover.FreezeSeconds = &seconds
	m.log.Info("the new layout serves", "freeze_seconds", seconds)
}

package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/verify"
)

// streamAndCutOver follows every source, and, once the shards are level with them, switches to the new layout. Where a
// source's tables are changed meanwhile, it begins again with the shards changed alike, if on_ddl says so.
func (m *Move) streamAndCutOver(ctx context.Context, o MigrateOptions) error {
	if err := m.endPaused(ctx); err != nil {
		return err
	}
	if err := errors.Join(m.dropReverse(ctx), m.takeLegBack(ctx)); err != nil { // of a cutover that was not made
		return err
	}
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
		} else if forgiven, failed := m.mayForgive(ctx, inv, o, err); forgiven || failed != nil {
			err = failed
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

// conduct arms the sources, waits until they are followed closely, and makes the cutover when it is time.
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
	if err := m.takeUpAccount(ctx, inv); err != nil {
		return err
	}
	return (&cutover{Move: m, inv: inv, evolution: e, followers: followers}).await(ctx, o)
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
	own       [][]Sequence   // of a rollback, by source: what those had themselves before the freeze
	proof     verify.Request // of everything
	proven    *comparison    // of the check, which the freeze brings to its end
	finishing bool           // foreign keys may have been made
	rehearsal bool           // all but the switch
	asked     bool           // by somebody who waits for the answer
	paused    bool           // the hook before the freeze has run, and none that ends what it began
	done      []StepReport
	owed      []checkpoints.Entry // of the journal
	verdict   *verdict            // of the comparison that runs in the freeze; nil: none runs
	triggers  []Trigger           // of the source, that only the open shards may have
	ended     []string            // transactions that were in the way of the freeze; Move.mu guards it
}

// try runs the recipe once. An error before the switch comes back as an UndoneError, after everything is undone; so does
// a rehearsal, because of errRehearsed.
func (c *cutover) try(ctx context.Context) error {
	c.frozen, c.done, c.owed, c.ended = make([]frozen, len(c.Source.Shards)), nil, nil, nil
	bounded := ctx
	for _, s := range c.recipe() {
		switch {
		case s.name == "freeze":
			if err := c.beforeFreeze(ctx); err != nil {
				return err
			}
			if err := c.enter(ctx, c.switching()); err != nil {
				return err
			}
			c.still.Lock()
			defer c.still.Unlock()
			c.began = time.Now() // once more in freeze, which may not be reached
		case s.name == "switch" && c.rehearsal:
			return c.undo(ctx, errRehearsed)
		}
		within := ctx
		switch {
		case s.frozen:
			within = bounded
		case s.name == stepOpen:
			var cancel context.CancelFunc
			within, cancel = context.WithTimeout(context.WithoutCancel(ctx), c.MaxFreeze+openTime)
			defer cancel()
		}
		err := c.do(within, s)
		var unknown *UnknownError
		switch {
		case err != nil && s.undone && !errors.As(err, &unknown):
			return c.undo(ctx, err)
		case err != nil && s.name == stepOpen:
			return fmt.Errorf("layout %d serves now, and not every server of it takes writes yet: %w; hint: a worker tries again until each does", c.Destination.Layout, err)
		case err != nil:
			return err
		case s.name == "freeze":
			var cancel context.CancelFunc
			bounded, cancel = context.WithDeadline(ctx, c.deadline)
			defer cancel()
		}
	}
	c.setFreeze(time.Since(c.began))
	return nil
}

// openTime is how long the shards may take to open, beside max_freeze for a standby of the home.
const openTime = 30 * time.Second

// errRehearsed ends a rehearsal, which runs all but the switch.
var errRehearsed = errors.New("this was a rehearsal")

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
	m.bothWays(func(m *Move) { m.serving = version })
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
	m.log.Info("switched", "layout", m.Destination.Layout, "freeze_seconds", seconds)
}

package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/sink"
)

// streamAndCutOver follows every source, and, once the shards are level with them, switches to the new layout.
func (m *Move) streamAndCutOver(ctx context.Context, o MigrateOptions) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if err := m.acceptDrift(ctx, inv); err != nil {
		return err
	}
	followers, err := m.newFollowers(ctx, inv)
	if err != nil {
		return err
	}
	defer m.forgetFollowers()
	following, stop := context.WithCancel(ctx)
	defer stop()
	g, following := errgroup.WithContext(following)
	for _, f := range followers {
		g.Go(func() error { return m.retry(following, f.run) })
	}
	g.Go(func() error {
		defer stop()
		return m.conduct(following, inv, followers, o)
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) && ctx.Err() == nil && m.servingVersion() == m.Destination.Layout {
		return nil
	}
	return err
}

func (m *Move) forgetFollowers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.followers = nil
}

// conduct arms the sources, waits until they are followed closely, and tries the cutover up to the configured number
// of times.
func (m *Move) conduct(ctx context.Context, inv *inventory, followers []*follower, o MigrateOptions) error {
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
	c := &cutover{Move: m, inv: inv, followers: followers}
	for attempt := 1; ; attempt++ {
		if err := m.level(ctx, followers); err != nil {
			return err
		}
		if err := m.catchUp(ctx, followers); err != nil {
			return err
		}
		err := c.try(ctx)
		if !mayPass(err) || attempt >= m.Attempts {
			return err
		}
		m.log.Info("a freeze was given up, trying again", "attempt", attempt, "reason", err.Error())
		if err := m.arm(ctx, inv); err != nil {
			return err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

// mayPass says that the next attempt at a freeze may succeed: what was in its way ends by itself.
func mayPass(err error) bool {
	return errors.Is(err, errWritersInFlight) || errors.Is(err, errUnfenced) || errors.Is(err, errSourcesApart)
}

// arm puts the fence on every moved table of every source. Nothing is refused by it yet.
func (m *Move) arm(ctx context.Context, inv *inventory) error {
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		f := m.fence(conn)
		state, err := readFence(ctx, conn)
		if err != nil {
			return err
		}
		if state.Layout != int64(m.Source.Layout) { // setting up takes the lock that writers hold, so once only
			if err := f.setUp(ctx, int64(m.Source.Layout), int64(m.Source.Layout), false); err != nil {
				return err
			}
		}
		return f.arm(ctx, inv.names(), true)
	})
}

// level waits until every stream is within max_lag, and not more than a second behind.
func (m *Move) level(ctx context.Context, followers []*follower) error {
	for {
		if len(m.lagging(followers)) == 0 {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// What is still to be applied when the freeze begins is waited for inside it. So the best moment is one at which a
// position just asked for is applied within catchUpTime; after catchUpPatience whatever max_lag allows must do.
const (
	catchUpTime     = 100 * time.Millisecond
	catchUpPatience = 10 * time.Second
)

// catchUp waits for such a moment.
func (m *Move) catchUp(ctx context.Context, followers []*follower) error {
	for end := time.Now().Add(catchUpPatience); time.Now().Before(end); {
		began := time.Now()
		for _, f := range followers {
			if err := f.reach(ctx, end); err != nil {
				return err
			}
		}
		if time.Since(began) < catchUpTime {
			return nil
		}
	}
	return nil
}

// lagging says, in words, which streams are too far behind for a freeze.
func (m *Move) lagging(followers []*follower) (because []string) {
	for _, f := range followers {
		bytes, age, ok := f.lag()
		switch {
		case !ok:
			because = append(because, fmt.Sprintf("how far the stream of source %d is behind is not known yet", f.source))
		case bytes > m.MaxLag:
			because = append(because, fmt.Sprintf("stream of source %d is %s behind", f.source, sizeText(bytes)))
		case age > longestAge:
			because = append(because, fmt.Sprintf("stream of source %d is %.1f s behind", f.source, age.Seconds()))
		}
	}
	return because
}

// longestAge: a position without rows is recorded once a second, and asked for four times a second.
const longestAge = 2 * time.Second

func sizeText(bytes int64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%d kB", bytes>>10)
}

// cutover is the protocol of docs/design.md, "Cutover". Everything before the switch is undone by undo.
type cutover struct {
	*Move
	inv       *inventory
	followers []*follower
	keys      []ForeignKey
	began     time.Time
	deadline  time.Time // by our clock: when the earliest freeze would end by itself
	frozen    []frozen  // by source
	sequences [][]Sequence
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
	c.began = time.Now()
	freezing, cancel := context.WithDeadline(ctx, c.began.Add(c.LockTimeout+c.MaxFreeze))
	defer cancel()
	err := c.step(freezing, "freeze", c.freeze)
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

// check looks for what would make the freeze fail or last, before anything is refused.
func (c *cutover) check(ctx context.Context) error {
	for n := range c.Source.Shards {
		if err := c.lookForDDL(ctx, c.inv, n); err != nil {
			return err
		}
	}
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		all, err := blockers(ctx, conn, time.Second)
		if err != nil || len(all) == 0 {
			return err
		}
		return fmt.Errorf("source %d: %w: %s", n, errWritersInFlight, all[0])
	})
	if err != nil {
		return err
	}
	err = c.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		c.keys, err = ForeignKeys(ctx, conn, c.inv.tree(0), c.SkipConstraint)
		return err
	})
	if err != nil {
		return err
	}
	if err := c.readSequences(ctx, false); err != nil {
		return err
	}
	return c.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		set, err := c.planSequences(n)
		if err != nil {
			return err
		}
		return PrepareSequences(ctx, conn, set)
	})
}

// readSequences adds a reading of every source's sequences.
func (c *cutover) readSequences(ctx context.Context, indexed bool) error {
	if c.Sequences == string(SequencesNone) {
		return nil
	}
	var mu sync.Mutex
	return c.sources(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		all, err := ReadSequences(ctx, conn, c.inv.tree(0), indexed)
		mu.Lock()
		defer mu.Unlock()
		c.sequences = append(c.sequences, all)
		return err
	})
}

func (c *cutover) planSequences(shard int) ([]SequenceSetting, error) {
	return PlanSequences(SequencePolicy(c.Sequences), c.sequences, len(c.Source.Shards), shard, len(c.Destination.Shards))
}

// freeze stops the writers of every source at once.
func (c *cutover) freeze(ctx context.Context) error {
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (err error) {
		c.frozen[n], err = c.fence(conn).freeze(ctx, c.inv.names(), c.MaxFreeze, sink.MessagePrefix, "barrier "+c.Name)
		return err
	})
	// The flag's end is max_freeze from a moment after began: by then the seal must be done.
	c.deadline = c.began.Add(c.MaxFreeze - c.MaxFreeze/20)
	return err
}

func (m *Move) fence(conn *pgx.Conn) fence {
	return fence{Conn: conn, Epoch: m.book.Epoch, LockTimeout: m.LockTimeout}
}

// drain waits until every shard holds everything that was written before the freeze.
func (c *cutover) drain(ctx context.Context) error {
	for {
		behind := ""
		for i, f := range c.followers {
			if f.sink.Applied() < c.frozen[i].Barrier {
				behind = fmt.Sprintf("source %d is applied up to %s, its barrier is at %s", i, f.sink.Applied(), c.frozen[i].Barrier)
			}
		}
		if behind == "" {
			return nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%w: %s", err, behind)
		}
	}
}

// finish gives the destination what must be decided after the last write: sequences above every value handed out, and
// foreign keys, unchecked for now.
func (c *cutover) finish(ctx context.Context) error {
	c.finishing = true
	if err := c.readSequences(ctx, true); err != nil {
		return err
	}
	return c.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		set, err := c.planSequences(n)
		if err != nil {
			return err
		}
		if err := SetSequences(ctx, conn, set); err != nil {
			return err
		}
		return AddForeignKeys(ctx, conn, c.keys)
	})
}

func (c *cutover) verifyDrained(ctx context.Context) error {
	if !c.MustVerify {
		return nil
	}
	at := make([]pg.LSN, len(c.frozen))
	for i, z := range c.frozen {
		at[i] = z.Barrier
	}
	return c.compare(ctx, c.inv, at)
}

// seal makes the freeze permanent on every source, if it has held without a gap.
func (c *cutover) seal(ctx context.Context) error {
	return c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		at, err := c.fence(conn).seal(ctx, c.inv.names(), c.frozen[n].Value)
		if err != nil {
			return err
		}
		return waitStandbys(ctx, conn, at)
	})
}

// switchLayout is the point of no return. Where the answer is lost the record is read until it is known.
func (c *cutover) switchLayout(ctx context.Context) error {
	to := checkpoints.Serving{Database: c.Destination.Database, Version: c.Destination.Layout, Since: time.Now().UTC()}
	err := c.home(ctx, func(conn *pgx.Conn) error { return c.book.Switch(ctx, conn, c.Source.Layout, to) })
	if err == nil {
		c.setServing(to.Version)
		return nil
	}
	if errors.Is(err, checkpoints.ErrNotServing) || errors.Is(err, checkpoints.ErrSuperseded) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for {
		serving, readErr := c.readServing(ctx)
		if readErr == nil && serving == to.Version {
			c.setServing(to.Version)
			return nil
		}
		if readErr == nil {
			return err
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return &UnknownError{errors.Join(err, readErr)}
		}
	}
}

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

// undo gives the cutover up: the source serves writes again. It runs to its end even where ctx has ended, but not
// against a worker that has taken over, who decides. Where a source could not be told, no UndoneError claims that it
// serves: decideCutover goes on from there.
func (c *cutover) undo(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.MaxFreeze+10*time.Second)
	defer cancel()
	c.log.Warn("cutover undone", "reason", cause.Error())
	if err := c.liftAll(ctx); err != nil {
		return fmt.Errorf("undo: %w (undone because of: %v)", err, cause)
	}
	c.setUndone(time.Since(c.began))
	var err error
	if c.finishing {
		err = c.dropForeignKeys(ctx)
	}
	if err == nil { // else the state stays, for decideCutover to drop them
		err = errors.Join(c.journal(ctx, "undo", "after"), c.enter(ctx, StateStreaming))
	}
	step := ""
	var s *stepError
	if errors.As(cause, &s) {
		step, cause = s.step, s.err
	}
	return &UndoneError{Step: step, Err: errors.Join(cause, err)}
}

func (m *Move) setUndone(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seconds := d.Seconds()
	m.cutover = CutoverStatus{FreezeSeconds: &seconds}
}

// liftAll lets every source serve again, whatever a freeze or seal had got to there.
func (m *Move) liftAll(ctx context.Context) error {
	return m.sources(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		state, err := readFence(ctx, conn)
		// Where nothing is frozen nothing is lifted: the lock that lifting takes refuses writers while it waits for one
		// in flight, and only a source that is not frozen has any.
		if err != nil || !state.Installed || state.Until == 0 {
			return err
		}
		for {
			err := m.fence(conn).lift(ctx, liftAny)
			if !errors.Is(err, errWritersInFlight) {
				return err
			}
			if err := sleep(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	})
}

// dropForeignKeys takes back what finish made: with it a TRUNCATE in the stream would fail. The stream goes on
// meanwhile, and others may use the tables, so a lock that is not had is given up and asked for again until ctx ends.
func (c *cutover) dropForeignKeys(ctx context.Context) error {
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		for _, k := range c.keys {
			drop := fmt.Sprintf("alter table %s drop constraint if exists %s", k.Table.SQL(), pgx.Identifier{k.Name}.Sanitize())
			err := c.fence(conn).inShortTransaction(ctx, drop)
			for lockNotHad(err) {
				err = c.fence(conn).inShortTransaction(ctx, drop)
			}
			if err != nil {
				return fmt.Errorf("drop foreign key %s of %s: %w", k.Name, k.Table, err)
			}
		}
		return nil
	})
}

// decideCutover goes on after a death inside a cutover: if the switch happened, forward; if not, the source serves.
func (m *Move) decideCutover(ctx context.Context) error {
	serving, err := m.readServing(ctx)
	if err != nil {
		return err
	}
	if serving == m.Destination.Layout {
		m.setServing(serving)
		return m.enter(ctx, StateSwitched)
	}
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	if err := m.liftAll(ctx); err != nil {
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

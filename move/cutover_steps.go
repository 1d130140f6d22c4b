package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
)

// check looks for what would make the freeze fail or last, before anything is refused.
func (c *cutover) check(ctx context.Context) error {
	for n := range c.Source.Shards {
		if err := c.sourceAsFound(ctx, c.inv, c.evolution, n); err != nil {
			return err
		}
	}
	if err := c.unnoticed(ctx); err != nil {
		return err
	}
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		all, err := blockers(ctx, conn, time.Second)
		if c.OnBlockers == BlockersTerminate { // a prepared one is nobody's session
			all = slices.DeleteFunc(all, func(b Blocker) bool { return b.Prepared == "" })
		}
		if err != nil || len(all) == 0 {
			return err
		}
		return fmt.Errorf("%s: %w: %s", c.sourceWords(n), errWritersInFlight, all[0])
	})
	if err != nil {
		return err
	}
	if c.forward == nil {
		err = c.source(ctx, 0, func(conn *pgx.Conn) (err error) {
			c.keys, err = ForeignKeys(ctx, conn, c.inv.tree(0), c.SkipConstraint)
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := c.readSequences(ctx, false); err != nil {
		return err
	}
	if c.forward == nil && c.Reverse {
		if err := c.prepareReverse(ctx, c.inv); err != nil {
			return err
		}
	}
	c.own = make([][]Sequence, len(c.Destination.Shards))
	if err := c.prepareLeg(ctx); err != nil {
		return err
	}
	err = c.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		if c.forward != nil {
			if err := c.readOwn(ctx, n, conn); err != nil {
				return err
			}
		}
		set, err := c.planSequences(n)
		if err != nil || c.forward != nil { // the sources' keep their definitions
			return err
		}
		return PrepareSequences(ctx, conn, set)
	})
	if err != nil {
		return err
	}
	if err := c.compareAhead(ctx); err != nil { // last: what changes from then on is left to the freeze
		return err
	}
	return caughtUp(ctx, c.followers, catchUpAgain)
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
	if c.forward != nil {
		return c.planBack(shard)
	}
	return PlanSequences(SequencePolicy(c.Sequences), c.sequences, len(c.Source.Shards), shard, len(c.Destination.Shards))
}

// freeze stops the writers of every source at once.
func (c *cutover) freeze(ctx context.Context) error {
	c.began = time.Now()
	ctx, cancel := context.WithDeadline(ctx, c.began.Add(c.LockTimeout+c.MaxFreeze))
	defer cancel()
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (err error) {
		c.frozen[n], err = c.freezeSource(ctx, n, conn)
		return err
	})
	// The flag's end is max_freeze from a moment after began: by then the seal must be done.
	c.deadline = c.began.Add(c.MaxFreeze - c.MaxFreeze/20)
	return err
}

func (m *Move) fence(conn *pgx.Conn) fence {
	return fence{Conn: conn, Epoch: m.book.Epoch, LockTimeout: m.LockTimeout}
}

// drain waits until every shard holds everything that was written before the freeze. From there both sides are compared,
// beside what else has to be done before the seal.
func (c *cutover) drain(ctx context.Context) error {
	for {
		behind := ""
		for i, f := range c.followers {
			if f.sink.Applied() < c.frozen[i].Barrier {
				behind = fmt.Sprintf("source %d is applied up to %s, its barrier is at %s", i, f.sink.Applied(), c.frozen[i].Barrier)
			}
		}
		if behind == "" {
			c.verdict = begin(ctx, c.compareDrained)
			return nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return fmt.Errorf("%w: %s", err, behind)
		}
	}
}

// finish gives the destination what must be decided after the last write, and none of it changes a row: sequences above every
// value handed out, foreign keys, unchecked for now, and the triggers that do not fire for the worker, since waiting for
// their tables' locks must not come after the switch; and the streams that follow the other way where they start.
func (c *cutover) finish(ctx context.Context) error {
	c.finishing = c.forward == nil
	g, ctx := errgroup.WithContext(ctx)
	for n := range c.Source.Shards { // what was changed between the check and the freeze
		g.Go(func() error {
			if err := c.sourceAsFound(ctx, c.inv, c.evolution, n); err != nil {
				return err
			}
			return c.samePublication(ctx, c.inv, n)
		})
	}
	g.Go(func() error { return c.finishShards(ctx) })
	g.Go(func() error {
		if err := c.startOther(ctx); err != nil {
			return err
		}
		return c.handOver(ctx)
	})
	return g.Wait()
}

// finishShards is what finish does on the shards. What they have is on a standby then, and with it what was drained, since
// the sources' log is let go after the switch.
func (c *cutover) finishShards(ctx context.Context) error {
	if err := c.readSequences(ctx, true); err != nil {
		return err
	}
	var now []Trigger
	if c.forward == nil {
		all, err := c.sourceTriggers(ctx, c.inv)
		if err != nil {
			return err
		}
		c.triggers = nil
		for _, t := range all {
			if t.State == 'O' {
				now = append(now, t)
			} else {
				c.triggers = append(c.triggers, t)
			}
		}
	}
	return c.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		set, err := c.planSequences(n)
		if err != nil {
			return err
		}
		if err := SetSequences(ctx, conn, set); err != nil {
			return err
		}
		if err := errors.Join(AddForeignKeys(ctx, conn, c.keys), c.setTriggers(ctx, n, conn, now)); err != nil {
			return err
		}
		return c.onStandby(ctx, n, conn)
	})
}

// startOther has the streams of the other way start here, if there are to be any.
func (c *cutover) startOther(ctx context.Context) error {
	switch {
	case c.forward != nil:
		return c.forward.startHere(ctx)
	case c.Reverse:
		return c.wayBack().startHere(ctx)
	}
	return c.wayBack().setDetail(ctx, startsKey, nil)
}

// seal makes the freeze permanent on every source, if it has held without a gap. Meanwhile every server that is to serve says
// once more that it is there: after the switch nothing goes back for one that is not.
func (c *cutover) seal(ctx context.Context) error {
	there := make(chan error, 1)
	go func() {
		there <- c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error { return conn.Ping(ctx) })
	}()
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		at, err := c.fence(conn).seal(ctx, c.inv.names(), c.frozen[n].Value)
		if err != nil {
			return err
		}
		return waitStandbys(ctx, conn, at)
	})
	return errors.Join(err, <-there)
}

// openSealed opens what this cutover has finished itself, so that nothing has to be looked for. The layout serves since the
// switch, whatever has failed meanwhile and whoever wants the worker to end: it is opened all the same.
func (c *cutover) openSealed(ctx context.Context) error {
	if len(c.triggers) > 0 {
		return c.openWith(ctx, c.triggers)
	}
	c.switchOnStandby(ctx)
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.fence(conn).open(ctx, int64(c.Destination.Layout))
	})
}

// switchLayout is the point of no return. Where the answer is lost the record is read until it is known.
func (c *cutover) switchLayout(ctx context.Context) error {
	to := checkpoints.Serving{Database: c.Destination.Database, Version: c.Destination.Layout, Since: time.Now().UTC()}
	var session uint32
	err := c.home(ctx, func(conn *pgx.Conn) error {
		session = conn.PgConn().PID()
		return c.book.Switch(ctx, conn, c.Source.Layout, to)
	})
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
		serving, readErr := c.decided(ctx, session)
		if readErr == nil && serving == to.Version {
			c.setServing(to.Version)
			return nil
		}
		if readErr == nil || errors.Is(readErr, checkpoints.ErrSuperseded) { // then its successor has decided
			return errors.Join(err, readErr)
		}
		if sleep(ctx, 100*time.Millisecond) != nil {
			return &UnknownError{errors.Join(err, readErr)}
		}
	}
}

const selectSession = `select pid from pg_stat_activity where pid = $1 and datname = current_database() and application_name = current_setting('application_name')`

// decided reads which layout serves once the session that was to switch has ended: it may be at its COMMIT, which shows later.
func (c *cutover) decided(ctx context.Context, session uint32) (version int, err error) {
	err = c.home(ctx, func(conn *pgx.Conn) error {
		if conn.PgConn().PID() == session {
			return nil
		}
		return c.endSessions(ctx, conn, selectSession, int32(session))
	})
	if err != nil {
		return 0, err
	}
	return c.readServing(ctx)
}

package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// mayPass says that the next attempt at a freeze may succeed: what was in its way ends by itself.
func mayPass(err error) bool {
	return errors.Is(err, errWritersInFlight) || errors.Is(err, errUnfenced) || errors.Is(err, errSourcesApart) || errors.Is(err, errSlotWaits)
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

// level waits until every stream is within max_lag, and not more than longestAge behind.
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
// position just asked for is applied within catchUpTime; after catchUpPatience whatever level allows must do.
const (
	catchUpTime     = 100 * time.Millisecond
	catchUpPatience = 10 * time.Second
	// Once both sides were compared, for which the streams had stood still: what is written meanwhile is compared in the freeze.
	catchUpAgain = 2 * time.Second
)

// catchUp waits for such a moment. A stream that stands still is waited for without end.
func (m *Move) catchUp(ctx context.Context, followers []*follower) error {
	for {
		if err := m.level(ctx, followers); err != nil {
			return err
		}
		if err := caughtUp(ctx, followers, catchUpPatience); err != nil {
			return err
		}
		if len(m.lagging(followers)) == 0 {
			return nil
		}
	}
}

// caughtUp waits for such a moment for as long as patience.
func caughtUp(ctx context.Context, followers []*follower, patience time.Duration) error {
	for end := time.Now().Add(patience); time.Now().Before(end); {
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

// askedPatience is how long who asks for a cutover waits for the streams to come level.
const askedPatience = 2 * catchUpPatience

// catchUpSoon is catchUp, but does not leave who asked waiting for a server that is down.
func (c *cutover) catchUpSoon(ctx context.Context) error {
	if !c.asked {
		return c.catchUp(ctx, c.followers)
	}
	bounded, cancel := context.WithTimeout(ctx, askedPatience)
	defer cancel()
	err := c.catchUp(bounded, c.followers)
	if err == nil || bounded.Err() == nil || ctx.Err() != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	because := append(c.lagging(c.followers), c.waiting()...)
	if len(because) == 0 {
		because = []string{fmt.Sprintf("the streams do not come level within %s", askedPatience)}
	}
	return c.notReady(because...)
}

// lagging says, in words, which streams are too far behind for a freeze.
func (m *Move) lagging(followers []*follower) (because []string) {
	for _, f := range followers {
		bytes, age, ok := f.lag()
		switch {
		case !ok:
			because = append(because, fmt.Sprintf("how far the stream of %s is behind is not known yet", m.sourceWords(f.source)))
		case bytes > m.MaxLag:
			because = append(because, fmt.Sprintf("stream of %s is %s behind", m.sourceWords(f.source), sizeText(bytes)))
		case age > longestAge:
			because = append(because, fmt.Sprintf("stream of %s is %.1f s behind", m.sourceWords(f.source), age.Seconds()))
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

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink/jetstream"
)

// CDC says where every change of the layout that serves is published ([cdc]).
type CDC struct {
	Conn *nats.Conn
	Rows bool // begin with the rows that are there
}

// cdc publishes every change of the layout that serves. It reads by slots of its own, so that the data path never waits for
// NATS, and goes from layout to layout with the move: each stretch is a leg, and a leg begins when the one before is
// published to its end.
type cdc struct {
	CDC
	move *Move

	recording sync.Mutex // who changes what is kept of the legs

	mu     sync.Mutex
	kept   cdcKept                    // as it is kept with the move
	feeds  map[cdcKey]*jetstream.Feed // of slots that are read
	health map[cdcKey]cdcHealth       // of all slots
	failed map[cdcKey]string          // why a shard is not read now
	fault  string                     // why nothing is published now
	anew   string                     // why it was begun anew last
}

// cdcKept is what is kept with the move; every slot is recorded there before it is made.
type cdcKept struct {
	Last int // number of a leg; a slot's name is never used twice
	Legs []cdcLeg
}

// cdcLeg is a stretch of changes of one layout: what its shards commit between From and Until.
type cdcLeg struct {
	Number      int  // of all legs of the move
	Destination bool // of the destination's shards; else the sources'
	Shards      []cdcShard
}

// cdcShard is what is kept of one shard of a leg.
type cdcShard struct {
	Made     bool   // the slot is made, or being made
	Slot     pg.LSN // position at which it was made; 0: not yet
	Timeline int32  // the server was on when it was last read
	Whole    bool   // the rows that were there are published, or are not to be
	From     pg.LSN // what commits before is of the leg before, and not the application's
	Until    pg.LSN // what commits from here on is the next leg's; 0: nothing is
}

// cdcKey is one shard of one leg.
type cdcKey struct{ leg, shard int }

func (l *cdcLeg) node(shard int) node { return node{!l.Destination, shard} }

// made says that all slots are there.
func (l *cdcLeg) made() bool {
	return !slices.ContainsFunc(l.Shards, func(s cdcShard) bool { return s.Slot == 0 })
}

// cdcSlot is the name of the slot and publication of one shard of a leg.
func (m *Move) cdcSlot(leg, shard int) string {
	return fmt.Sprintf("pgreshard_%s_cdc_%d_%d", m.slotName(), leg, shard)
}

// cdcKeptKey is under what a cdcKept is kept.
const cdcKeptKey = "cdc"

// newCDC readies publishing, from where an earlier worker has left it. Where nothing is to be published any more, what that one
// has made for it is taken away.
func (m *Move) newCDC(ctx context.Context, how *CDC) (*cdc, error) {
	kept, err := m.keptCDC(ctx)
	if err != nil || how == nil && len(kept.Legs) == 0 {
		return nil, err
	}
	if how == nil {
		if err := m.dropLegs(ctx, kept.Legs, m.allNodes()...); err != nil {
			return nil, err
		}
		return nil, m.setDetail(ctx, cdcKeptKey, cdcKept{Last: kept.Last})
	}
	c := &cdc{CDC: *how, move: m, kept: kept, feeds: map[cdcKey]*jetstream.Feed{}, health: map[cdcKey]cdcHealth{}, failed: map[cdcKey]string{}}
	m.setCDC(c)
	return c, nil
}

// longestUnpublished is the longest pause before it is tried again: NATS is asked, and no database.
const longestUnpublished = 3 * time.Second

// run publishes until ctx ends. Whatever goes wrong with it is told by status, and tried again: the move goes on.
func (c *cdc) run(ctx context.Context) {
	defer c.move.setCDC(nil)
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { _ = c.watch(ctx) }) // it ends with ctx
	for pause := firstPause; ; pause = min(2*pause, longestUnpublished) {
		began := time.Now()
		err := c.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longestUnpublished {
			pause = firstPause
		}
		if why := oneLine(err); c.tell(why) {
			c.move.log.Warn("nothing is published now; the move goes on", "error", why)
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

func (m *Move) setCDC(c *cdc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cdc = c
}

// publishing is what publishes this move's changes, nil where nothing does.
func (m *Move) publishing() *cdc {
	if m.forward != nil {
		m = m.forward
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cdc
}

// tell notes why nothing is published, empty where something is; it says whether that is news.
func (c *cdc) tell(fault string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	news, c.fault = c.fault != fault, fault
	return news
}

func (m *Move) keptCDC(ctx context.Context) (kept cdcKept, err error) {
	return kept, m.detail(ctx, cdcKeptKey, &kept)
}

// legs are the caller's own copy.
func (c *cdc) legs() []cdcLeg {
	c.mu.Lock()
	defer c.mu.Unlock()
	legs := slices.Clone(c.kept.Legs)
	for i := range legs {
		legs[i].Shards = slices.Clone(legs[i].Shards)
	}
	return legs
}

// keep changes what is kept with the move.
func (c *cdc) keep(ctx context.Context, change func(*cdcKept)) error {
	c.recording.Lock()
	defer c.recording.Unlock()
	kept := cdcKept{c.kept.Last, c.legs()} // only who records writes it
	change(&kept)
	if err := c.move.setDetail(ctx, cdcKeptKey, kept); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = kept
	for key, feed := range c.feeds {
		if s := shardOf(kept.Legs, key); s != nil {
			feed.Until(s.Until)
		}
	}
	return nil
}

// keepShard changes what is kept of one shard; errGone where its leg is no more.
func (c *cdc) keepShard(ctx context.Context, key cdcKey, change func(*cdcShard)) error {
	gone := false
	err := c.keep(ctx, func(k *cdcKept) {
		if s := shardOf(k.Legs, key); s != nil {
			change(s)
		} else {
			gone = true
		}
	})
	if err == nil && gone {
		return errGone
	}
	return err
}

// shardOf finds a shard among legs; nil where its leg is not there.
func shardOf(legs []cdcLeg, key cdcKey) *cdcShard {
	for i := range legs {
		if legs[i].Number == key.leg {
			return &legs[i].Shards[key.shard]
		}
	}
	return nil
}

// errGone means that a leg was taken away while it was followed: it is begun anew, or was of a cutover that was not made.
var errGone = errors.New("this stretch of changes is not published any more")

// session publishes through one Publisher until that fails or ctx ends.
func (c *cdc) session(ctx context.Context) error {
	p, err := jetstream.Open(ctx, c.Conn, c.move.Name)
	if err != nil {
		return err
	}
	c.tell("")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.Run(ctx) })
	g.Go(func() error {
		for {
			leg, err := c.current(ctx)
			if err == nil {
				err = c.followLeg(ctx, p, leg)
			}
			var lost *lostError
			switch {
			case errors.Is(err, errGone):
			case errors.As(err, &lost):
				if err := c.beginAnew(ctx, lost.Error()); err != nil {
					return err
				}
			case err != nil:
				return err
			default:
				c.move.log.Info("all changes of the layout that was left are published", "leg", leg.Number)
				if err := c.drop(ctx, leg); err != nil {
					return err
				}
			}
		}
	})
	return g.Wait()
}

// current is the leg to be published now: the first that is not published to its end. Where there is none, one begins with
// the layout that serves, once its tables may be published.
func (c *cdc) current(ctx context.Context) (cdcLeg, error) {
	for {
		if legs := c.legs(); len(legs) > 0 {
			if legs[0].Destination != c.move.destinationServes() && (len(legs) == 1 || !legs[0].made()) {
				return cdcLeg{}, &lostError{errors.New("the layout was left before all that was there could be published")}
			}
			return legs[0], nil
		}
		if state := c.move.currentState(); state == StateCreated || state == StateSchema { // replica identities may be still to be set
			if err := sleep(ctx, lookEvery/4); err != nil {
				return cdcLeg{}, err
			}
			continue
		}
		if err := c.addLeg(ctx, c.move.destinationServes(), false); err != nil {
			return cdcLeg{}, err
		}
	}
}

func (m *Move) destinationServes() bool {
	return len(m.Destination.Shards) > 0 && m.servingVersion() == m.Destination.Layout
}

// addLeg records a leg before anything is made for it. Of a next one, the rows that are there are published already.
func (c *cdc) addLeg(ctx context.Context, destination, next bool) error {
	shards := c.move.Source.Shards
	if destination {
		shards = c.move.Destination.Shards
	}
	leg := cdcLeg{Destination: destination, Shards: make([]cdcShard, len(shards))}
	for i := range leg.Shards {
		leg.Shards[i].Whole = next
	}
	return c.keep(ctx, func(k *cdcKept) {
		k.Last++
		leg.Number = k.Last
		k.Legs = append(k.Legs, leg)
	})
}

// lostError means that changes which were not published cannot be read any more.
type lostError struct{ err error }

func (e *lostError) Error() string { return oneLine(e.err) }
func (e *lostError) Unwrap() error { return e.err }

// beginAnew drops every leg. The next one begins with the rows that are there, if they are to be published.
func (c *cdc) beginAnew(ctx context.Context, why string) error {
	c.move.log.Warn("changes were lost before they were published; publishing begins anew", "reason", why, "rows", c.Rows)
	if err := c.drop(ctx, c.legs()...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anew = why
	return nil
}

// drop takes legs away, and what was made for them.
func (c *cdc) drop(ctx context.Context, gone ...cdcLeg) error {
	if err := c.move.dropLegs(ctx, gone, c.move.allNodes()...); err != nil {
		return err
	}
	return c.keep(ctx, func(k *cdcKept) {
		k.Legs = slices.DeleteFunc(k.Legs, func(l cdcLeg) bool {
			return slices.ContainsFunc(gone, func(g cdcLeg) bool { return g.Number == l.Number })
		})
	})
}

// followLeg publishes what a leg's shards commit until all of them are at its end.
func (c *cdc) followLeg(ctx context.Context, p *jetstream.Publisher, leg cdcLeg) error {
	g, ctx := errgroup.WithContext(ctx)
	for n := range leg.Shards {
		g.Go(func() error {
			key := cdcKey{leg.Number, n}
			for {
				err := c.followShard(ctx, p, key, leg.node(n))
				switch {
				case ctx.Err() != nil:
					return ctx.Err()
				case errors.Is(err, jetstream.ErrReached):
					if done, err := c.decided(ctx, key); done || err != nil {
						return err
					}
					continue
				case errors.Is(err, errGone):
					return err
				case isEnded(err):
					return &lostError{err}
				}
				c.tellShard(key, oneLine(err))
				if err := sleep(ctx, time.Second); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func (c *cdc) tellShard(key cdcKey, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.failed[key]; why != "" && was != why {
		c.move.log.Warn("changes of a shard are not published now; the move goes on", "shard", key.shard, "error", why)
	}
	c.failed[key] = why
}

// decided waits, at the end of a leg, until the other layout serves, or does not after all.
func (c *cdc) decided(ctx context.Context, key cdcKey) (done bool, err error) {
	for {
		legs := c.legs()
		s := shardOf(legs, key)
		switch {
		case s == nil:
			return false, errGone
		case s.Until == 0:
			return false, nil
		case c.wasLeft(legs, key.leg):
			return true, nil
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// wasLeft says whether the layout of a leg was switched away from: the next leg's serves, or one more came behind it.
func (c *cdc) wasLeft(legs []cdcLeg, number int) bool {
	i := slices.IndexFunc(legs, func(l cdcLeg) bool { return l.Number == number })
	switch last := len(legs) - 1; i {
	case -1, last:
		return false
	case last - 1:
		return legs[last].Destination == c.move.destinationServes()
	}
	return true
}

// slotRefused says that a slot of this name is somebody else's.
func slotRefused(err error) bool {
	return errors.Is(err, replicator.ErrSlotExists) || errors.Is(err, replicator.ErrSlotForeign)
}

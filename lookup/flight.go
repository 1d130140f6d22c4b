package lookup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// flight is one key being asked. Whoever put it into Cache.flights lands it; the others wait for that.
type flight struct {
	done  chan struct{}
	value []byte // valid after done, nil where the question failed or found nothing
}

const (
	firstPause = 10 * time.Millisecond // before the second attempt at keys without an answer
	maxPause   = 500 * time.Millisecond
)

// fetch gets keys (distinct, not nil) that were not in the cache: it asks for those nobody is asking for, then waits
// for those others ask for. A question that fails for its asker (it was cancelled, its connection broke, its
// transaction does not see the mapping) says nothing about this caller, who then asks for himself.
//
// The asker runs in the calling goroutine and under its context, never beyond it: it may be bound to a connection
// the caller rolls back the moment fetch returns.
func (c *Cache) fetch(ctx context.Context, q *Query, keys [][]byte, ask Asker) ([][]byte, error) {
	t := &trip{cache: c, query: q, ask: ask, keys: keys, values: make([][]byte, len(keys)), own: make([]*flight, len(keys))}
	defer t.landRest()

	mine, others := t.claim()
	missing, err := t.fly(ctx, mine)
	if err != nil {
		return t.values, err
	}
	t.landRest() // before waiting: those this trip waits for may wait for it
	left, err := t.wait(ctx, others)
	if err != nil {
		return t.values, err
	}
	again, err := t.fly(ctx, left)
	if err != nil {
		return t.values, err
	}
	if first := cmp.Or(missing, again); first != nil {
		return t.values, first
	}
	return t.values, nil
}

// trip is one call of fetch.
type trip struct {
	cache  *Cache
	query  *Query
	ask    Asker
	keys   [][]byte
	values [][]byte
	own    []*flight // the flight this trip must land, nil where it has none
}

// claim sorts the keys into those this trip asks for and the flights of others it waits for. A key that was answered
// since the caller looked is neither.
func (t *trip) claim() (mine []int, others map[int]*flight) {
	c := t.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, key := range t.keys {
		if value, ok := c.entries.GetIfPresent(borrowed(t.query, key)); ok {
			t.values[i] = value
			continue
		}
		if f := c.flights[borrowed(t.query, key)]; f != nil {
			if others == nil {
				others = map[int]*flight{}
			}
			others[i] = f
			continue
		}
		t.own[i] = &flight{done: make(chan struct{})}
		c.flights[owned(t.query, key)] = t.own[i]
		mine = append(mine, i)
	}
	return mine, others
}

// fly asks for the keys at these indexes, those without an answer up to Attempts times, and lands each answer at
// once. missing is the first key that still has none.
func (t *trip) fly(ctx context.Context, indexes []int) (missing *MissingError, err error) {
	pause := firstPause
	for attempt := 1; len(indexes) > 0; attempt++ {
		answers, err := t.round(ctx, indexes)
		if err != nil {
			return nil, err
		}
		var left []int
		missing = nil
		for n, i := range indexes {
			if answers[n].found() {
				t.values[i] = t.land(i, answers[n].Value)
				continue
			}
			missing = cmp.Or(missing, t.missing(i, answers[n]))
			left = append(left, i)
		}
		indexes = left
		if attempt >= t.query.Attempts || len(indexes) == 0 {
			return missing, nil
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, nil
}

// round asks once, and counts it whatever comes of it.
func (t *trip) round(ctx context.Context, indexes []int) ([]Answer, error) {
	keys := make([][]byte, len(indexes))
	for n, i := range indexes {
		keys[n] = t.keys[i]
	}
	if t.query.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.query.Timeout)
		defer cancel()
	}
	began := time.Now()
	answers, err := t.ask.Ask(ctx, t.query, keys)
	t.cache.asked(len(keys), time.Since(began))
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", t.query.Name, err)
	}
	if len(answers) != len(keys) {
		return nil, fmt.Errorf("look up %s: %d answers to %d keys", t.query.Name, len(answers), len(keys))
	}
	return answers, nil
}

func (t *trip) missing(i int, a Answer) *MissingError {
	return &MissingError{Query: t.query, Key: string(t.keys[i]), Rows: a.Rows, Null: a.Null}
}

// wait takes what others found and returns the indexes they found nothing for.
func (t *trip) wait(ctx context.Context, others map[int]*flight) (left []int, err error) {
	for i, f := range others {
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if t.values[i] = f.value; f.value == nil {
			left = append(left, i)
		}
	}
	slices.Sort(left)
	return left, nil
}

// land ends the flight of one key, if this trip has it, and caches its answer unless the key was invalidated while
// it was asked. It returns the bytes to hand out.
func (t *trip) land(i int, value []byte) []byte {
	f := t.own[i]
	value = append([]byte{}, value...) // never nil: an empty translation is one
	if f == nil {
		return value
	}
	t.own[i] = nil
	c := t.cache
	c.mu.Lock()
	if k := owned(t.query, t.keys[i]); c.flights[k] == f {
		delete(c.flights, k)
		c.entries.Set(k, value)
	}
	c.mu.Unlock()
	f.value = value
	close(f.done)
	return value
}

// landRest ends every flight that has no answer, so that whoever waits asks for himself.
func (t *trip) landRest() {
	c := t.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range t.own {
		if f == nil {
			continue
		}
		if k := borrowed(t.query, t.keys[i]); c.flights[k] == f {
			delete(c.flights, k)
		}
		close(f.done)
		t.own[i] = nil
	}
}

// Missing reports the *MissingError in err, nil where it is another error.
func Missing(err error) *MissingError {
	missing, _ := errors.AsType[*MissingError](err)
	return missing
}

package lookup

import (
	"context"
	"math"
	"sync"
	"unsafe"

	"github.com/maypok86/otter/v2"
)

// entryOverhead is what an entry costs beyond its bytes, in bytes (measured: cache_test.go).
const entryOverhead = 120

// cacheKey is a key of one query. Its text is either a copy the cache owns or, for the time of one look, the
// caller's bytes.
type cacheKey struct {
	query int
	text  string
}

// Cache holds translations of all queries within one bound. It is safe for many goroutines.
type Cache struct {
	entries *otter.Cache[cacheKey, []byte]
	counters

	mu      sync.Mutex
	flights map[cacheKey]*flight // questions being asked; a flight taken out of here must not fill the cache
}

// New makes a Cache that holds at most maxBytes, keys, values and overhead counted (a few percent more for moments,
// under many writers).
func New(maxBytes int64) *Cache {
	c := &Cache{counters: newCounters(), flights: map[cacheKey]*flight{}}
	c.entries = otter.Must(&otter.Options[cacheKey, []byte]{
		MaximumWeight: uint64(max(maxBytes, 1)),
		Weigher:       weigh,
		StatsRecorder: evictionsOnly{Recorder: c.counters.cache},
	})
	return c
}

func weigh(k cacheKey, value []byte) uint32 {
	return uint32(min(len(k.text)+len(value)+entryOverhead, math.MaxUint32))
}

// Translate returns the translation of one key in text form, from the cache or by ask. The bytes belong to the cache
// and must not be changed. A key without translation is a *MissingError; every other error is the asker's.
func (c *Cache) Translate(ctx context.Context, q *Query, key []byte, ask Asker) ([]byte, error) {
	if key == nil {
		return nil, &MissingError{Query: q, Null: true}
	}
	if value, ok := c.entries.GetIfPresent(borrowed(q, key)); ok {
		c.cache.RecordHits(1)
		return value, nil
	}
	c.cache.RecordMisses(1)
	values, err := c.fetch(ctx, q, [][]byte{key}, ask)
	return values[0], err
}

// Fresh translates one key by ask alone: what is cached is not looked at, and the answer is not cached.
func (c *Cache) Fresh(ctx context.Context, q *Query, key []byte, ask Asker) ([]byte, error) {
	t := &trip{cache: c, query: q, ask: ask, keys: [][]byte{key}, values: make([][]byte, 1), own: make([]*flight, 1)}
	missing, err := t.fly(ctx, []int{0})
	if err == nil && missing != nil {
		err = missing
	}
	return t.values[0], err
}

// TranslateMany translates keys, asking for all that are not cached in one round trip and for none of them twice.
// Where keys have no translation the error is the *MissingError of the first of them, and the values of all others
// are still returned: nil marks the missing. After any other error the values mean nothing.
func (c *Cache) TranslateMany(ctx context.Context, q *Query, keys [][]byte, ask Asker) ([][]byte, error) {
	values := make([][]byte, len(keys))
	var misses [][]byte
	var where map[string]int // a missed key's place in misses
	var missed []int         // index into keys, for each place that a miss has to fill
	var null error
	for i, key := range keys {
		if key == nil {
			null = &MissingError{Query: q, Null: true}
			continue
		}
		if value, ok := c.entries.GetIfPresent(borrowed(q, key)); ok {
			values[i] = value
			c.cache.RecordHits(1)
			continue
		}
		if where == nil {
			where = map[string]int{}
		}
		if _, twice := where[string(key)]; !twice {
			where[string(key)] = len(misses)
			misses = append(misses, key)
		}
		missed = append(missed, i)
	}
	if misses == nil {
		return values, null
	}
	c.cache.RecordMisses(len(misses))
	fetched, err := c.fetch(ctx, q, misses, ask)
	for _, i := range missed {
		values[i] = fetched[where[string(keys[i])]]
	}
	if err == nil {
		err = null
	}
	return values, err
}

// Cached looks without asking and without counting. The bytes belong to the cache and must not be changed.
func (c *Cache) Cached(q *Query, key []byte) ([]byte, bool) {
	if key == nil {
		return nil, false
	}
	return c.entries.GetIfPresent(borrowed(q, key))
}

// Invalidate forgets one key, and keeps an answer that is under way from being cached: it may be older.
func (c *Cache) Invalidate(q *Query, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := borrowed(q, key)
	delete(c.flights, k)
	c.entries.Invalidate(k)
}

// Store puts in a translation that the caller knows without asking; it takes the place of an answer under way.
func (c *Cache) Store(q *Query, key, value []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := owned(q, key)
	delete(c.flights, k)
	c.entries.Set(k, append([]byte{}, value...)) // never nil: an empty translation is one
}

// Forget forgets every key of one query.
func (c *Cache) Forget(q *Query) {
	c.forget(func(k cacheKey) bool { return k.query == q.ID })
}

// Clear forgets everything.
func (c *Cache) Clear() {
	c.forget(func(cacheKey) bool { return true })
}

func (c *Cache) forget(which func(cacheKey) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.flights {
		if which(k) {
			delete(c.flights, k)
		}
	}
	for k := range c.entries.Keys() {
		if which(k) {
			c.entries.Invalidate(k)
		}
	}
}

// borrowed makes a key for one look: it shares the caller's bytes, so that a hit allocates nothing.
func borrowed(q *Query, key []byte) cacheKey {
	return cacheKey{query: q.ID, text: unsafe.String(unsafe.SliceData(key), len(key))}
}

// owned copies a key for the time its question is asked and its answer cached.
func owned(q *Query, key []byte) cacheKey {
	return cacheKey{query: q.ID, text: string(key)}
}

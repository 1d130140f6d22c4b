package lookup

import (
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2/stats"
)

// Stats is what the cache has done since New.
type Stats struct {
	Hits      uint64 // keys answered from the cache
	Misses    uint64 // keys that were not there, each counted once per call
	Evictions uint64 // entries pushed out by the bound, and by nothing else
	Bytes     int64  // weight of the entries held now
	Entries   int64  // entries held now

	Queries    uint64        // keys asked of a server, failed and timed-out ones and repeats included
	RoundTrips uint64        // times a server was asked, whatever the number of keys
	QueryTime  time.Duration // time spent in those round trips
}

// Stats reads the counters. It first lets the cache finish what it owes to its bound, so it is for a page or a
// scrape, not for every row.
func (c *Cache) Stats() Stats {
	c.entries.CleanUp()
	s := c.cache.Snapshot()
	return Stats{
		Hits:       s.Hits,
		Misses:     s.Misses,
		Evictions:  s.Evictions,
		Bytes:      int64(c.entries.WeightedSize()),
		Entries:    int64(c.entries.EstimatedSize()),
		Queries:    c.queries.Load(),
		RoundTrips: c.trips.Load(),
		QueryTime:  time.Duration(c.nanos.Load()),
	}
}

// counters count without a lock; hits are spread over cores.
type counters struct {
	cache   *stats.Counter
	queries *atomic.Uint64
	trips   *atomic.Uint64
	nanos   *atomic.Int64
}

func newCounters() counters {
	return counters{cache: stats.NewCounter(), queries: new(atomic.Uint64), trips: new(atomic.Uint64), nanos: new(atomic.Int64)}
}

func (c *counters) asked(keys int, took time.Duration) {
	c.queries.Add(uint64(keys))
	c.trips.Add(1)
	c.nanos.Add(int64(took))
}

// evictionsOnly keeps otter from counting looks: a cold key is looked for more than once.
type evictionsOnly struct{ stats.Recorder }

func (evictionsOnly) RecordHits(int)   {}
func (evictionsOnly) RecordMisses(int) {}

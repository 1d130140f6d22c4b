package lookup

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tenants = &Query{ID: 1, Name: "prod.public.orders.tenant_id", Attempts: 3}

// echo answers every key with "t" and the key, and counts.
type echo struct{ trips, keys atomic.Int64 }

func (e *echo) Ask(_ context.Context, _ *Query, keys [][]byte) ([]Answer, error) {
	e.trips.Add(1)
	e.keys.Add(int64(len(keys)))
	answers := make([]Answer, len(keys))
	for i, k := range keys {
		answers[i] = Answer{Value: append([]byte("t"), k...), Rows: 1}
	}
	return answers, nil
}

func TestAColdKeyIsOneMissAndAWarmOneAHit(t *testing.T) {
	t.Parallel()
	c, ask := New(1<<20), &echo{}
	for range 3 {
		if v, err := c.Translate(t.Context(), tenants, []byte("7"), ask); err != nil || string(v) != "t7" {
			t.Fatalf("got %q, %v", v, err)
		}
	}
	s := c.Stats()
	if s.Misses != 1 || s.Hits != 2 || s.Queries != 1 || s.RoundTrips != 1 || s.Entries != 1 || s.Evictions != 0 {
		t.Errorf("stats %+v", s)
	}
	if want := int64(1 + 2 + entryOverhead); s.Bytes != want {
		t.Errorf("holds %d bytes, want %d", s.Bytes, want)
	}
}

func TestTheSameKeyOfTwoQueriesIsTwoEntries(t *testing.T) {
	t.Parallel()
	c, ask := New(1<<20), &echo{}
	other := &Query{ID: 2, Name: "other"}
	for _, q := range []*Query{tenants, other} {
		if _, err := c.Translate(t.Context(), q, []byte("7"), ask); err != nil {
			t.Fatal(err)
		}
	}
	if s := c.Stats(); s.Misses != 2 || s.Entries != 2 {
		t.Errorf("stats %+v", s)
	}
	c.Forget(other)
	if _, ok := c.Cached(other, []byte("7")); ok {
		t.Error("a forgotten query's key is still cached")
	}
	if _, ok := c.Cached(tenants, []byte("7")); !ok {
		t.Error("another query's key was forgotten")
	}
	c.Clear()
	if s := c.Stats(); s.Entries != 0 || s.Evictions != 0 {
		t.Errorf("after Clear %+v; forgetting is not evicting", s)
	}
}

func TestManyKeysAreAskedOnceEachInOneRoundTrip(t *testing.T) {
	t.Parallel()
	c, ask := New(1<<20), &echo{}
	keys := [][]byte{[]byte("1"), []byte("2"), []byte("1"), {}, []byte("3"), {}}
	values, err := c.TranslateMany(t.Context(), tenants, keys, ask)
	if err != nil {
		t.Fatal(err)
	}
	for i, k := range keys {
		if string(values[i]) != "t"+string(k) {
			t.Errorf("key %q gave %q", k, values[i])
		}
	}
	if ask.trips.Load() != 1 || ask.keys.Load() != 4 {
		t.Errorf("%d round trips with %d keys, want 1 with 4", ask.trips.Load(), ask.keys.Load())
	}
	if s := c.Stats(); s.Misses != 4 || s.Hits != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestAKeyThatIsNullIsMissingWithoutBeingAsked(t *testing.T) {
	t.Parallel()
	c, ask := New(1<<20), &echo{}
	if _, err := c.Translate(t.Context(), tenants, nil, ask); Missing(err) == nil {
		t.Errorf("got %v", err)
	}
	values, err := c.TranslateMany(t.Context(), tenants, [][]byte{[]byte("1"), nil}, ask)
	if Missing(err) == nil || string(values[0]) != "t1" || values[1] != nil {
		t.Errorf("got %q, %v", values, err)
	}
	if ask.keys.Load() != 1 {
		t.Errorf("%d keys were asked, want 1", ask.keys.Load())
	}
}

func TestTheBoundHoldsAndOnlyItEvicts(t *testing.T) {
	t.Parallel()
	const bound = 64 << 10
	c, ask := New(bound), &echo{}
	for i := range 5_000 {
		if _, err := c.Translate(t.Context(), tenants, []byte(strconv.Itoa(i)), ask); err != nil {
			t.Fatal(err)
		}
	}
	s := c.Stats()
	if s.Bytes > bound || s.Bytes < bound/2 {
		t.Errorf("holds %d bytes of %d", s.Bytes, bound)
	}
	if int64(s.Evictions)+s.Entries != 5_000 {
		t.Errorf("%d evictions and %d entries of 5,000", s.Evictions, s.Entries)
	}
}

func TestACacheOfOneEntryIsRightOnlySlow(t *testing.T) {
	t.Parallel()
	for _, bound := range []int64{0, 1, entryOverhead + 10} {
		c, ask := New(bound), &echo{}
		for i := range 300 {
			k := []byte(strconv.Itoa(i % 7))
			if v, err := c.Translate(t.Context(), tenants, k, ask); err != nil || string(v) != "t"+string(k) {
				t.Fatalf("got %q, %v", v, err)
			}
		}
	}
}

func TestAHitAllocatesNothing(t *testing.T) {
	c, ask := New(1<<20), &echo{}
	key := []byte("a key longer than what fits a small buffer on the stack")
	if _, err := c.Translate(t.Context(), tenants, key, ask); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(10_000, func() { _, _ = c.Translate(ctx, tenants, key, ask) }); n != 0 {
		t.Errorf("%v allocations a hit", n)
	}
}

func TestTheCallersKeyMayBeOverwritten(t *testing.T) {
	t.Parallel()
	c, ask := New(1<<20), &echo{}
	key := []byte("1")
	if _, err := c.Translate(t.Context(), tenants, key, ask); err != nil {
		t.Fatal(err)
	}
	key[0] = '2'
	if _, ok := c.Cached(tenants, []byte("2")); ok {
		t.Error("the cache shares the caller's bytes")
	}
	if v, _ := c.Cached(tenants, []byte("1")); string(v) != "t1" {
		t.Errorf("got %q", v)
	}
}

func TestOverheadIsAboutWhatAnEntryCosts(t *testing.T) {
	const n = 100_000
	c, ask := New(1<<30), &echo{}
	before := heap()
	for i := range n {
		if _, err := c.Translate(t.Context(), tenants, []byte(fmt.Sprintf("%08d", i)), ask); err != nil {
			t.Fatal(err)
		}
	}
	real := float64(heap()-before) / n
	weighed := float64(c.Stats().Bytes) / n
	t.Logf("%.0f bytes an entry, weighed as %.0f", real, weighed)
	if real > 2*weighed {
		t.Errorf("an entry costs %.0f bytes and is weighed as %.0f", real, weighed)
	}
	runtime.KeepAlive(c)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkHit(b *testing.B) {
	c, ask := New(64<<20), &echo{}
	keys := make([][]byte, 1_000)
	for i := range keys {
		keys[i] = []byte(strconv.Itoa(i * 7919))
		_, _ = c.Translate(b.Context(), tenants, keys[i], ask)
	}
	ctx := b.Context()
	b.ReportAllocs()
	b.Run("one goroutine", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, _ = c.Translate(ctx, tenants, keys[i%len(keys)], ask)
		}
	})
	b.Run("all cores", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(p *testing.PB) {
			for i := 0; p.Next(); i++ {
				_, _ = c.Translate(ctx, tenants, keys[i%len(keys)], ask)
			}
		})
	})
}

func TestAnEmptyTranslationIsOne(t *testing.T) {
	t.Parallel()
	c, q := New(1<<20), &Query{ID: 1, Attempts: 1}
	c.Store(q, []byte{}, nil)
	value, err := c.Translate(t.Context(), q, []byte{}, nil)
	if many, errMany := c.TranslateMany(t.Context(), q, [][]byte{{}}, nil); value == nil || err != nil || many[0] == nil || errMany != nil {
		t.Errorf("got %v, %v, and %v, %v", value, err, many, errMany)
	}
}

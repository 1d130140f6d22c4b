package lookup

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAbsenceIsAskedAgainAndNeverCached(t *testing.T) {
	t.Parallel()
	for name, absent := range map[string]Answer{
		"no row":       {},
		"NULL":         {Rows: 1, Null: true},
		"several rows": {Rows: 2, Value: []byte("1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, asked := New(1<<20), 0
				never := AskerFunc(func(_ context.Context, _ *Query, keys [][]byte) ([]Answer, error) {
					asked++
					return slices.Repeat([]Answer{absent}, len(keys)), nil
				})
				_, err := c.Translate(t.Context(), tenants, []byte("secret"), never)
				missing := Missing(err)
				if missing == nil || missing.Key != "secret" || missing.Rows != absent.Rows || missing.Null != absent.Null {
					t.Fatalf("got %v", err)
				}
				if asked != 3 {
					t.Errorf("asked %d times, want 3", asked)
				}
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the message shows the key: %s", err)
				}
				if v, err := c.Translate(t.Context(), tenants, []byte("secret"), &echo{}); err != nil || string(v) != "tsecret" {
					t.Errorf("the mapping row that came was not seen: %q, %v", v, err)
				}
			})
		})
	}
}

func TestAMappingThatComesBetweenTwoAttemptsIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, asked := New(1<<20), 0
		late := AskerFunc(func(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error) {
			if asked++; asked == 1 {
				return []Answer{{Rows: 1, Value: []byte("a")}, {}}, nil
			}
			if len(keys) != 1 || string(keys[0]) != "2" {
				t.Errorf("attempt %d asks %q, want the missing key alone", asked, keys)
			}
			return (&echo{}).Ask(ctx, q, keys)
		})
		values, err := c.TranslateMany(t.Context(), tenants, [][]byte{[]byte("1"), []byte("2")}, late)
		if err != nil || string(values[0]) != "a" || string(values[1]) != "t2" {
			t.Errorf("got %q, %v", values, err)
		}
	})
}

func TestAnErrorOfTheAskerIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	c, asked, broken := New(1<<20), 0, errors.New("connection reset")
	_, err := c.Translate(t.Context(), tenants, []byte("1"), AskerFunc(func(context.Context, *Query, [][]byte) ([]Answer, error) {
		asked++
		return nil, broken
	}))
	if !errors.Is(err, broken) || Missing(err) != nil || asked != 1 {
		t.Errorf("asked %d times, got %v", asked, err)
	}
	if s := c.Stats(); s.Queries != 1 {
		t.Errorf("the failed query is not counted: %+v", s)
	}
}

func TestATimeoutIsNoAbsence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		q := &Query{ID: 1, Name: "q", Attempts: 3, Timeout: time.Second}
		_, err := c.Translate(t.Context(), q, []byte("1"), AskerFunc(func(ctx context.Context, _ *Query, _ [][]byte) ([]Answer, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}))
		if !errors.Is(err, context.DeadlineExceeded) || Missing(err) != nil {
			t.Errorf("got %v", err)
		}
		if s := c.Stats(); s.Queries != 1 || s.QueryTime != time.Second {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestManyGoroutinesAskForAKeyOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, ask := New(1<<20), &echo{}
		slow := AskerFunc(func(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error) {
			time.Sleep(time.Second)
			return ask.Ask(ctx, q, keys)
		})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if v, err := c.Translate(t.Context(), tenants, []byte("1"), slow); err != nil || string(v) != "t1" {
					t.Errorf("got %q, %v", v, err)
				}
			})
		}
		all.Wait()
		if ask.keys.Load() != 1 {
			t.Errorf("asked %d times", ask.keys.Load())
		}
	})
}

func TestACancelledLeaderDoesNotCancelItsFollowers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		leaderContext, cancel := context.WithCancel(t.Context())
		stuck := AskerFunc(func(ctx context.Context, _ *Query, _ [][]byte) ([]Answer, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := c.Translate(leaderContext, tenants, []byte("1"), stuck); !errors.Is(err, context.Canceled) {
				t.Errorf("the leader got %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			all.Go(func() {
				if v, err := c.Translate(t.Context(), tenants, []byte("1"), &echo{}); err != nil || string(v) != "t1" {
					t.Errorf("a follower got %q, %v", v, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
	})
}

func TestAFollowerAsksForItselfWhatItsLeaderDidNotFind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New(1 << 20)
		q := &Query{ID: 1, Name: "q", Attempts: 1}
		// Each leads one key that it does not find and follows the other's: neither may wait for ever.
		blind := func(own string) Asker {
			return AskerFunc(func(_ context.Context, _ *Query, keys [][]byte) ([]Answer, error) {
				time.Sleep(time.Second)
				return make([]Answer, len(keys)), nil
			})
		}
		var all sync.WaitGroup
		for _, keys := range [][]string{{"a", "b"}, {"b", "c"}, {"c", "a"}} {
			all.Go(func() {
				_, err := c.TranslateMany(t.Context(), q, [][]byte{[]byte(keys[0]), []byte(keys[1])}, blind(keys[0]))
				if Missing(err) == nil {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
	})
}

func TestAnAnswerInvalidatedWhileItWasAskedIsUsedButNotCached(t *testing.T) {
	t.Parallel()
	for name, invalidate := range map[string]func(*Cache){
		"its key":      func(c *Cache) { c.Invalidate(tenants, []byte("1")) },
		"its query":    func(c *Cache) { c.Forget(tenants) },
		"the whole":    func(c *Cache) { c.Clear() },
		"nothing else": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := New(1 << 20)
			v, err := c.Translate(t.Context(), tenants, []byte("1"), AskerFunc(func(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error) {
				if invalidate != nil {
					invalidate(c)
				}
				return (&echo{}).Ask(ctx, q, keys)
			}))
			if err != nil || string(v) != "t1" {
				t.Fatalf("got %q, %v", v, err)
			}
			if _, cached := c.Cached(tenants, []byte("1")); cached != (invalidate == nil) {
				t.Errorf("cached: %t", cached)
			}
		})
	}
}

// Readers, writers of mappings and forgetting at once: a translation read after its invalidation is never the one
// before it.
func TestNoStaleTranslationIsEverSeen(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const keys = 16
	c := New(keys / 2 * 110)
	var truth [keys]atomic.Int64 // what the mapping table says
	server := AskerFunc(func(_ context.Context, _ *Query, ks [][]byte) ([]Answer, error) {
		answers := make([]Answer, len(ks))
		for i, k := range ks {
			n, _ := strconv.Atoi(string(k))
			answers[i] = Answer{Rows: 1, Value: strconv.AppendInt(nil, truth[n].Load(), 10)}
		}
		runtime.Gosched()
		return answers, nil
	})
	var all sync.WaitGroup
	for g := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, g))
			for range 5_000 {
				n := r.IntN(keys)
				key := []byte(strconv.Itoa(n))
				if r.IntN(4) == 0 {
					truth[n].Add(1)
					c.Invalidate(tenants, key)
					continue
				}
				least := truth[n].Load() - 4 // others may have changed it and not invalidated yet: one each at most
				many, err := c.TranslateMany(t.Context(), tenants, [][]byte{key, []byte(strconv.Itoa(r.IntN(keys)))}, server)
				if err != nil {
					t.Error(err)
					return
				}
				if got, _ := strconv.ParseInt(string(many[0]), 10, 64); got < least {
					t.Errorf("key %d is %d, at least %d was invalidated", n, got, least)
				}
			}
		})
	}
	all.Wait()
}

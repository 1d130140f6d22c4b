package copier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a Loader that writes down what it is asked.
type recorder struct {
	mu     sync.Mutex
	calls  []string
	rows   map[string]int
	refuse func(call string) error
	chunk  *pg.Chunk
}

func (r *recorder) call(format string, args ...any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := fmt.Sprintf(format, args...)
	r.calls = append(r.calls, c)
	if r.refuse != nil {
		return r.refuse(c)
	}
	return nil
}

func (r *recorder) Begin(_ context.Context, c *pg.Chunk) error {
	r.chunk = c
	return r.call("begin %s %d", c.Copy.From.Name.Table, c.Number)
}

func (r *recorder) Row(_ context.Context, _ []byte, key []pg.Datum) error {
	r.rows[r.chunk.Copy.From.Name.Table]++
	if r.refuse != nil {
		return r.refuse(fmt.Sprintf("row %s", key[0].Bytes))
	}
	return nil
}
func (r *recorder) Commit(context.Context) error { return r.call("commit") }
func (r *recorder) Abort()                       { _ = r.call("abort") }
func (r *recorder) Close()                       { _ = r.call("close") }

func startCopy(t *testing.T, r *recorder) (Config, *Snapshot) {
	t.Helper()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table small (id bigint primary key); insert into small values (1);
		create table big (id bigint primary key, v text); insert into big select i, repeat('v', 100) from generate_series(1, 1000) i; create table none (id bigint primary key)`)
	snapshot, err := NewSnapshot(t.Context(), db.Shard(0), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(snapshot.Close)
	catalog, err := pg.ReadCatalog(t.Context(), snapshot.Conn())
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Shard: db.Shard(0), App: "copy", Snapshot: snapshot.ID, Loader: func(int) Loader { return r }}
	for _, table := range catalog.Roots() {
		plan, err := Plan(table, table, []string{"id"}, true, Text)
		if err != nil {
			t.Fatal(err)
		}
		config.Chunks = append(config.Chunks, Split(plan, 10)...)
	}
	return config, snapshot
}

func TestTheLargestTableIsCopiedFirst(t *testing.T) {
	t.Parallel()
	r := &recorder{rows: map[string]int{}}
	config, _ := startCopy(t, r)
	paced := 0
	config.Pace = func(context.Context) error { paced++; return nil }
	if err := Run(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	want := []string{"begin big 0", "commit", "begin big 1", "commit", "begin small 0", "commit", "begin none 0", "commit", "close"}
	if !slices.Equal(r.calls, want) || paced != 4 || r.rows["big"] != 1000 || r.rows["small"] != 1 {
		t.Errorf("%v, paced %d times, rows %v", r.calls, paced, r.rows)
	}
}

func TestWhatALoaderRefusesEndsTheCopyWithThatError(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	for _, at := range []string{"begin big 1", "row 600", "commit"} {
		r := &recorder{rows: map[string]int{}, refuse: func(call string) error {
			if call == at {
				return refused
			}
			return nil
		}}
		config, _ := startCopy(t, r)
		err := Run(t.Context(), config)
		if !errors.Is(err, refused) || !strings.HasPrefix(err.Error(), "copy chunk ") {
			t.Errorf("at %q the copy ended with %v", at, err)
		}
		if n := len(r.calls); n < 2 || r.calls[n-2] != "abort" || r.calls[n-1] != "close" {
			t.Errorf("at %q: %v", at, r.calls)
		}
	}
}

func TestThePaceMayEndTheCopy(t *testing.T) {
	t.Parallel()
	r := &recorder{rows: map[string]int{}}
	config, _ := startCopy(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	config.Pace = func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }
	if err := Run(ctx, config); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
}

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// Accounts that are paid from and to within a tenant: their total and their number never change.
const (
	accounts      = 50
	accountsTotal = 100 * accounts
	accountsRule  = "[[sharded_tables]]\nname = \"accounts\"\ncolumn = \"tenant_id\"\n"
)

// totals is a payer and a reader that follow /layout, each by itself, and know nothing else of the move.
type totals struct {
	r      *rig
	layout atomic.Int64
	stop   context.CancelFunc
	all    sync.WaitGroup

	mu       sync.Mutex
	readings int
	payments int
	followed []int // versions, in the order in which they came to serve
	wrong    []string
}

// watchTotals begins to pay and to read; the worker need not run yet.
func (r *rig) watchTotals(t *testing.T) *totals {
	t.Helper()
	for _, db := range r.sources {
		db.Exec(t, `create table accounts (id bigint, tenant_id bigint, amount bigint not null, primary key (id, tenant_id))`)
	}
	places := pgtest.NewPlaces(t)
	for tenant := range 10 {
		source, err := places.Of(t.Context(), "bigint", strconv.Itoa(tenant), len(r.sources))
		if err != nil {
			t.Fatal(err)
		}
		r.sources[source].Exec(t, fmt.Sprintf(`insert into accounts select g, g %% 10, 100 from generate_series(1, %d) g where g %% 10 = %d`, accounts, tenant))
	}
	ctx, stop := context.WithCancel(t.Context())
	c := &totals{r: r, stop: stop}
	c.layout.Store(1)
	c.all.Go(func() {
		_ = layout.Watch(ctx, layout.Watched{URL: "http://" + r.listen}, func(l layout.Record) { // ends with ctx
			c.layout.Store(int64(l.Version))
			c.mu.Lock()
			defer c.mu.Unlock()
			c.followed = append(c.followed, l.Version)
		})
	})
	c.all.Go(func() { c.each(ctx, t, 50*time.Millisecond, c.read) })
	c.all.Go(func() { c.each(ctx, t, 5*time.Millisecond, c.pay) })
	t.Cleanup(func() { stop(); c.all.Wait() })
	return c
}

// each does something again and again, with a session to each shard of the layout that serves.
func (c *totals) each(ctx context.Context, t *testing.T, every time.Duration, do func(context.Context, []*pgx.Conn) error) {
	sides := [][]*pgx.Conn{pgtest.Conns(t, c.r.sources), pgtest.Conns(t, c.r.shards)}
	for tick := time.NewTicker(every); ctx.Err() == nil; <-tick.C {
		if err := do(ctx, sides[c.layout.Load()-1]); err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.wrong = append(c.wrong, err.Error())
			c.mu.Unlock()
			return
		}
	}
}

func (c *totals) read(ctx context.Context, shards []*pgx.Conn) error {
	var total, rows int
	for _, conn := range shards {
		var t, n int
		if err := conn.QueryRow(ctx, `select coalesce(sum(amount), 0), count(*) from accounts`).Scan(&t, &n); err != nil {
			return err
		}
		total, rows = total+t, rows+n
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readings++
	if total != accountsTotal || rows != accounts {
		c.wrong = append(c.wrong, fmt.Sprintf("reading %d: %d in %d rows, on %d shards", c.readings, total, rows, len(shards)))
	}
	return nil
}

// pay moves money between two accounts of a tenant, wherever that lives. What is refused is not paid.
func (c *totals) pay(ctx context.Context, shards []*pgx.Conn) error {
	from := int64(1 + rand.IntN(accounts-10))
	for _, conn := range shards {
		tag, err := conn.Exec(ctx, `update accounts set amount = amount + case id when $1::bigint then -7 else 7 end where id in ($1::bigint, $1::bigint + 10)`, from)
		if pg.Code(err) == "25006" {
			return nil
		}
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 2 {
			c.mu.Lock()
			c.payments++
			c.mu.Unlock()
		}
	}
	return nil
}

// follows waits until the payer and the reader use a layout.
func (c *totals) follows(t *testing.T, version int64) {
	t.Helper()
	for c.layout.Load() != version {
		if t.Context().Err() != nil {
			t.Fatalf("/layout never says that layout %d serves", version)
		}
		pause(t.Context())
	}
}

// check ends both: they followed these layouts, and no other total was ever read.
func (c *totals) check(t *testing.T, followed ...int) {
	t.Helper()
	c.stop()
	c.all.Wait()
	t.Logf("%d readings, %d payments, layouts %v", c.readings, c.payments, c.followed)
	if len(c.wrong) > 0 || c.readings < 20 || c.payments < 20 || !slices.Equal(c.followed, followed) {
		t.Errorf("followed %v, want %v; %d readings and %d payments; wrong: %q", c.followed, followed, c.readings, c.payments, c.wrong)
	}
}

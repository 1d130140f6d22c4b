package move_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// Mappings change at random, under writers that use them, while the worker is ended or killed at random moments and another comes:
// tenants get other parents, their mapping rows go and come again and come late, orders go to other tenants. From one source and
// from two, with caches of one entry and of any number. At the end both sides are equal, and every row is where a join with the
// mapping as it is puts it. REMAP_SEED replays a run's statements (how writers and the worker interleave is the machine's),
// REMAP_SEEDS is how many are run.
func TestRandomMappingsAreFollowed(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("REMAP_SEEDS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sources := range []int{1, 2} {
		for _, seed := range pgtest.Seeds(t, "REMAP_SEED", n) {
			t.Run(fmt.Sprintf("%d sources, REMAP_SEED=%d", sources, seed), func(t *testing.T) {
				t.Parallel()
				remapRun(t, sources, rand.New(rand.NewPCG(seed, 1)))
			})
		}
	}
}

const remapSchema = `create table tenants (id bigint primary key, parent bigint, note text);
	create table users (id int primary key, tenant bigint, a int, big text); alter table users alter big set storage external;
	create table notes (tenant bigint, a int); alter table notes replica identity full;
	create table orders (id bigint primary key, tenant bigint not null); create table items (id int primary key, tenant bigint not null, order_id bigint, a int);
	create table visits (id int primary key, tenant bigint not null, order_id bigint, a int)`

func remapRun(t *testing.T, sources int, r *rand.Rand) {
	s := newSmallMove(t, r.IntN(3)+2, "tenant", remapSchema)
	s.places = newPlaces(t)
	d := &s.config.Destination
	for table, query := range map[string]string{"users": `select coalesce(parent, id) from tenants where id = $1`,
		"notes": `select coalesce(t.parent, t.id) from tenants t where t.id = $1`, "items": `SELECT tenant FROM orders WHERE id = $1`,
		"visits": `select coalesce(t.parent, t.id) from orders o join tenants t on t.id = o.tenant where o.id = $1`} {
		column := map[bool]string{true: "order_id", false: "tenant"}[table == "items" || table == "visits"]
		d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: table, Columns: []string{column}, LookupQuery: query, DataType: "bigint"})
	}
	d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants"}}}
	if sources == 2 {
		s.addSource(remapSchema)
		s.config.Source.Spec.Omni = []layout.OmniTables{{Database: s.config.Source.Database, Tables: []string{"tenants"}}}
	}
	s.config.LookupBytes = []int64{1, 2000, 64 << 20}[r.IntN(3)]
	w := &remapWriter{Rand: rand.New(rand.NewPCG(r.Uint64(), 2)), s: s}
	for _, db := range s.sources {
		w.conns = append(w.conns, db.Conn(t))
	}
	for range 200 {
		w.write(t.Context())
	}
	w.settle(t.Context())

	streams, done := make(chan struct{}), make(chan struct{})
	var writing errgroup.Group
	writing.Go(func() error {
		defer close(done)
		for i := range remapWrites {
			if i == remapWrites/4 { // enough happened before; a copy does not go on without its mappings
				w.settle(t.Context())
				<-streams
			}
			w.write(t.Context())
			time.Sleep(time.Duration(w.IntN(8)) * time.Millisecond)
		}
		w.settle(t.Context())
		return w.err
	})
	streaming := sync.OnceFunc(func() { close(streams) })
	defer streaming()
	ready := func(ctx context.Context) (bool, error) {
		streaming()
		select {
		case <-done:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	links := []*pgtest.Relay{s.link(&s.config.Source, s.sources), s.link(d, s.shards)}
	runs, kills := 0, 0
	for over := false; !over; runs++ {
		ctx, cancel := context.WithCancel(t.Context())
		var end *time.Timer
		select {
		case <-done:
			over = true
		default:
			kill := r.IntN(2) == 0
			end = time.AfterFunc(time.Duration(r.IntN(4000)+200)*time.Millisecond, func() {
				defer cancel()
				for _, link := range links {
					if link.Refuse(kill); kill {
						link.Cut()
					}
				}
			})
			if kill {
				kills++
			}
		}
		worker := s.move()
		err := worker.Migrate(ctx, move.MigrateOptions{Ready: ready})
		if end != nil && !end.Stop() {
			<-ctx.Done() // its servers are there again only then
		}
		worker.Close()
		for _, link := range links {
			link.Refuse(false)
		}
		ended := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			over = true
		case !over && (ended || lookup.Missing(err) != nil): // its mapping row has not come yet
		default:
			t.Fatal(err)
		}
	}
	if err := writing.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d shards, a cache of %d bytes, %d runs, %d killed; %v", len(s.shards), s.config.LookupBytes, runs, kills, w.done)
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
	s.sameRows(pgtest.RowsOptions{}, "users", "notes", "orders", "items", "visits")
	const parent = `(select coalesce(parent, id) from tenants where id = r.tenant)`
	s.placedBy("users", "tenant", parent)
	s.placedBy("notes", "tenant", parent)
	s.placedBy("orders", "tenant", "r.tenant")
	s.placedBy("items", "order_id", `(select tenant from orders where id = r.order_id)`)
	s.placedBy("visits", "order_id", `(select coalesce(t.parent, t.id) from orders o join tenants t on t.id = o.tenant where o.id = r.order_id)`)
}

// link puts a relay between the worker and a side, whose databases are of one server. A worker whose links are all cut and
// that is then ended leaves what a killed one leaves.
func (s *smallMove) link(side *move.Side, dbs []*pgtest.DB) *pgtest.Relay {
	relay := pgtest.NewRelay(s.t, dbs[0].Cluster.Addr())
	for n, db := range dbs {
		side.Shards[n] = db.Via(relay).Shard(n)
	}
	return relay
}

const remapWrites = 400

// remapWriter is the application. Tenants, which every source has, are written by it alone, on the first source first.
type remapWriter struct {
	*rand.Rand
	s     *smallMove
	conns []*pgx.Conn
	own   [][]int // by source: tenants whose rows it has
	next  int
	done  [8]int
	err   error
}

const remapTenants = 24

// of gives a tenant whose rows are of a source, by PostgreSQL's own hash partitioning.
func (w *remapWriter) of(ctx context.Context, source int) int {
	if w.own == nil {
		w.own = make([][]int, len(w.conns))
		for tenant := 1; tenant <= remapTenants; tenant++ {
			shard, err := w.s.places.of(ctx, "bigint", strconv.Itoa(tenant), len(w.conns))
			if err != nil {
				w.err = err
			}
			w.own[shard] = append(w.own[shard], tenant)
		}
	}
	return w.own[source][w.IntN(len(w.own[source]))]
}

func (w *remapWriter) exec(ctx context.Context, source int, sql string, args ...any) {
	if w.err == nil {
		if _, err := w.conns[source].PgConn().Exec(ctx, fmt.Sprintf(sql, args...)).ReadAll(); err != nil {
			w.err = fmt.Errorf("%w in %s", err, fmt.Sprintf(sql, args...))
		}
	}
}

func (w *remapWriter) everywhere(ctx context.Context, sql string, args ...any) {
	for source := range w.conns {
		w.exec(ctx, source, sql, args...)
	}
}

func (w *remapWriter) parent() string {
	if w.IntN(3) == 0 {
		return "null"
	}
	return strconv.Itoa(w.IntN(remapTenants) + 1)
}

// write is one transaction, or, of tenants, one on each source.
func (w *remapWriter) write(ctx context.Context) {
	source := w.IntN(len(w.conns))
	tenant, other, kind := w.of(ctx, source), w.of(ctx, source), w.IntN(20)
	w.next++
	id := w.next*2 + source // no two sources have one
	switch {
	case kind < 5: // its tenant may have no mapping row yet, or none any more
		w.done[0]++
		w.exec(ctx, source, `insert into users values (%[1]d, %[2]d, 0, repeat('%[1]d ', %[3]d)); insert into notes values (%[2]d, %[1]d)`, id, tenant, w.IntN(2)*1000+1)
	case kind < 8:
		w.done[1]++
		w.exec(ctx, source, `insert into items select %[1]d, %[2]d, %[1]d, g from generate_series(1, 1) g; insert into orders values (%[1]d, %[2]d); insert into visits values (%[1]d, %[2]d, %[1]d, 0)`, id, tenant)
	case kind < 10:
		w.done[2]++
		w.exec(ctx, source, `update users set a = a + 1 where tenant = %[1]d; update notes set a = a + 1 where tenant = %[2]d and a %% 3 = 0; update items set a = a + 1 where order_id %% 7 = %[3]d; update visits set a = a + 1 where order_id %% 7 = %[3]d`, tenant, other, w.IntN(7))
	case kind < 12:
		w.done[3]++
		w.exec(ctx, source, `update users set tenant = %[2]d where tenant = %[1]d and id %% 5 = %[3]d; update notes set tenant = %[1]d where tenant = %[2]d and a %% 4 = 1; delete from users where tenant = %[2]d and id %% 11 = %[3]d`, tenant, other, w.IntN(5))
	case kind < 14:
		w.done[4]++
		w.exec(ctx, source, `update orders set tenant = %[2]d where tenant = %[1]d; update items set order_id = (select id from orders where tenant = %[2]d limit 1) where id %% 9 = %[3]d and exists (select from orders where tenant = %[2]d)`, tenant, other, w.IntN(9))
	case kind < 17:
		w.done[5]++
		w.everywhere(ctx, `update tenants set parent = %s, note = repeat('n', %d) where id = %d`, w.parent(), w.IntN(50), tenant)
	case kind < 18: // its rows stay
		w.done[6]++
		w.everywhere(ctx, `delete from tenants where id = %d`, tenant)
	default:
		w.done[7]++
		w.everywhere(ctx, `insert into tenants values (%d, %s) on conflict (id) do update set parent = excluded.parent`, tenant, w.parent())
	}
}

// settle gives every tenant its mapping row.
func (w *remapWriter) settle(ctx context.Context) {
	for tenant := 1; tenant <= remapTenants; tenant++ {
		parent := w.parent()
		w.everywhere(ctx, `insert into tenants values (%d, %s) on conflict do nothing`, tenant, parent)
	}
}

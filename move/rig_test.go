package move_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// rig is a move between databases of real clusters with the workload's tables and an application that writes to them.
type rig struct {
	t       *testing.T
	sources []*pgtest.DB
	shards  []*pgtest.DB
	config  move.Config
	load    *pgtest.Workload
	serving atomic.Int64 // layout the application follows
	places  *places
}

// newRig makes m source databases, filled, and n empty ones.
func newRig(t *testing.T, m, n int, options pgtest.WorkloadOptions) *rig {
	t.Helper()
	r := &rig{t: t, places: newPlaces(t)}
	cluster := pgtest.Shared(t)
	for range m {
		db := cluster.Database(t)
		db.Exec(t, pgtest.WorkloadSchema)
		if m > 1 { // an old row must tell whose it is
			db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
		}
		r.sources = append(r.sources, db)
	}
	for range n {
		r.shards = append(r.shards, pgtest.SharedDestination(t).Database(t))
	}
	r.serving.Store(1)
	r.config = move.Config{
		Name: "test", Source: side("app", 1, r.sources), Destination: side("app_sharded", 2, r.shards),
		CreateSchema: true, Owners: true, Grants: true, LookupBytes: 64 << 20, LookupTimeout: 5 * time.Second, LookupAttempts: 3,
		CopyWorkers: 2, CopyFormat: copier.Auto, MaxFreeze: 10 * time.Second, LockTimeout: 500 * time.Millisecond, Attempts: 10,
		MaxLag: 16 << 20, MustVerify: true, Sequences: "stride", StateDir: t.TempDir(), Address: "127.0.0.1:1",
	}
	if options.Seed == 0 {
		options.Seed = rand.Uint64()
	}
	t.Logf("seed %d", options.Seed)
	options.Target, options.All, options.Omni = r.target, r.all, []string{"tenants"}
	r.load = pgtest.NewWorkload(options)
	fill := pgtest.FillSizes{Users: 20, Orders: 30, Items: 3, Documents: 20, Events: 20, Countries: 50}
	if err := r.load.Fill(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	return r
}

// side has the workload's rules: in the new layout users and documents live with their tenant's parent; items live with
// their order's tenant, the rest goes by its own key.
func side(database string, version int, dbs []*pgtest.DB) move.Side {
	s := move.Side{Database: database, Layout: version}
	for n, db := range dbs {
		s.Shards = append(s.Shards, db.Shard(n))
	}
	parent := ""
	if version > 1 {
		parent = "SELECT COALESCE(parent_tenant_id, id) FROM tenants WHERE id = $1"
	}
	s.Spec = layout.Spec{
		Tables: []layout.ShardedTable{
			{Database: database, Name: "users", Columns: []string{"tenant_id"}, LookupQuery: parent},
			{Database: database, Name: "orders", Columns: []string{"tenant_id"}},
			{Database: database, Name: "documents", Columns: []string{"tenant_id"}, LookupQuery: parent},
			{Database: database, Name: "events", Columns: []string{"tenant_id"}},
			{Database: database, Name: "order_items", Columns: []string{"order_id"}, LookupQuery: "SELECT tenant_id FROM orders WHERE id = $1"},
		},
		Omni: []layout.OmniTables{{Database: database, Tables: []string{"tenants", "countries"}}},
	}
	return s
}

// noteRule is for tests that add a table notes.
var noteRule = layout.ShardedTable{Database: "app_sharded", Name: "notes", Columns: []string{"tenant_id"}}

// places names shards by PostgreSQL's own declaration of hash partitions, without any code of ours.
type places struct {
	mu    sync.Mutex
	conn  *pgx.Conn
	known map[string]int
}

func newPlaces(t *testing.T) *places {
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table of_bigint (k bigint) partition by hash (k); create table of_uuid (k uuid) partition by hash (k)`)
	return &places{conn: db.Conn(t), known: map[string]int{}}
}

func (p *places) of(ctx context.Context, typ, key string, shards int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := fmt.Sprint(typ, key, "/", shards)
	if s, ok := p.known[id]; ok {
		return s, nil
	}
	var s int
	err := p.conn.QueryRow(ctx, fmt.Sprintf(`select r from generate_series(0, $1 - 1) r
		where satisfies_hash_partition('of_%[1]s'::regclass, $1, r, $2::text::%[1]s)`, typ), shards, key).Scan(&s)
	p.known[id] = s
	return s, err
}

// target sends a tenant's rows to the layout the application follows.
func (r *rig) target(ctx context.Context, table string, tenant int64) (string, error) {
	dbs, translate := r.sources, false
	if r.serving.Load() == 2 {
		dbs, translate = r.shards, true
	}
	typ, key := "bigint", strconv.FormatInt(tenant, 10)
	switch {
	case table == "events":
		typ, key = "uuid", pgtest.EventTenant(tenant)
	case (table == "users" || table == "documents") && translate:
		key = strconv.FormatInt(pgtest.RootTenant(tenant), 10)
	}
	shard, err := r.places.of(context.WithoutCancel(ctx), typ, key, len(dbs))
	return dbs[shard].URL(), err
}

func (r *rig) all(context.Context) (urls []string, err error) {
	dbs := r.sources
	if r.serving.Load() == 2 {
		dbs = r.shards
	}
	for _, db := range dbs {
		urls = append(urls, db.URL())
	}
	return urls, nil
}

// follow lets the application see the layout record of the destination's first shard.
func (r *rig) follow(ctx context.Context) {
	conn, err := pgx.Connect(ctx, r.shards[0].URL())
	if err != nil {
		return
	}
	defer conn.Close(context.Background())
	for ctx.Err() == nil && r.serving.Load() != 2 {
		var version int64
		if err := conn.QueryRow(ctx, `select version from pgreshard.serving`).Scan(&version); err == nil {
			r.serving.Store(version)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// write runs the application until the returned func is called.
func (r *rig) write() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.load.Run(ctx); err != nil {
			r.t.Errorf("application: %v", err)
		}
	})
	wg.Go(func() { r.follow(ctx) })
	once := sync.OnceFunc(func() { cancel(); wg.Wait() })
	r.t.Cleanup(once)
	return once
}

func (r *rig) move() *move.Move {
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	m := move.New(r.config, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	r.t.Cleanup(m.Close)
	return m
}

// conns opens a connection to each database.
func (r *rig) conns(dbs []*pgtest.DB) (out []*pgx.Conn) {
	for _, db := range dbs {
		out = append(out, db.Conn(r.t))
	}
	return out
}

// compare finds, by plain SQL alone, any row that differs, and any that stands on another shard than PostgreSQL's hash
// partitioning (or its mapping) names.
func (r *rig) compare() {
	r.t.Helper()
	for _, table := range pgtest.WorkloadTables() {
		omni := table == "tenants" || table == "countries"
		if err := pgtest.SameRows(r.t.Context(), r.conns(r.sources), r.conns(r.shards), table, pgtest.RowsOptions{Omni: omni}); err != nil {
			r.t.Error(err)
		}
	}
	r.placed()
}

// placed looks for rows on a shard that is not theirs.
func (r *rig) placed() {
	r.t.Helper()
	n := len(r.shards)
	for shard, db := range r.shards {
		db.Exec(r.t, `create table of_bigint (k bigint) partition by hash (k); create table of_uuid (k uuid) partition by hash (k)`)
		is := func(table, key string) string {
			return fmt.Sprintf("satisfies_hash_partition('%s'::regclass, %d, %d, %s)", table, n, shard, key)
		}
		for table, wrong := range map[string]string{
			"orders":      "select count(*) from orders where not " + is("of_bigint", "tenant_id"),
			"documents":   "select count(*) from documents d left join tenants t on t.id = d.tenant_id where t.id is null or not " + is("of_bigint", "coalesce(t.parent_tenant_id, t.id)"),
			"events":      "select count(*) from events where not " + is("of_uuid", "tenant_id"),
			"users":       "select count(*) from users u left join tenants t on t.id = u.tenant_id where t.id is null or not " + is("of_bigint", "coalesce(t.parent_tenant_id, t.id)"),
			"order_items": "select count(*) from order_items i left join orders o on o.id = i.order_id where o.id is null",
		} {
			if got := db.Query(r.t, wrong)[0][0]; got != "0" {
				r.t.Errorf("shard %d holds %s rows of %s that are not its own", shard, got, table)
			}
		}
		db.Exec(r.t, `drop table of_bigint, of_uuid`)
	}
}

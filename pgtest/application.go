package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Application is the workload's application while its database is moved: it writes to the sources, and to the shards
// as long as the layout record of the first of them says that the second layout serves. In that layout users and
// documents live with their tenant's parent, items with their order's tenant, all else by its own key.
type Application struct {
	Sources, Shards []*DB
	Load            *Workload

	serving atomic.Int64
	stays   atomic.Bool
	places  *Places
	slots   [2][]int // of the first and the second layout: the shard of each slot, none where keys go modulo the shards
}

// NewApplication makes the workload and fills the sources, which have its tables. Without a seed it takes one and logs it.
func NewApplication(t testing.TB, sources, shards []*DB, o WorkloadOptions) *Application {
	t.Helper()
	a := &Application{Sources: sources, Shards: shards, places: NewPlaces(t), slots: o.Slots}
	a.serving.Store(1)
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	t.Logf("seed %d", o.Seed)
	o.Target, o.All, o.Omni = a.target, a.all, []string{"tenants"}
	a.Load = NewWorkload(o)
	fill := FillSizes{Users: 20, Orders: 30, Items: 3, Documents: 20, Events: 20, Countries: 50}
	if err := a.Load.Fill(t.Context(), fill); err != nil {
		t.Fatal(err)
	}
	return a
}

// Moved says that the application writes to the shards.
func (a *Application) Moved() bool { return a.serving.Load() == 2 }

// target sends a tenant's rows to the layout the application follows.
func (a *Application) target(ctx context.Context, table string, tenant int64) (string, error) {
	dbs, slots := a.Sources, a.slots[0]
	if a.Moved() {
		dbs, slots = a.Shards, a.slots[1]
	}
	typ, key := "bigint", strconv.FormatInt(tenant, 10)
	switch {
	case table == "events":
		typ, key = "uuid", EventTenant(tenant)
	case (table == "users" || table == "documents") && a.Moved():
		key = strconv.FormatInt(RootTenant(tenant), 10)
	}
	if len(slots) > 0 {
		slot, err := a.places.Of(context.WithoutCancel(ctx), typ, key, len(slots))
		return dbs[slots[slot]].URL(), err
	}
	shard, err := a.places.Of(context.WithoutCancel(ctx), typ, key, len(dbs))
	return dbs[shard].URL(), err
}

func (a *Application) all(context.Context) (urls []string, err error) {
	dbs := a.Sources
	if a.Moved() {
		dbs = a.Shards
	}
	for _, db := range dbs {
		urls = append(urls, db.URL())
	}
	return urls, nil
}

// Stay keeps the application on the sources although the shards serve, while on is true: it tries there, is refused,
// and writes nowhere.
func (a *Application) Stay(on bool) { a.stays.Store(on) }

// follow looks at the layout record, all the time. The server that holds it may be down meanwhile.
func (a *Application) follow(ctx context.Context) {
	var conn *pgx.Conn
	defer func() { pg.Close(conn) }()
	for ctx.Err() == nil {
		if conn == nil || conn.IsClosed() {
			conn, _ = pgx.Connect(ctx, a.Shards[0].URL()) // asked again below
		}
		var version int64
		if conn != nil && !a.stays.Load() && conn.QueryRow(ctx, `select version from pgreshard.serving`).Scan(&version) == nil {
			a.serving.Store(version)
		}
		if a.Moved() { // there is time to notice a rollback
			sleep(ctx, 8*time.Millisecond)
		}
		sleep(ctx, 2*time.Millisecond)
	}
}

// Write runs the application until the returned func is called, or the test ends.
func (a *Application) Write(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Load.Run(ctx); err != nil {
			t.Errorf("application: %v", err)
		}
	})
	wg.Go(func() { a.follow(ctx) })
	once := sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(once)
	return once
}

// Compare finds, by plain SQL alone, any row that is not on both sides.
func (a *Application) Compare(t testing.TB) {
	t.Helper()
	sources, shards := Conns(t, a.Sources), Conns(t, a.Shards) // open until the test ends, so once
	for _, table := range WorkloadTables() {
		omni := table == "tenants" || table == "countries"
		if err := SameRows(t.Context(), sources, shards, table, RowsOptions{Omni: omni}); err != nil {
			t.Error(err)
		}
	}
}

// Conns opens a session to each database.
func Conns(t testing.TB, dbs []*DB) (out []*pgx.Conn) {
	t.Helper()
	for _, db := range dbs {
		out = append(out, db.Conn(t))
	}
	return out
}

// errUndo rolls a transaction back that did what it was for.
var errUndo = errors.New("undo")

// Placed looks for rows on a shard that PostgreSQL's hash partitioning, or their mapping, does not name.
func (a *Application) Placed(t testing.TB) {
	t.Helper()
	owners := a.slots[1]
	if len(owners) == 0 { // modulo the shards: a slot each
		for shard := range a.Shards {
			owners = append(owners, shard)
		}
	}
	for shard, db := range a.Shards {
		is := func(table, key string) string {
			ways := []string{"false"}
			for slot, owner := range owners {
				if owner == shard {
					ways = append(ways, fmt.Sprintf("satisfies_hash_partition('%s'::regclass, %d, %d, %s)", table, len(owners), slot, key))
				}
			}
			return "(" + strings.Join(ways, " or ") + ")"
		}
		parent, conn := is("of_bigint", "coalesce(t.parent_tenant_id, t.id)"), db.Conn(t)
		for table, wrong := range map[string]string{
			"orders":      "from orders where not " + is("of_bigint", "tenant_id"),
			"documents":   "from documents d left join tenants t on t.id = d.tenant_id where t.id is null or not " + parent,
			"events":      "from events where not " + is("of_uuid", "tenant_id"),
			"users":       "from users u left join tenants t on t.id = u.tenant_id where t.id is null or not " + parent,
			"order_items": "from order_items i left join orders o on o.id = i.order_id where o.id is null",
		} {
			var got int
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), hashed); err != nil {
					return err
				}
				if err := tx.QueryRow(t.Context(), "select count(*) "+wrong).Scan(&got); err != nil {
					return err
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Fatal(err)
			}
			if got != 0 {
				t.Errorf("shard %d holds %d rows of %s that are not its own", shard, got, table)
			}
		}
	}
}

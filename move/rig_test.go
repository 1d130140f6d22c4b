package move_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a move between databases of real clusters with the workload's tables and an application that writes to them.
type rig struct {
	t       *testing.T
	sources []*pgtest.DB
	shards  []*pgtest.DB
	config  move.Config
	app     *pgtest.Application
	load    *pgtest.Workload // the application's
	places  *places          // of tests that have no application
}

// newRig makes m source databases, filled, and n empty ones.
func newRig(t *testing.T, m, n int, options pgtest.WorkloadOptions) *rig {
	t.Helper()
	var sources, shards []*pgtest.DB
	for range m {
		sources = append(sources, pgtest.Shared(t).Database(t))
	}
	for range n {
		shards = append(shards, pgtest.SharedDestination(t).Database(t))
	}
	return rigOn(t, sources, shards, options)
}

// rigOn is newRig on empty databases that are there.
func rigOn(t *testing.T, sources, shards []*pgtest.DB, options pgtest.WorkloadOptions) *rig {
	t.Helper()
	r := &rig{t: t, sources: sources, shards: shards}
	for _, db := range sources {
		db.Exec(t, pgtest.WorkloadSchema)
		if len(sources) > 1 { // an old row must tell whose it is
			db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
		}
	}
	r.config = move.Config{
		Name: fmt.Sprintf("rig%d", moveNumber.Add(1)), Source: side("app", 1, r.sources), Destination: side("app_sharded", 2, r.shards),
		CreateSchema: true, Owners: true, Grants: true, LookupBytes: 64 << 20, LookupTimeout: 5 * time.Second, LookupAttempts: 3,
		CopyWorkers: 2, CopyFormat: copier.Auto, MaxFreeze: 10 * time.Second, LockTimeout: 500 * time.Millisecond, Attempts: 10,
		MaxLag: 16 << 20, MustVerify: true, Sequences: "stride", StateDir: t.TempDir(), Address: "127.0.0.1:1",
	}
	r.app = pgtest.NewApplication(t, r.sources, r.shards, options)
	r.load = r.app.Load
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

// places is pgtest's.
type places struct{ *pgtest.Places }

func newPlaces(t *testing.T) *places { return &places{pgtest.NewPlaces(t)} }

func (p *places) of(ctx context.Context, typ, key string, shards int) (int, error) {
	return p.Of(ctx, typ, key, shards)
}

// write runs the application until the returned func is called.
func (r *rig) write() (stop func()) { return r.app.Write(r.t) }

func (r *rig) move() *move.Move {
	level := slog.LevelWarn
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	m := move.New(r.config, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	r.t.Cleanup(m.Close)
	return m
}

func (r *rig) conns(dbs []*pgtest.DB) []*pgx.Conn { return pgtest.Conns(r.t, dbs) }

// compare finds, by plain SQL alone, any row that differs, and any that stands on another shard than PostgreSQL's hash
// partitioning (or its mapping) names.
func (r *rig) compare() {
	r.t.Helper()
	r.app.Compare(r.t)
	r.app.Placed(r.t)
}

// placed looks for rows on a shard that is not theirs.
func (r *rig) placed() { r.t.Helper(); r.app.Placed(r.t) }

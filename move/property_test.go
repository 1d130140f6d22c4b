package move_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// Random tables of everything this project claims to carry, random transactions on one or two sources all through the
// move, a random number of shards. At the end both sides are equal and every row is where PostgreSQL's own hash
// partitioning says, by plain SQL. PROPERTY_SEED replays a run's schema and statements (how writers interleave is the
// machine's); PROPERTY_SEEDS is how many are run.
func TestRandomSchemasArriveWhole(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("PROPERTY_SEEDS"), "4"))
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range pgtest.Seeds(t, "PROPERTY_SEED", n) {
		t.Run(fmt.Sprintf("PROPERTY_SEED=%d", seed), func(t *testing.T) { propertyRun(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

const tenantsOfProperty = 9

func propertyRun(t *testing.T, r *rand.Rand) {
	m, n := r.IntN(3)/2+1, r.IntN(4)+1
	p := &property{smallMove: &smallMove{rig: &rig{t: t, places: newPlaces(t)}}, Rand: r}
	for i := range r.IntN(4) + 2 {
		p.shapes = append(p.shapes, randomShape(r, i))
	}
	if m > 1 && p.shapes[0].omni { // somebody must have something to write
		p.shapes[0].omni, p.shapes[0].rule.Columns = false, []string{"tenant"}
	}
	p.makeSources(m)
	byHand := r.IntN(3) == 0
	p.makeShards(n, byHand)
	p.configure(byHand)
	t.Logf("%d to %d, destination made by hand: %v\n%s", m, n, byHand, p.ddl())

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	mv := p.move()
	var writers errgroup.Group
	var writes atomic.Int64
	switched := func() bool { return mv.Snapshot().Layout.Serving == 2 }
	for i := range 4 {
		h := p.hand(i%m, &writes)
		writers.Go(func() error {
			err := h.run(ctx, switched)
			if err != nil {
				stop()
			}
			return err
		})
	}
	err := mv.Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		for until := writes.Load() + 600; writes.Load() < until && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond)
		}
		return true, ctx.Err()
	}})
	if err != nil {
		stop()
	}
	if err := errors.Join(writers.Wait(), err); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d statements", writes.Load())
	p.check()
}

// property is one run.
type property struct {
	*smallMove
	*rand.Rand
	shapes  []*shape
	tenants [][]int // by source
}

func (p *property) ddl() string {
	var out []string
	for _, s := range p.shapes {
		out = append(out, s.create(s.columns, true)+s.also, fmt.Sprintf("-- rule %v, lookup %q, omni %v", s.rule.Columns, s.rule.LookupQuery, s.omni))
	}
	return strings.Join(out, "\n")
}

// makeSources makes m databases; a source has the tenants PostgreSQL's hash gives it, and every tenant's mapping.
func (p *property) makeSources(m int) {
	p.tenants = make([][]int, m)
	for len(p.tenants[0]) == 0 || len(p.tenants[m-1]) == 0 || len(p.tenants[0])+len(p.tenants[m-1]) < tenantsOfProperty {
		p.tenants = make([][]int, m)
		for tenant := 1; tenant <= tenantsOfProperty*m; tenant++ {
			shard, err := p.places.of(p.t.Context(), "bigint", strconv.Itoa(tenant), m)
			if err != nil {
				p.t.Fatal(err)
			}
			p.tenants[shard] = append(p.tenants[shard], tenant)
		}
	}
	for n := range m {
		db := pgtest.Shared(p.t).Database(p.t)
		p.sources = append(p.sources, db)
		db.Exec(p.t, propertyTypes+`create table tenants (id bigint primary key, parent bigint)`)
		db.Exec(p.t, fmt.Sprintf(`insert into tenants select g, nullif(g / 3, 0) from generate_series(1, %d) g`, tenantsOfProperty*m))
		for _, s := range p.shapes {
			db.Exec(p.t, s.create(s.columns, true)+s.also)
		}
		h := p.hand(n, new(atomic.Int64))
		for range 60 {
			if err := h.transaction(p.t.Context()); err != nil && h.conn.IsClosed() {
				p.t.Fatal(err)
			}
		}
	}
}

func (p *property) makeShards(n int, byHand bool) {
	for range n {
		db := pgtest.SharedDestination(p.t).Database(p.t)
		p.shards = append(p.shards, db)
		if byHand {
			db.Exec(p.t, `create type other as enum ('z')`)
			db.Exec(p.t, propertyTypes+`create table tenants (id bigint primary key, parent bigint)`)
		}
	}
	if !byHand {
		return
	}
	for _, s := range p.shapes {
		sql := s.elsewhere(p.Rand)
		for _, db := range p.shards {
			db.Exec(p.t, sql)
		}
	}
}

func (p *property) configure(byHand bool) {
	from, to := side("app", 1, p.sources), side("app_sharded", 2, p.shards)
	from.Spec = layout.Spec{Tables: []layout.ShardedTable{{Database: "app", Columns: []string{"tenant"}}}}
	to.Spec = layout.Spec{}
	omni := []string{"tenants"}
	for _, s := range p.shapes {
		if s.omni {
			omni = append(omni, s.rule.Name)
			continue
		}
		rule := s.rule
		rule.Database = "app_sharded"
		to.Spec.Tables = append(to.Spec.Tables, rule)
	}
	from.Spec.Omni = []layout.OmniTables{{Database: "app", Tables: omni}}
	to.Spec.Omni = []layout.OmniTables{{Database: "app_sharded", Tables: omni}}
	p.config = move.Config{
		Name: fmt.Sprintf("property%d", moveNumber.Add(1)), Source: from, Destination: to, SetIdentity: p.IntN(2) == 0 || len(p.sources) > 1,
		CreateSchema: !byHand, Owners: true, Grants: true, LookupBytes: []int64{1 << 10, 1 << 20}[p.IntN(2)], LookupTimeout: 5 * time.Second, LookupAttempts: 3,
		CopyWorkers: p.IntN(3) + 1, CopyFormat: []copier.Format{copier.Auto, copier.Text}[p.IntN(2)], BatchBytes: []int{0, 1, 5000}[p.IntN(3)],
		MaxFreeze: 60 * time.Second, LockTimeout: 5 * time.Second, Attempts: 10,
		MaxLag: 64 << 20, MustVerify: true, Sequences: "stride", StateDir: p.t.TempDir(), Address: "127.0.0.1:1",
	}
}

// hand is a writer of one source. An omnisharded table is written on a lone source only: of several each would have its own.
func (p *property) hand(source int, writes *atomic.Int64) *hand {
	h := &hand{Rand: rand.New(rand.NewPCG(p.Uint64(), 1)), conn: p.sources[source].Conn(p.t), tenants: p.tenants[source],
		id: source, ids: len(p.tenants), writes: writes}
	for _, s := range p.shapes {
		if !s.omni || len(p.tenants) == 1 {
			h.shapes = append(h.shapes, s)
		}
	}
	return h
}

// check compares by plain SQL.
func (p *property) check() {
	n := len(p.shards)
	for _, s := range p.shapes {
		from, to := p.conns(p.sources), p.conns(p.shards)
		var columns []string
		for _, row := range p.sources[0].Query(p.t, `select attname from pg_attribute where attrelid = $1::regclass and attnum > 0 and not attisdropped`, s.name) {
			columns = append(columns, row[0])
		}
		if err := pgtest.SameRows(p.t.Context(), from, to, s.name, pgtest.RowsOptions{Omni: s.omni, Columns: columns}); err != nil {
			p.t.Error(err)
		}
		if s.omni {
			continue
		}
		for shard, db := range p.shards {
			wrong := fmt.Sprintf(`select count(*) from %s r where not satisfies_hash_partition('pg_temp.placed'::regclass, %d, %d, %s)`, s.name, n, shard, s.keySQL)
			conn := db.Conn(p.t)
			runOn(p.t, conn, fmt.Sprintf("create temp table placed (k %s) partition by hash (k)", s.keyType))
			var count int
			if err := conn.QueryRow(p.t.Context(), wrong).Scan(&count); err != nil || count != 0 {
				p.t.Errorf("shard %d holds %d rows of %s that are not its own, %v", shard, count, s.name, err)
			}
		}
	}
}

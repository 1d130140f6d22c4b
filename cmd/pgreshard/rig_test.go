package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// built is the program itself, made once per test process. It is a package variable because the tests that run it have
// nothing else in common.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// binary is the path of the program, built the way a user builds it.
func binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "pgreshard-test-"); built.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(built.dir, "pgreshard"), ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "pgreshard")
}

// process is the program while it runs and after.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	code  int // once ended; -1 where a signal ended it
	both  output
	out   output
}

// output is what a process wrote so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the program; it is ended with the test at the latest.
func start(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(binary(t), args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = tee{&p.out, &p.both}, &p.both
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // its exit code is what counts
		p.code = p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(p.kill)
	return p
}

type tee struct{ a, b *output }

func (w tee) Write(p []byte) (int, error) {
	_, _ = w.a.Write(p)
	return w.b.Write(p)
}

// kill is kill -9, until the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.ended
}

// wait returns the exit code and what the process said on both its outputs.
func (p *process) wait(t testing.TB) (code int, said string) {
	t.Helper()
	select {
	case <-p.ended:
	case <-t.Context().Done():
		t.Fatalf("the process did not end:\n%s", p.both.String())
	}
	return p.code, p.both.String()
}

// rig is a move between databases of real clusters, the file that describes it, and an application that writes.
type rig struct {
	t       testing.TB
	sources []*pgtest.DB
	shards  []*pgtest.DB
	file    string
	name    string // of the move
	listen  string
	env     []string
	load    *pgtest.Workload
	serving atomic.Int64 // layout the application follows
	places  *places
}

// newRig makes one filled source database with the workload's tables and n empty ones. more is added to the
// configuration: sections beside [move], [source], [destination], [http] and the rules.
func newRig(t *testing.T, n int, options pgtest.WorkloadOptions, more string) *rig {
	t.Helper()
	cluster := pgtest.Shared(t)
	r := &rig{t: t, places: newPlaces(t), listen: freePort(t), sources: []*pgtest.DB{cluster.Database(t)}}
	r.name = nameOf(r.sources[0])
	r.sources[0].Exec(t, pgtest.WorkloadSchema)
	for range n {
		r.shards = append(r.shards, cluster.Database(t))
	}
	r.serving.Store(1)
	r.file = filepath.Join(t.TempDir(), "pgreshard.toml")
	r.env = []string{stateVariable + "=" + t.TempDir()}
	r.configure(more)
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

// workloadRules are the rules of the workload's tables: users and documents live with their tenant's parent, items
// with their order's tenant, the rest goes by its own key.
const workloadRules = `
[[sharded_tables]]
name = "users"
column = "tenant_id"
lookup_query = "SELECT COALESCE(parent_tenant_id, id) FROM tenants WHERE id = $1"
[[sharded_tables]]
name = "documents"
column = "tenant_id"
lookup_query = "SELECT COALESCE(parent_tenant_id, id) FROM tenants WHERE id = $1"
[[sharded_tables]]
name = "orders"
column = "tenant_id"
[[sharded_tables]]
name = "events"
column = "tenant_id"
[[sharded_tables]]
name = "order_items"
column = "order_id"
lookup_query = "SELECT tenant_id FROM orders WHERE id = $1"
[[omnisharded_tables]]
tables = ["tenants", "countries"]
`

func (r *rig) configure(more string) {
	writeConfig(r.t, r.file, r.name, r.listen, urls(r.sources), urls(r.shards), workloadRules+more)
}

func urls(dbs []*pgtest.DB) (out []string) {
	for _, db := range dbs {
		out = append(out, db.URL())
	}
	return out
}

// nameOf is a name of its own for each source database: slots are named once for a whole server.
func nameOf(source *pgtest.DB) string {
	return "split-" + source.Name[strings.LastIndexByte(source.Name, '_')+1:]
}

// writeConfig writes the file of a move from layout 1 of app to layout 2, app_sharded.
func writeConfig(t testing.TB, file, name, listen string, sources, shards []string, more string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "[move]\nname = %q\n[http]\nlisten = %q\n[source]\ndatabase = \"app\"\nlayout = 1\n", name, listen)
	for _, url := range sources {
		fmt.Fprintf(&b, "[[source.shards]]\nurl = %q\n", url)
	}
	fmt.Fprint(&b, "[destination]\ndatabase = \"app_sharded\"\nlayout = 2\n")
	for _, url := range shards {
		fmt.Fprintf(&b, "[[destination.shards]]\nurl = %q\n", url)
	}
	b.WriteString(more)
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs the program on the rig's file and goes on.
func (r *rig) start(args ...string) *process {
	r.t.Helper()
	return start(r.t, r.env, append([]string{"-c", r.file}, args...)...)
}

// run runs the program on the rig's file to its end and gives its exit code, standard output, and both outputs.
func (r *rig) run(args ...string) (code int, out, said string) {
	r.t.Helper()
	p := r.start(args...)
	code, said = p.wait(r.t)
	return code, p.out.String(), said
}

// places names shards by PostgreSQL's own declaration of hash partitions, without any code of ours.
type places struct {
	mu    sync.Mutex
	conn  *pgx.Conn
	known map[string]int
}

const ofTables = `create table of_bigint (k bigint) partition by hash (k); create table of_uuid (k uuid) partition by hash (k)`

func newPlaces(t *testing.T) *places {
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, ofTables)
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
	if err == nil {
		p.known[id] = s
	}
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

func (r *rig) all(context.Context) ([]string, error) {
	if r.serving.Load() == 2 {
		return urls(r.shards), nil
	}
	return urls(r.sources), nil
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
		pause(ctx)
	}
}

// pause is between two questions whether something has happened.
func pause(ctx context.Context) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
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

func (r *rig) conns(dbs []*pgtest.DB) (out []*pgx.Conn) {
	for _, db := range dbs {
		out = append(out, db.Conn(r.t))
	}
	return out
}

// compare finds, by plain SQL alone, any row that is not on both sides.
func (r *rig) compare() {
	r.t.Helper()
	for _, table := range pgtest.WorkloadTables() {
		omni := table == "tenants" || table == "countries"
		if err := pgtest.SameRows(r.t.Context(), r.conns(r.sources), r.conns(r.shards), table, pgtest.RowsOptions{Omni: omni}); err != nil {
			r.t.Error(err)
		}
	}
}

// placed looks for rows on a shard that PostgreSQL's hash partitioning, or their mapping, does not name.
func (r *rig) placed() {
	r.t.Helper()
	n := len(r.shards)
	for shard, db := range r.shards {
		is := func(table, key string) string {
			return fmt.Sprintf("satisfies_hash_partition('%s'::regclass, %d, %d, %s)", table, n, shard, key)
		}
		parent := is("of_bigint", "coalesce(t.parent_tenant_id, t.id)")
		for table, wrong := range map[string]string{
			"orders":      "from orders where not " + is("of_bigint", "tenant_id"),
			"documents":   "from documents d left join tenants t on t.id = d.tenant_id where t.id is null or not " + parent,
			"events":      "from events where not " + is("of_uuid", "tenant_id"),
			"users":       "from users u left join tenants t on t.id = u.tenant_id where t.id is null or not " + parent,
			"order_items": "from order_items i left join orders o on o.id = i.order_id where o.id is null",
		} {
			var got int
			conn := db.Conn(r.t)
			err := pgx.BeginFunc(r.t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(r.t.Context(), ofTables); err != nil {
					return err
				}
				if err := tx.QueryRow(r.t.Context(), "select count(*) "+wrong).Scan(&got); err != nil {
					return err
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				r.t.Fatal(err)
			}
			if got != 0 {
				r.t.Errorf("shard %d holds %d rows of %s that are not its own", shard, got, table)
			}
		}
	}
}

// errUndo rolls a transaction back that did what it was for.
var errUndo = errors.New("undo")

// untouched fails where a database holds anything of ours.
func untouched(t testing.TB, dbs ...*pgtest.DB) {
	t.Helper()
	for _, db := range dbs {
		got := db.Query(t, `select (select count(*) from pg_namespace where nspname = 'pgreshard'),
			(select count(*) from pg_replication_slots where database = current_database()),
			(select count(*) from pg_publication), (select count(*) from pg_trigger where not tgisinternal)`)
		if fmt.Sprint(got) != "[[0 0 0 0]]" {
			t.Errorf("database %s: schemas, slots, publications, triggers left behind: %v", db.Name, got)
		}
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pgreshard/pgtest"
)

// built is the program itself, made once per test process. It is a package variable because the tests that run it have
// nothing else in common.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// suite closes what all tests share before it is looked what is left.
type suite struct{ *testing.M }

func (s suite) Run() int {
	defer closeMachines()
	home, err := os.MkdirTemp("", "pgreshard-test-state-") // not the user's
	if err != nil || os.Setenv("XDG_STATE_HOME", home) != nil {
		return 1
	}
	defer os.RemoveAll(home)
	return s.M.Run()
}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(suite{m}, goleak.Cleanup(func(code int) {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
		os.Exit(code)
	}))
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
	return launch(t, env, exec.Command(binary(t), args...))
}

// launch is start of a command that becomes the program.
func launch(t testing.TB, env []string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
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
	app     *pgtest.Application
	load    *pgtest.Workload // the application's
}

// newRig makes one filled source database with the workload's tables and n empty ones. more is added to the
// configuration: sections beside [move], [source], [destination], [http] and the rules.
func newRig(t *testing.T, n int, options pgtest.WorkloadOptions, more string) *rig {
	t.Helper()
	cluster := pgtest.Shared(t)
	sources, shards := []*pgtest.DB{cluster.Database(t)}, []*pgtest.DB{}
	for range n {
		shards = append(shards, cluster.Database(t))
	}
	return rigOn(t, sources, shards, options, more)
}

// rigOn is newRig on empty databases that are there.
func rigOn(t *testing.T, sources, shards []*pgtest.DB, options pgtest.WorkloadOptions, more string) *rig {
	t.Helper()
	r := &rig{t: t, listen: freePort(t), sources: sources, shards: shards, name: nameOf(sources[0])}
	for _, db := range sources {
		db.Exec(t, pgtest.WorkloadSchema)
	}
	r.file = filepath.Join(t.TempDir(), "pgreshard.toml")
	r.env = []string{stateVariable + "=" + t.TempDir()}
	r.configure(more)
	r.app = pgtest.NewApplication(t, r.sources, r.shards, options)
	r.load = r.app.Load
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

// pause is between two questions whether something has happened.
func pause(ctx context.Context) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
	}
}

// write runs the application until the returned func is called.
func (r *rig) write() (stop func()) { return r.app.Write(r.t) }

func (r *rig) conns(dbs []*pgtest.DB) []*pgx.Conn { return pgtest.Conns(r.t, dbs) }

// compare and placed look, by plain SQL alone, for rows that are not on both sides, and for some on a wrong shard.
func (r *rig) compare() { r.t.Helper(); r.app.Compare(r.t) }
func (r *rig) placed()  { r.t.Helper(); r.app.Placed(r.t) }

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

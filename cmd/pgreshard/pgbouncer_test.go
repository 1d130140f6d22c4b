package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// pool is a pgbouncer with one database, app, that leads to the source until the hook of deploy/ leads it elsewhere.
type pool struct{ dir, address string }

func (p pool) conninfo(database string) string {
	host, port, _ := strings.Cut(p.address, ":")
	return fmt.Sprintf("host=%s port=%s user=postgres dbname=%s", host, port, database)
}

// newPool starts one for two layouts of one shard each.
func newPool(t *testing.T, layouts ...*pgtest.DB) pool {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("pgbouncer is not installed (apt-get install pgbouncer): the hook of deploy/hooks is not tried")
	}
	p := pool{t.TempDir(), freePort(t)}
	if err := os.Chmod(filepath.Dir(p.dir), 0o755); err != nil { // it runs as somebody else
		t.Fatal(err)
	}
	for i, db := range layouts {
		config, err := pgx.ParseConfig(db.URL())
		if err != nil {
			t.Fatal(err)
		}
		p.file(t, fmt.Sprintf("layout-%d.ini", i+1), fmt.Sprintf("app = host=%s port=%d dbname=%s user=%s\n", config.Host, config.Port, config.Database, config.User))
	}
	if err := os.Symlink("layout-1.ini", filepath.Join(p.dir, "serving.ini")); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(p.address, ":")
	ini := p.file(t, "pgbouncer.ini", fmt.Sprintf("[databases]\n%%include %s/serving.ini\n[pgbouncer]\nlisten_addr = %s\nlisten_port = %s\nunix_socket_dir =\n"+
		"auth_type = any\nadmin_users = postgres\npool_mode = transaction\n", p.dir, host, port))
	argv := []string{program, ini}
	if os.Geteuid() == 0 { // as which it does not run
		argv = []string{program, "-u", "nobody", ini}
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	var said output
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for {
		conn, err := pgx.Connect(t.Context(), p.conninfo("app"))
		if err == nil {
			pg.Close(conn)
			return p
		}
		if t.Context().Err() != nil {
			t.Fatalf("pgbouncer: %v\n%s", err, said.String())
		}
		pause(t.Context())
	}
}

func (p pool) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// hooks is the section that has the shipped hook lead the pool.
func (p pool) hooks(t *testing.T) (section string) {
	t.Helper()
	hook, err := filepath.Abs("../../deploy/hooks/pgbouncer")
	if err != nil {
		t.Fatal(err)
	}
	section = "[hooks]\n"
	for _, name := range []string{"before_freeze", "after_switch", "after_undo"} {
		section += fmt.Sprintf("%s = [%q, %q, %q]\n", name, hook, p.conninfo("pgbouncer"), p.dir)
	}
	return section
}

// client writes through the pool, one row after another, and knows nothing of the move but that what is refused is to be
// tried again.
type client struct {
	mu      sync.Mutex
	acked   int
	refused int
	longest time.Duration
	errs    []error
}

func (c *client) run(ctx context.Context, p pool) {
	config, err := pgx.ParseConfig(p.conninfo("app"))
	if err == nil {
		config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	defer func() { pg.Close(conn) }()
	for ctx.Err() == nil && err == nil {
		began := time.Now()
		_, err = conn.Exec(context.WithoutCancel(ctx), `insert into taps values ($1, repeat('x', 20))`, c.acked+1)
		c.mu.Lock()
		c.longest = max(c.longest, time.Since(began))
		switch {
		case err == nil:
			c.acked++
		case pg.Code(err) == "25006":
			c.refused, err = c.refused+1, nil
		}
		c.mu.Unlock()
		pause(ctx)
	}
	if err != nil && ctx.Err() == nil {
		c.mu.Lock()
		c.errs = append(c.errs, err)
		c.mu.Unlock()
	}
}

// writes waits until more rows were written.
func (c *client) writes(t *testing.T, more int) {
	t.Helper()
	count := func() (int, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.acked, errors.Join(c.errs...)
	}
	began, err := count()
	for now := began; now < began+more; now, err = count() {
		if err != nil || t.Context().Err() != nil {
			t.Fatalf("the client has %d rows and stopped: %v", now, err)
		}
		pause(t.Context())
	}
}

// A client of a pgbouncer goes through a worker's death in the freeze, a cutover and a rollback, led by the hook that is shipped:
// it waits, and is refused only where it meets a lock of the fence by chance, at arm or when a freeze is lifted, but not all
// through a freeze. The dead worker's pause ends by itself, at the deadline.
func TestClientsOfAPgbouncerWaitThroughACutover(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Shared(t)
	sources, shards := []*pgtest.DB{cluster.Database(t)}, []*pgtest.DB{cluster.Database(t)}
	p := newPool(t, sources[0], shards[0])
	r := rigOn(t, sources, shards, pgtest.WorkloadOptions{}, "[cutover]\nmax_freeze = \"2s\"\nlock_timeout = \"1s\"\nattempts = 2\n"+p.hooks(t))
	sources[0].Exec(t, `create table taps (id bigint primary key, note text)`)
	home := newGates(t, shards[0])
	ctx, stop := context.WithCancel(t.Context())
	c, ended := &client{}, make(chan struct{})
	go func() { defer close(ended); c.run(ctx, p) }()
	t.Cleanup(func() { stop(); <-ended })
	c.writes(t, 20)

	home.shut(t, "freeze after")
	worker := r.start("migrate", "--yes")
	home.await(t, worker, "freeze after")
	worker.kill()
	deadline, err := os.ReadFile(filepath.Join(p.dir, "paused-until"))
	if err != nil {
		t.Fatal(err)
	}
	home.open(t, "freeze after")
	c.writes(t, 20)
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(deadline)), 10, 64)
	if late := time.Since(time.Unix(seconds, 0)); err != nil || late < 0 || late > 5*time.Second {
		t.Errorf("the pool let go %v after the deadline, %v", late, err)
	}

	worker = r.start("migrate", "--yes")
	r.following(worker)
	c.writes(t, 20)
	r.layoutServes(2)
	if code, _, said := r.run("rollback"); code != exitDone {
		t.Fatalf("rollback: %d\n%s", code, said)
	}
	if code, said := worker.wait(t); code != exitDone {
		t.Fatalf("the worker ended with %d\n%s", code, said)
	}
	c.writes(t, 20)
	stop()
	<-ended
	t.Logf("%d rows, %d writes refused, the longest wait was %v", c.acked, c.refused, c.longest.Round(time.Millisecond))
	if c.refused > 10 || c.longest < time.Second {
		t.Errorf("%d writes were refused, the longest waited %v", c.refused, c.longest)
	}
	if got := sources[0].Query(t, `select count(*), count(distinct id), max(id) from taps`); len(c.errs) > 0 || fmt.Sprint(got) != fmt.Sprintf("[[%d %d %d]]", c.acked, c.acked, c.acked) {
		t.Errorf("%d rows were acknowledged, the source has %v; errors: %v", c.acked, got, c.errs)
	}
}

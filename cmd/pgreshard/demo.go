package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"pgreshard/move"
	"pgreshard/notice"
	"pgreshard/pgtest"
)

const demoShards = 4

func (a *app) demoCommand() *cobra.Command {
	var scene string
	var w wire
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run a whole move on throw-away servers while an application writes",
		Long: "Start one PostgreSQL server and four more, fill the first, let eight writers work on it, move it to the four while\n" +
			"they write, let them go on there, and end with what was measured; with --scene rollback, switch back in between.\n" +
			"Needs PostgreSQL's server binaries, nothing else.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !slices.Contains(demoScenes, scene) {
				return usage("--scene "+strings.Join(demoScenes, "|"), "there is no scene %q", scene)
			}
			if w.delay < 0 {
				return usage("--delay 1ms", "--delay is %s, less than nothing", w.delay)
			}
			return a.demo(c.Context(), &w, scene == sceneRollback)
		},
	}
	c.Flags().StringVar(&scene, "scene", sceneMove, "what to show: move; or rollback, back to the source once the writers have written to the shards")
	offer(c, "scene", cobra.ShellCompDirectiveNoFileComp, demoScenes...)
	c.Flags().BoolVar(&w.print, "wire", false, "print every message between worker and servers to stderr, values left out, and count round trips")
	c.Flags().DurationVar(&w.delay, "delay", 0, "have every byte between worker and servers arrive this much later, each way")
	return c
}

const (
	sceneMove     = "move"
	sceneRollback = "rollback"
)

var demoScenes = []string{sceneMove, sceneRollback}

// demo is a move, and where back is set the way back.
func (a *app) demo(ctx context.Context, w *wire, back bool) error {
	d := &demo{out: a.stdout, stderr: a.stderr, wire: w, back: back}
	defer d.close()

	// Servers, tables and rows.
	d.say("starting %d servers", 1+demoShards)
	if err := d.start(ctx); err != nil {
		return err
	}
	d.say("filling the source")
	if err := d.fill(ctx); err != nil {
		return err
	}

	// Writers write from here to the end.
	stop := d.write(ctx)
	defer stop()
	if err := d.writers.Committed(ctx, demoCommits); err != nil {
		return fmt.Errorf("the writers do not write: %w", err)
	}

	// The move, by the command itself.
	d.say("pgreshard -c %s migrate --yes", d.config)
	if err := d.migrate(ctx, a); err != nil {
		return err
	}
	d.say("the writers go on against the %s", d.serving())
	if err := d.writers.Committed(ctx, demoCommits); err != nil {
		return fmt.Errorf("the writers do not write to the %s: %w", d.serving(), err)
	}
	if err := stop(); err != nil {
		return fmt.Errorf("the writers: %w", err)
	}
	if err := d.measure(ctx); err != nil {
		return err
	}
	return d.wire.told(d.out)
}

// serving is what serves in the end.
func (d *demo) serving() string {
	if d.back {
		return "source again"
	}
	return "new shards"
}

// demoCommits is how many commits the writers make before the move, and after it.
const demoCommits = 1000

// demo is one run: its servers, writers and what the worker said last.
type demo struct {
	out      io.Writer
	stderr   io.Writer
	wire     *wire
	back     bool // there is a rollback
	dir      string
	config   string // path
	listen   string
	nats     *notice.Server
	clusters []*pgtest.Cluster
	source   *pgtest.DB
	shards   []*pgtest.DB
	writers  *pgtest.Workload
	follow   *follower
	worker   atomic.Pointer[engine]
	began    time.Time
	took     time.Duration
	last     move.Status
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, "demo: "+format+"\n", args...) }

// close ends the servers and takes away what they left.
func (d *demo) close() {
	d.wire.close()
	for _, c := range d.clusters {
		c.Close()
	}
	if d.nats != nil {
		d.nats.Close()
	}
	if d.dir != "" {
		_ = os.RemoveAll(d.dir) // a temporary directory
	}
}

// start makes the servers beside each other, and the configuration that names them.
func (d *demo) start(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "pgreshard-demo-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	if err := os.Setenv(stateVariable, filepath.Join(d.dir, "state")); err != nil {
		return fmt.Errorf("set %s: %w", stateVariable, err)
	}
	if d.nats, err = notice.Serve(filepath.Join(d.dir, "nats"), "nats://127.0.0.1:0"); err != nil {
		return err
	}
	d.clusters = make([]*pgtest.Cluster, 0, 1+demoShards)
	made := make([]*pgtest.Cluster, 1+demoShards)
	databases := make([]*pgtest.DB, len(made))
	g, starting := errgroup.WithContext(ctx)
	for i := range made {
		g.Go(func() (err error) {
			if made[i], err = pgtest.New(starting, pgtest.Options{}); err != nil {
				return err
			}
			databases[i], err = made[i].NewDatabase(starting, demoDatabase(i))
			return err
		})
	}
	err = g.Wait()
	for _, c := range made {
		if c != nil {
			d.clusters = append(d.clusters, c)
		}
	}
	if err != nil {
		return fmt.Errorf("start the servers: %w", err)
	}
	d.source, d.shards = databases[0], databases[1:]
	return d.writeConfig(ctx)
}

// demoDatabase names the source's database app and the shards' app_0 to app_3.
func demoDatabase(i int) string {
	if i == 0 {
		return "app"
	}
	return fmt.Sprintf("app_%d", i-1)
}

// demoRows are rows per tenant before the writers begin.
var demoRows = pgtest.FillSizes{Users: 100, Orders: 50, Items: 4, Documents: 5, Events: 200, Countries: 100}

const demoTenants = 120

func (d *demo) fill(ctx context.Context) error {
	conn, err := d.source.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, pgtest.WorkloadSchema); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if d.follow, err = newFollower(ctx, d, conn); err != nil {
		return err
	}
	d.writers = pgtest.NewWorkload(pgtest.WorkloadOptions{
		Target: d.follow.target, All: d.follow.all, Omni: []string{"tenants"},
		Writers: 8, Rate: 400, Seed: 1, Tenants: demoTenants, Lookups: true, KeyChanges: true, NewTenants: true,
	})
	return d.writers.Fill(ctx, demoRows)
}

// write lets the writers work until the returned func is called, which tells how they ended.
func (d *demo) write(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.writers.Run(ctx) }()
	var result error
	return func() error {
		if cancel != nil {
			cancel()
			cancel = nil
			result = <-ended
		}
		return result
	}
}

// migrate runs the command, and tells the writers as an application is told: by the board at NATS.
func (d *demo) migrate(ctx context.Context, a *app) error {
	open := func(ctx context.Context, c *Config, log *slog.Logger) (engine, error) {
		e, err := a.open(ctx, c, log)
		return demoEngine{e, d}, err
	}
	board, err := notice.Open(d.nats.Address(), nil, "the demo's application")
	if err != nil {
		return err
	}
	defer board.Close()
	told, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); d.follow.listen(told, board) }()
	defer func() { cancel(); <-done }()

	d.began = time.Now()
	command := func(args ...string) error {
		one := &app{stdin: a.stdin, stdout: a.stdout, stderr: a.stderr, open: open}
		if code := one.run(ctx, append([]string{"-c", d.config, "--log-format", a.logFormat}, args...)); code != exitDone {
			return &exitError{code: code, hint: "the lines above say why", err: fmt.Errorf("%s ended with %d", args[0], code)}
		}
		return nil
	}
	if d.back {
		return d.forthAndBack(ctx, command)
	}
	err = command("migrate", "--yes")
	d.took = time.Since(d.began)
	d.follow.serves(2)
	return err
}

// forthAndBack has the worker follow after the switch, and asks it for the way back once the writers have written to the shards.
func (d *demo) forthAndBack(ctx context.Context, command func(...string) error) error {
	ended := make(chan error, 1)
	go func() { ended <- command("migrate", "--yes") }()
	for ready := false; !ready; {
		select {
		case err := <-ended:
			return cmp.Or(err, errors.New("the worker ended before the rollback"))
		case <-time.After(20 * time.Millisecond):
			worker := d.worker.Load()
			ready = worker != nil && d.follow.moved.Load() && rollbackOK((*worker).Snapshot())
		}
	}
	d.took = time.Since(d.began)
	d.say("the writers go on against the new shards")
	err := d.writers.Committed(ctx, demoCommits)
	if err == nil {
		d.say("pgreshard -c %s rollback", d.config)
		d.writers.ResetGaps()
		err = command("rollback")
	}
	err = cmp.Or(err, <-ended)
	d.follow.serves(1)
	return err
}

func rollbackOK(s move.Status) bool { return s.Reverse != nil && s.Reverse.Rollback.OK }

// demoEngine is the engine, with the writers' gaps measured from just before the freeze.
type demoEngine struct {
	engine
	demo *demo
}

func (e demoEngine) Migrate(ctx context.Context, o move.MigrateOptions) error {
	ready := o.Ready
	o.Ready = func(ctx context.Context) (bool, error) {
		ok, err := ready(ctx)
		e.demo.writers.ResetGaps()
		return ok, err
	}
	e.demo.worker.Store(&e.engine)
	err := e.engine.Migrate(ctx, o)
	e.demo.last = e.Snapshot()
	return err
}

// connect opens a session on each of several databases; close ends them.
func connect(ctx context.Context, databases ...*pgtest.DB) (conns []*pgx.Conn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close(context.WithoutCancel(ctx)) // reading only
		}
	}
	for _, db := range databases {
		c, err := db.Connect(ctx)
		if err != nil {
			closeAll()
			return nil, func() {}, err
		}
		conns = append(conns, c)
	}
	return conns, closeAll, nil
}

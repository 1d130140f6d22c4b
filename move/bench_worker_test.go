package move_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// benchJob is what the worker process is told.
type benchJob struct {
	Name     string
	Source   string   // URL
	Shards   []string // URLs
	Workers  int
	Mapping  bool // there is a table mapping
	Lookup   bool // the sharding key is translated by it
	StateDir string
}

const benchJobVariable = "PGRESHARD_BENCH_JOB"

// TestBenchWorker is no test but the worker of a benchmark in a process of its own, so that its CPU time and its memory
// are its alone: the move as `pgreshard migrate --hold` runs it, until its standard input ends.
func TestBenchWorker(t *testing.T) {
	text := os.Getenv(benchJobVariable)
	if text == "" {
		t.Skip("started by TestBench")
	}
	var job benchJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	m := move.New(job.config(), slog.New(slog.NewTextHandler(os.Stderr, nil)))
	defer m.Close()
	go func() { // a line asks for a verification
		defer stop()
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			var early *move.NotReadyError
			_, err := m.VerifyNow(ctx)
			for errors.As(err, &early) && ctx.Err() == nil { // its streams are only being started
				time.Sleep(10 * time.Millisecond)
				_, err = m.VerifyNow(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}()
	err := m.Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) { return false, nil }})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// config has the defaults of the configuration file.
func (j benchJob) config() move.Config {
	side := func(database string, version int, urls ...string) move.Side {
		s := move.Side{Database: database, Layout: version, Spec: layout.Spec{
			Tables: []layout.ShardedTable{{Database: database, Name: "rows", Column: "tenant", DataType: "bigint"}}}}
		if j.Mapping {
			s.Spec.Omni = []layout.OmniTables{{Database: database, Tables: []string{"mapping"}}}
		}
		if j.Lookup {
			s.Spec.Tables[0].LookupQuery = `select home from mapping where id = $1`
		}
		for n, url := range urls {
			s.Shards = append(s.Shards, pg.FixedURL(n, url))
		}
		return s
	}
	return move.Config{
		Name: j.Name, Source: side("app", 1, j.Source), Destination: side("app_sharded", 2, j.Shards...),
		CreateSchema: true, Owners: true, Grants: true, LookupBytes: 64 << 20, LookupTimeout: 5 * time.Second, LookupAttempts: 3,
		CopyWorkers: j.Workers, CopyFormat: copier.Auto, BatchBytes: 4 << 20, MaxFreeze: 5 * time.Second, LockTimeout: 500 * time.Millisecond,
		Attempts: 10, MaxLag: 16 << 20, MustVerify: true, Sequences: "stride", StateDir: j.StateDir, Address: "127.0.0.1:1",
	}
}

// ours is a move and its worker, which may be stopped and started again.
type ours struct {
	*bench
	name string
	from *pgtest.DB
	to   []*pgtest.DB
	work *benchProcess

	mapping, lookup bool // benchJob's
}

type benchProcess struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	log   strings.Builder
	ended chan error
}

// start starts the worker; what it is to do it finds out itself.
func (o *ours) start() {
	o.t.Helper()
	job := benchJob{Name: o.name, Source: o.from.URL(), Workers: o.Workers, Mapping: o.mapping, Lookup: o.lookup, StateDir: o.t.TempDir()}
	for _, db := range o.to {
		job.Shards = append(job.Shards, db.URL())
	}
	text, _ := json.Marshal(job)
	self, err := os.Executable()
	if err != nil {
		o.t.Fatal(err)
	}
	args := []string{"-test.run=^TestBenchWorker$", "-test.timeout=0"}
	if o.Profile != "" {
		args = append(args, "-test.cpuprofile="+filepath.Join(o.Profile, fmt.Sprintf("%s-%d.prof", o.name, time.Now().Unix())))
	}
	p := &benchProcess{cmd: exec.CommandContext(o.t.Context(), self, args...), ended: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), benchJobVariable+"="+string(text), "BENCH=")
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		o.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	o.work = p
}

// alive is an error once the worker has ended, which it does not do by itself.
func (o *ours) alive() error {
	select {
	case err := <-o.work.ended:
		return fmt.Errorf("the worker ended: %v\n%s", err, o.work.log.String())
	default:
		return nil
	}
}

// used is the CPU time the worker has used so far.
func (o *ours) used() time.Duration { return readProcess(o.work.cmd.Process.Pid).own }

// stop ends the worker in order and says how much memory it had at most, in bytes.
func (o *ours) stop() (memory int64) {
	o.t.Helper()
	_ = o.work.input.Close()
	if err := <-o.work.ended; err != nil {
		o.t.Fatalf("the worker: %v\n%s", err, o.work.log.String())
	}
	if usage, ok := o.work.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		memory = usage.Maxrss << 10
	}
	return memory
}

// entered waits for a state of the move and says when it was entered, by the journal on its home.
func (o *ours) entered(state string) (at time.Time) {
	o.t.Helper()
	conn, err := o.to[0].Connect(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(o.t.Context()))
	for {
		err := conn.QueryRow(o.t.Context(), `select at from pgreshard.journal where move = $1 and step = $2 and phase = 'state'`, o.name, state).Scan(&at)
		switch {
		case err == nil:
			return at
		case !errors.Is(err, pgx.ErrNoRows) && pg.Code(err) != "42P01": // not made yet
			o.t.Fatal(err)
		}
		if err := o.alive(); err != nil {
			o.t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// forget removes the move's traces from the source and its databases.
func (o *ours) forget() {
	o.t.Helper()
	o.drop(o.to...)
	o.from.Exec(o.t, `select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()`)
	for _, publication := range o.from.Query(o.t, `select quote_ident(pubname) from pg_publication`) {
		o.from.Exec(o.t, "drop publication "+publication[0])
	}
	o.from.Exec(o.t, `drop schema pgreshard cascade`)
}

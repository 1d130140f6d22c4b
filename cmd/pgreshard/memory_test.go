//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

const (
	memoryVariable = "PGRESHARD_TEST_MEMORY" // set by `make memory`
	memoryBound    = 256 << 20               // resident, the worker's and its children's
	memoryShards   = 4
)

func TestTheWorkerStaysSmallWhileALargeTransactionPasses(t *testing.T) {
	cluster := pgtest.Shared(t)
	r := &memoryRig{rows: 100_000, source: cluster.Database(t)}
	for range memoryShards {
		r.shards = append(r.shards, cluster.Database(t))
	}
	r.run(t)
}

func TestTheWorkerStaysSmallBesideATableOfTwoGigabytes(t *testing.T) {
	if os.Getenv(memoryVariable) == "" {
		t.Skip("needs 12 GB of disk and several minutes: `make memory` runs it")
	}
	r := &memoryRig{rows: 1_000_000}
	durable := pgtest.Options{Durable: true, Settings: map[string]string{"max_wal_size": "2GB", "shared_buffers": "256MB"}}
	r.source = pgtest.Start(t, durable).Database(t)
	for range memoryShards {
		r.shards = append(r.shards, pgtest.Start(t, durable).Database(t))
	}
	r.run(t)
}

// memoryRig is a database of one large table and two that go by lookups, and the worker's own process beside it.
type memoryRig struct {
	rows     int // of the large table, 2 kB each, and of the transaction
	source   *pgtest.DB
	shards   []*pgtest.DB
	config   string // path
	address  string
	state    string // directory
	worker   peak
	children peak // all that live at one time
}

// run copies, lets the transaction pass, stops, cuts over with a second worker, and compares.
func (r *memoryRig) run(t *testing.T) {
	binary(t)
	r.fill(t)
	r.writeConfig(t)

	// The copy, and the transaction while the worker follows.
	began := time.Now()
	held := r.start(t, "migrate", "--hold")
	r.awaitStreaming(t, held)
	t.Logf("schema, copy and indexes took %.1f s; worker %s", time.Since(began).Seconds(), &r.worker)
	began = time.Now()
	r.source.Exec(t, r.transaction())
	t.Logf("the transaction of %d rows took the source %.1f s", r.rows, time.Since(began).Seconds())
	began = time.Now()
	r.awaitConfirmed(t, held)
	t.Logf("it was on every shard %.1f s later; worker %s", time.Since(began).Seconds(), &r.worker)
	stop(t, held)

	// Verification and cutover.
	began = time.Now()
	if code, said := r.start(t, "migrate", "--yes").wait(t); code != exitDone {
		t.Fatalf("migrate ended with %d\n%s", code, said)
	}
	t.Logf("verification and cutover took %.1f s", time.Since(began).Seconds())

	r.compare(t)
	sum := r.worker.bytes + r.children.bytes
	t.Logf("peak resident memory: worker %s, its children %s, together %.0f MB of %d MB", &r.worker, &r.children, mb(sum), memoryBound>>20)
	if sum >= memoryBound {
		t.Errorf("the worker and its children held %.0f MB, the bound is %d MB", mb(sum), memoryBound>>20)
	}
}

// fill makes documents of 2 kB, placed by their tenant's parent, and half as many orders, each with an item that
// reaches its shard by a lookup of its own: more keys than the cache of translations may hold.
func (r *memoryRig) fill(t *testing.T) {
	t.Helper()
	r.source.Exec(t, `
		create table tenants (id bigint primary key, parent bigint);
		create table documents (tenant_id bigint not null, id bigint not null, body text not null, primary key (tenant_id, id));
		create table orders (id bigint primary key, tenant_id bigint not null, note text not null);
		create table items (order_id bigint not null, line int not null, amount numeric not null, primary key (order_id, line));
		insert into tenants select i, nullif(i % 7, 0) from generate_series(0, 999) i`)
	r.source.Exec(t, fmt.Sprintf(`
		insert into documents select i %% 1000, i, %s from generate_series(1, %d) i;
		insert into orders select i, i %% 1000, md5(i::text) from generate_series(1, %d) i;
		insert into items select i, 1, i / 7.0 from generate_series(1, %[3]d) i;
		analyze`, body("i"), r.rows, r.rows/2))
	size := r.source.Query(t, `select pg_table_size('documents') >> 20`)[0][0]
	t.Logf("documents: %d rows, %s MB", r.rows, size)
}

// body is a text of 1,936 bytes: a row just below the size from which values are compressed or moved out of it.
func body(seed string) string {
	return fmt.Sprintf("repeat(encode(sha512(%s::text::bytea), 'base64'), 22)", seed)
}

// transaction changes as many rows as the table has, in one transaction and in every way.
func (r *memoryRig) transaction() string {
	n := r.rows
	return fmt.Sprintf(`begin;
		update documents set body = reverse(body) where id %% 5 = 0;
		insert into documents select i %% 1000, i, %s from generate_series(%d, %d) i;
		insert into orders select i, i %% 1000, md5(i::text) from generate_series(%d, %d) i;
		update orders set note = 'changed' where id <= %d;
		delete from items where order_id <= %d;
		commit`, body("i"), n+1, n+n/10, n+1, n+4*n/10, n/5, n/10)
}

func (r *memoryRig) writeConfig(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	r.config, r.state, r.address = filepath.Join(dir, "pgreshard.toml"), filepath.Join(dir, "state"), freePort(t)
	var b strings.Builder
	fmt.Fprintf(&b, "[move]\nname = \"memory\"\n[http]\nlisten = %q\n[cutover]\nreverse = false\nmax_freeze = \"120s\"\n", r.address)
	fmt.Fprintf(&b, "[source]\ndatabase = \"app\"\nlayout = 1\n[[source.shards]]\nurl = %q\n", r.source.URL())
	b.WriteString("[destination]\ndatabase = \"app_sharded\"\nlayout = 2\n")
	for _, s := range r.shards {
		fmt.Fprintf(&b, "[[destination.shards]]\nurl = %q\n", s.URL())
	}
	b.WriteString(`
[[sharded_tables]]
name = "documents"
column = "tenant_id"
lookup_query = "SELECT COALESCE(parent, id) FROM public.tenants WHERE id = $1"
[[sharded_tables]]
name = "orders"
column = "tenant_id"
[[sharded_tables]]
name = "items"
column = "order_id"
lookup_query = "SELECT tenant_id FROM public.orders WHERE id = $1"
[[omnisharded_tables]]
tables = ["tenants"]
`)
	if err := os.WriteFile(r.config, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs the worker; its memory is watched until it ends.
func (r *memoryRig) start(t *testing.T, args ...string) *process {
	t.Helper()
	p := start(t, []string{stateVariable + "=" + r.state}, append([]string{"-c", r.config}, args...)...)
	var watching sync.WaitGroup
	watching.Go(func() { r.watch(p) })
	t.Cleanup(func() { p.kill(); watching.Wait() })
	return p
}

// stop ends a worker as an operator does, which is no failure of the move.
func stop(t *testing.T, p *process) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.ended
}

const memoryPoll = 50 * time.Millisecond

// watch notes the peaks. The kernel keeps each process's own: only the last moment of one may be missed.
func (r *memoryRig) watch(p *process) {
	tick := time.NewTicker(memoryPoll)
	defer tick.Stop()
	for {
		r.worker.raise(highWater(p.cmd.Process.Pid))
		var sum int64
		for _, pid := range descendants(p.cmd.Process.Pid) {
			sum += highWater(pid)
		}
		r.children.raise(sum)
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
	}
}

// peak is the most bytes seen.
type peak struct {
	mu    sync.Mutex
	bytes int64
}

func (p *peak) raise(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes = max(p.bytes, bytes)
}

// String is the peak so far, in MB.
func (p *peak) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%.0f MB", mb(p.bytes))
}

func mb(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// highWater is VmHWM of a process in bytes, 0 for one that has ended.
func highWater(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kb int64
	_, _ = fmt.Sscan(rest, &kb)
	return kb << 10
}

// descendants are a process's children, and theirs.
func descendants(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// until asks again and again, as long as the worker lives.
func until(t *testing.T, p *process, what string, reached func() bool) {
	t.Helper()
	for !reached() {
		select {
		case <-p.ended:
			t.Fatalf("the worker ended with %d before %s\n%s", p.code, what, p.both.String())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (r *memoryRig) awaitStreaming(t *testing.T, p *process) {
	t.Helper()
	until(t, p, "it streamed", func() bool {
		c := exec.CommandContext(t.Context(), binary(t), "-c", r.config, "status", "--json")
		c.Env = append(os.Environ(), stateVariable+"="+r.state)
		out, err := c.Output()
		var s move.Status
		return err == nil && json.Unmarshal(out, &s) == nil && s.State == move.StateStreaming
	})
}

// awaitConfirmed waits until the worker has confirmed what the source had written by now: it is durable on all shards.
func (r *memoryRig) awaitConfirmed(t *testing.T, p *process) {
	t.Helper()
	at := r.source.Query(t, `select pg_current_wal_insert_lsn()`)[0][0]
	until(t, p, "it had applied everything", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		conn, err := r.source.Connect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		var there bool
		err = conn.QueryRow(ctx, `select coalesce(bool_and(confirmed_flush_lsn >= $1::text::pg_lsn), false) from pg_replication_slots
			where database = current_database()`, at).Scan(&there)
		if err != nil {
			t.Fatal(err)
		}
		return there
	})
}

// compare counts rows and adds up their hashes on both sides, by plain SQL.
func (r *memoryRig) compare(t *testing.T) {
	t.Helper()
	sums := func(db *pgtest.DB, table string) (rows, hash int64) {
		got := db.Query(t, fmt.Sprintf(`select count(*), (coalesce(sum(hashtextextended(x::text, 0)), 0) %% 1000000007)::bigint from public.%s x`, table))[0]
		rows, _ = strconv.ParseInt(got[0], 10, 64)
		hash, _ = strconv.ParseInt(got[1], 10, 64)
		return rows, hash
	}
	for _, table := range []string{"tenants", "documents", "orders", "items"} {
		rows, hash := sums(r.source, table)
		var thereRows, thereHash int64
		for _, s := range r.shards {
			n, h := sums(s, table)
			if table == "tenants" && (n != rows || h != hash) {
				t.Errorf("tenants on %s: %d rows, hash sum %d; the source has %d, %d", s.Name, n, h, rows, hash)
			}
			thereRows, thereHash = thereRows+n, thereHash+h
		}
		if table == "tenants" {
			continue
		}
		const modulus = 1000000007
		if rows != thereRows || (hash-thereHash)%modulus != 0 {
			t.Errorf("%s: the source has %d rows, hash sum %d, the shards %d, %d", table, rows, hash, thereRows, thereHash)
		}
		t.Logf("%s: %d rows on both sides", table, thereRows)
	}
}

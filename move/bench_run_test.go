package move_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgreshard/pgtest"
)

// benchOptions is what `make bench` measures; each has its name in the environment.
type benchOptions struct {
	What    string // BENCH: copy, catchup, lookup, verify or all; freeze; fanout
	Runs    int    // RUNS: of each side, in turn
	Rows    int    // BENCH_ROWS: rows of the copy, 250 bytes each
	Tx      int    // BENCH_TX: transactions of the backlog, 3 changes each
	Base    int    // BENCH_BASE: rows of the table the backlog changes
	Shards  int    // BENCH_SHARDS: a power of two
	Workers int    // BENCH_WORKERS: [copy] workers
	Profile string // BENCH_PROFILE: directory for CPU profiles of our worker; empty: none
}

// benchDefaults are the sizes docs/performance.md speaks of; workers is the configuration's default.
var benchDefaults = benchOptions{What: "all", Runs: 3, Rows: 2_000_000, Tx: 100_000, Base: 400_000, Shards: 4, Workers: 4}

// TestBench measures a move beside what PostgreSQL brings along, on the same durable clusters, in turn, and prints the
// table; a run of the full size writes it to docs/performance.md. It runs when BENCH is set.
func TestBench(t *testing.T) {
	if os.Getenv("BENCH") == "" {
		t.Skip("a benchmark of many minutes: BENCH=copy, catchup, lookup, verify, all, freeze or fanout runs it")
	}
	o := benchOptionsOf(t, os.Getenv)
	switch o.What {
	case "freeze":
		benchFreezes(t)
		return
	case "fanout":
		benchFanout(t)
		return
	}
	b := newBench(t, o)
	db := b.database(b.source)
	r := benchReport{options: o, machine: benchMachine(), server: db.Query(t, `show server_version`)[0][0], settings: db.Query(t, benchSettingsShown)[0][0]}
	for _, part := range []struct {
		what    string
		measure func() benchPart
	}{{"copy", b.copy}, {"catchup", b.catchUp}, {"lookup", b.copyTranslated}, {"lookup", b.catchUpTranslated}, {"verify", b.verify}} {
		if o.What == part.what || o.What == "all" {
			r.parts = append(r.parts, part.measure())
		}
	}
	fmt.Println(r.markdown())
	if o != benchDefaults {
		fmt.Println("docs/performance.md is left alone: it takes the figures of a whole run with the default sizes.")
		return
	}
	if err := r.write("../docs/performance.md"); err != nil {
		t.Fatal(err)
	}
}

func benchOptionsOf(t *testing.T, env func(string) string) benchOptions {
	t.Helper()
	o := benchDefaults
	o.What, o.Profile = env("BENCH"), env("BENCH_PROFILE")
	if !slices.Contains([]string{"copy", "catchup", "lookup", "verify", "all", "freeze", "fanout"}, o.What) {
		t.Fatalf("BENCH is %q; it may be copy, catchup, lookup, verify, all, freeze or fanout", o.What)
	}
	for name, into := range map[string]*int{"RUNS": &o.Runs, "BENCH_ROWS": &o.Rows, "BENCH_TX": &o.Tx, "BENCH_BASE": &o.Base,
		"BENCH_SHARDS": &o.Shards, "BENCH_WORKERS": &o.Workers} {
		text := env(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q, not a number above 0", name, text)
		}
		*into = n
	}
	if o.Shards&(o.Shards-1) != 0 {
		t.Fatalf("BENCH_SHARDS is %d; the publications' row filters need a power of two", o.Shards)
	}
	return o
}

// bench is one source and a cluster a shard, all durable and with the same settings.
type bench struct {
	benchOptions
	t      *testing.T
	source *pgtest.Cluster
	shards []*pgtest.Cluster
	made   int // databases, for their names

	tenants int // sharding keys
}

// benchSettings are an expert's for a machine that takes in a lot: no checkpoint and no vacuum falls into what is
// measured. Durability is left as installed.
var benchSettings = map[string]string{
	"shared_buffers": "256MB", "min_wal_size": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
	"max_logical_replication_workers": "24", "max_sync_workers_per_subscription": "4",
	"wal_sender_timeout": "0", // a worker that is kept waiting
}

func newBench(t *testing.T, o benchOptions) *bench {
	t.Helper()
	b := &bench{t: t, benchOptions: o, tenants: benchTenants, source: pgtest.Start(t, pgtest.Options{Durable: true, Settings: benchSettings})}
	for shard := range o.Shards {
		c := pgtest.Start(t, pgtest.Options{Durable: true, Settings: benchSettings})
		b.shards = append(b.shards, c)
		// A native table copy names its slot after its OIDs and the subscriber's system identifier. These clusters are
		// copies of one, so that their OIDs must not be equal too.
		b.onServer(c, fmt.Sprintf(`select lo_unlink(lo_create(0)) from generate_series(1, %d)`, 1000*shard))
	}
	return b
}

// say tells where the run is: it takes minutes.
func (b *bench) say(format string, args ...any) { fmt.Printf("bench: "+format+"\n", args...) }

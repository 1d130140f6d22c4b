package move_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// benchFilter is a publication's row filter that lets through what belongs on a shard. PostgreSQL's hash partitioning
// takes (hash with this seed + 0x49a0f4dd15e5a8e3) modulo the number of shards; where that is a power of two, the
// sum's low bits are the hash's plus 3, and no sum of bigints can overflow.
func benchFilter(shard, shards int) string {
	low := (shard - 3 + 4*shards) % shards
	return fmt.Sprintf("(hashint8extended(tenant, 8816678312871386365) & %d) = %d", shards-1, low)
}

// native is PostgreSQL's own way to the same end: a publication with a row filter and a subscription for each shard.
type native struct {
	*bench
	from *pgtest.DB
	to   []*pgtest.DB
}

// What a subscription is made with besides its defaults. Its workers commit with synchronous_commit = off, which is the
// default; ours commit with on.
const benchSubscription = `binary = true, streaming = off, copy_data = true`

// publish makes the publications, and the tables with their identity index on the shards, before anything is timed.
func (b *bench) publish(from *pgtest.DB) *native {
	b.t.Helper()
	n := &native{bench: b, from: from, to: b.empty(true)}
	for shard, db := range n.to {
		from.Exec(b.t, fmt.Sprintf("create publication %s for table rows where (%s)", db.Name, benchFilter(shard, b.Shards)))
	}
	return n
}

// subscribe makes all subscriptions at once, as somebody in a hurry would. They begin to copy.
func (n *native) subscribe() {
	n.t.Helper()
	n.each(func(db *pgtest.DB) string {
		return fmt.Sprintf("create subscription %[1]s connection 'host=127.0.0.1 port=%[2]d user=postgres dbname=%[3]s' publication %[1]s with (%[4]s)",
			db.Name, n.source.Port, n.from.Name, benchSubscription)
	})
}

func (n *native) alter(what string) {
	n.t.Helper()
	n.each(func(db *pgtest.DB) string { return fmt.Sprintf("alter subscription %s %s", db.Name, what) })
}

// each runs SQL on every shard at the same time.
func (n *native) each(sql func(*pgtest.DB) string) {
	n.t.Helper()
	errs := make([]error, len(n.to))
	var wg sync.WaitGroup
	for i, db := range n.to {
		wg.Go(func() { errs[i] = execOn(n.t.Context(), db, sql(db)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

func execOn(ctx context.Context, db *pgtest.DB, sql string) error {
	conn, err := db.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// A table's state is f from the commit of its copy on, and r once its worker has handed it to the stream.
const (
	benchCopied = `select count(*) = 1 from pg_subscription_rel where srsubstate in ('f', 's', 'r')`
	benchReady  = `select count(*) = 1 from pg_subscription_rel where srsubstate = 'r'`
)

// quiet disables the subscriptions and waits until no walsender is left, so that they cost the other side nothing.
func (n *native) quiet() {
	n.t.Helper()
	n.alter("disable")
	n.until([]*pgtest.DB{n.from}, "select count(*) = 0 from pg_replication_slots where active", nil)
}

// close ends everything native and drops its databases.
func (n *native) close() {
	n.t.Helper()
	n.each(func(db *pgtest.DB) string { return "drop subscription " + db.Name })
	for _, db := range n.to {
		n.from.Exec(n.t, "drop publication "+db.Name)
	}
	n.drop(n.to...)
}

// pipe copies the whole table by psql into psql, into one database, and says how long that took and what both
// psql used.
func (b *bench) pipe(from, to *pgtest.DB) (took, used time.Duration) {
	b.t.Helper()
	psql := func(db *pgtest.DB, sql string) *exec.Cmd {
		cmd := exec.CommandContext(b.t.Context(), b.source.Bin("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", db.URL(), "-c", sql)
		cmd.Stderr = os.Stderr
		return cmd
	}
	out, in := psql(from, "copy rows to stdout (format binary)"), psql(to, "copy rows from stdin (format binary)")
	read, write, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out.Stdout, in.Stdin = write, read
	start := time.Now()
	for _, cmd := range []*exec.Cmd{out, in} {
		if err := cmd.Start(); err != nil {
			b.t.Fatal(err)
		}
	}
	_, _ = write.Close(), read.Close()
	for _, cmd := range []*exec.Cmd{out, in} {
		if err := cmd.Wait(); err != nil {
			b.t.Fatalf("psql: %v", err)
		}
		used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return time.Since(start), used
}

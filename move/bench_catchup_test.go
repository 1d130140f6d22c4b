package move_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// catchUp measures how fast a backlog is applied that was written while nobody followed. Each backlog is applied by both
// sides, one after the other, the first of them in turn. The clock runs, by the source's own word, from the start of the
// first walsender until the backlog's last transaction, which writes a row to every shard, is seen on all of them. (A
// position would say it later: PostgreSQL's workers report one only every wal_receiver_status_interval.) What comes
// before, from the start of our worker's process or from ALTER SUBSCRIPTION ENABLE, is told apart.
func (b *bench) catchUp() benchPart {
	from := b.fill(b.base())
	part := benchPart{title: fmt.Sprintf("Catch-up of %s transactions of 3 changes on %d shards", thousands(b.Tx), b.Shards)}
	peer := part.peer("native subscriptions")
	o, n := b.followers(from)
	log := &backlog{bench: b, db: from, marks: from.Query(b.t, benchMarks(b.Shards))}
	for run := range b.Runs {
		b.say("catch-up, run %d of %d", run+1, b.Runs)
		log.write()
		first, second := func() { o.catchUp(log, &part.ours) }, func() { n.catchUp(log, peer) }
		if run%2 == 1 {
			first, second = second, first
		}
		first()
		second()
		b.same("our catch-up", from, o.to)
		b.same("native catch-up", from, n.to)
		b.say("ours %s, native %s", seconds(part.ours.last()), seconds(peer.last()))
	}
	n.close()
	o.forget()
	b.drop(from)
	return part
}

// base is how many rows the table has: as many for every tenant, and at least two.
func (b *bench) base() int { return max(2, b.Base/b.tenants) * b.tenants }

// followers brings both sides to where they follow the source, and stops them there.
func (b *bench) followers(from *pgtest.DB) (*ours, *native) {
	o := &ours{bench: b, name: "catchup", from: from, to: b.empty(false)}
	o.start()
	o.entered("streaming")
	o.stop()
	n := b.publish(from)
	n.subscribe()
	n.until(n.to, benchReady, nil)
	n.quiet()
	for _, db := range n.to { // as our move has done on its own
		db.Exec(b.t, `vacuum (freeze, analyze) rows`)
	}
	return o, n
}

func (o *ours) catchUp(log *backlog, into *benchTimes) {
	o.t.Helper()
	o.settle()
	command, servers := time.Now(), o.servers()
	o.start()
	start := log.streaming(o.alive)
	end := o.until(o.to, log.seen(), o.alive)
	use := o.servers().since(servers)
	use.Client = o.used()
	use.Memory = o.stop()
	into.add(end.Sub(start), use)
	into.before = append(into.before, start.Sub(command))
}

func (n *native) catchUp(log *backlog, into *benchTimes) {
	n.t.Helper()
	n.settle()
	command, servers := time.Now(), n.servers()
	n.alter("enable")
	start := log.streaming(nil)
	into.add(n.until(n.to, log.seen(), nil).Sub(start), n.servers().since(servers))
	into.before = append(into.before, start.Sub(command))
	n.quiet()
}

// backlog writes transactions to the source's table.
type backlog struct {
	*bench
	db    *pgtest.DB
	marks [][]string // by shard: one tenant of its own
	done  int        // transactions written so far
	runs  int
}

// Transaction g concerns one tenant: it inserts a row, deletes that tenant's oldest, and updates one between them. The
// table keeps its size.
const benchTransactions = `do $do$ begin
for g in %[1]d .. %[2]d loop
	insert into rows select %[3]s;
	update rows set amount = amount + 1, status = 'changed' where tenant = g %% %[4]d
		and id = g + %[4]d * (1 + (hashint8(g) & 2147483647) %% (%[5]d / %[4]d - 1));
	delete from rows where tenant = g %% %[4]d and id = g;
	commit;
end loop; end $do$`

func (l *backlog) write() {
	l.t.Helper()
	ctx := l.t.Context()
	conn, err := l.db.Connect(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	l.runs++
	var last []string
	for _, mark := range l.marks {
		row := strings.Replace(l.row("1::bigint"), "1::bigint, 1::bigint % "+fmt.Sprint(l.tenants), fmt.Sprintf("-%d, %s", l.runs, mark[0]), 1)
		last = append(last, "insert into rows select "+row)
	}
	base := l.base()
	for _, sql := range []string{
		`set synchronous_commit = off`,
		fmt.Sprintf(benchTransactions, l.done, l.done+l.Tx-1, l.row(fmt.Sprintf("(g + %d)::bigint", base)), l.tenants, base),
		`set synchronous_commit = on`,
		strings.Join(last, "; "), // one transaction
	} {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			l.t.Fatalf("write the backlog: %v", err)
		}
	}
	l.done += l.Tx
}

// streaming waits for the first walsender and says when it started.
func (l *backlog) streaming(alive func() error) (at time.Time) {
	l.t.Helper()
	l.until([]*pgtest.DB{l.db}, `select count(*) > 0 from pg_stat_replication where state = 'streaming' or state = 'catchup'`, alive)
	conn, err := l.db.Connect(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(l.t.Context()))
	if err := conn.QueryRow(l.t.Context(), `select min(backend_start) from pg_stat_replication`).Scan(&at); err != nil {
		l.t.Fatal(err)
	}
	return at
}

// seen asks a shard for its row of the backlog's last transaction.
func (l *backlog) seen() string {
	return fmt.Sprintf("select exists (select from rows where id = -%d and tenant in (%s))", l.runs, strings.Join(column(l.marks), ", "))
}

// benchMarks finds a tenant of each shard.
func benchMarks(shards int) string {
	var of []string
	for shard := range shards {
		of = append(of, fmt.Sprintf("(select min(tenant) from rows where %s)", benchFilter(shard, shards)))
	}
	return "select unnest(array[" + strings.Join(of, ", ") + "])"
}

func column(rows [][]string) (out []string) {
	for _, r := range rows {
		out = append(out, r[0])
	}
	return out
}

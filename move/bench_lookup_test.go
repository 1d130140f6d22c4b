package move_test

import (
	"fmt"
	"syscall"
	"time"

	"pgreshard/pgtest"
)

// benchMappings is how many keys the lookup translates.
const benchMappings = 200_000

// mapped fills the source with rows whose keys the table mapping translates: each into itself, so that rows are placed as
// they are without.
func (b *bench) mapped(rows int) *pgtest.DB {
	b.tenants = benchMappings
	defer func() { b.tenants = benchTenants }()
	from := b.fill(rows)
	from.Exec(b.t, fmt.Sprintf(`create table mapping (id bigint primary key, home bigint not null);
		insert into mapping select n, n from generate_series(0, %d) n`, benchMappings-1))
	from.Exec(b.t, `vacuum (freeze, analyze) mapping`)
	return from
}

// copyTranslated measures what a lookup costs the copy: the same tables, mapping among them, copied by the same worker, with
// the key translated and as it is, in turn.
func (b *bench) copyTranslated() benchPart {
	from := b.mapped(b.Rows)
	part := benchPart{title: fmt.Sprintf("Copy of %s rows with %s keys that a lookup translates", thousands(b.Rows), thousands(benchMappings))}
	plain := part.peer("pgreshard without the lookup")
	for run := range b.Runs {
		b.say("copy with a lookup, run %d of %d", run+1, b.Runs)
		b.copyOurs(&ours{bench: b, name: fmt.Sprintf("translated%d", run+1), from: from, mapping: true, lookup: true}, &part.ours)
		b.copyOurs(&ours{bench: b, name: fmt.Sprintf("plain%d", run+1), from: from, mapping: true}, plain)
		b.say("with %s, without %s", seconds(part.ours.last()), seconds(plain.last()))
	}
	b.drop(from)
	return part
}

// catchUpTranslated measures what a lookup costs the stream once its cache is warm: two workers follow, one with the lookup and
// one without, and are suspended while a backlog is written; each in its turn goes on. The clock runs from there until the
// backlog's last transaction is seen on all shards. The copy has filled the cache.
func (b *bench) catchUpTranslated() benchPart {
	from := b.mapped(max(b.base(), 2*benchMappings))
	part := benchPart{title: fmt.Sprintf("Catch-up of %s transactions whose keys a lookup translates, the cache warm", thousands(b.Tx))}
	plain := part.peer("pgreshard without the lookup")
	sides := []*ours{{bench: b, name: "translated", from: from, mapping: true, lookup: true}, {bench: b, name: "plain", from: from, mapping: true}}
	into := []*benchTimes{&part.ours, plain}
	for _, o := range sides {
		o.to = b.empty(false)
		o.start()
		o.entered("streaming")
	}
	log := &backlog{bench: b, db: from, marks: from.Query(b.t, benchMarks(b.Shards))}
	for run := range b.Runs {
		b.say("catch-up with a lookup, run %d of %d", run+1, b.Runs)
		for _, o := range sides {
			o.signal(syscall.SIGSTOP)
		}
		log.write()
		for turn := range sides {
			side := (turn + run) % 2
			sides[side].resumed(log, into[side])
		}
		for _, o := range sides {
			b.same(o.name, from, o.to)
		}
		b.say("with %s, without %s", seconds(part.ours.last()), seconds(plain.last()))
	}
	for side, o := range sides {
		o.signal(syscall.SIGCONT)
		into[side].use[0].Memory = o.stop()
	}
	for _, o := range sides {
		o.drop(o.to...)
	}
	from.Exec(b.t, `select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()`)
	b.drop(from)
	return part
}

// resumed measures how fast a suspended worker applies what was written.
func (o *ours) resumed(log *backlog, into *benchTimes) {
	o.t.Helper()
	o.settle()
	servers, worker, start := o.servers(), o.used(), time.Now()
	o.signal(syscall.SIGCONT)
	end := o.until(o.to, log.seen(), o.alive)
	use := o.servers().since(servers)
	use.Client = o.used() - worker
	into.add(end.Sub(start), use)
	o.signal(syscall.SIGSTOP) // what it still does is not the other's
}

func (o *ours) signal(s syscall.Signal) {
	o.t.Helper()
	if err := o.work.cmd.Process.Signal(s); err != nil {
		o.t.Fatal(err)
	}
}

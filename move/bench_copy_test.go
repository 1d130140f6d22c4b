package move_test

import (
	"fmt"
	"time"

	"pgreshard/pgtest"
)

// copy measures the initial copy, each side in turn. The clocks:
//
// Ours runs from the move's state "copying" to its state "indexing", as its journal has them: slot, snapshot, every
// chunk's commit. Native runs from CREATE SUBSCRIPTION to the last table's copy committed (state f), and to the last
// table ready to follow (state r). The pipe is the run of both psql.
func (b *bench) copy() benchPart {
	from := b.fill(b.Rows)
	size := from.Query(b.t, `select pg_size_pretty(pg_table_size('rows')), round(avg(pg_column_size(r.*) - 24)) from (select * from rows limit 10000) r`)[0]
	part := benchPart{title: fmt.Sprintf("Copy of %s rows of %s bytes (%s) to %d shards", thousands(b.Rows), size[1], size[0], b.Shards)}
	copied, ready := part.peer("native subscriptions, rows committed"), part.peer("native subscriptions, ready to follow")
	piped := part.peer("psql into psql, binary, into one shard")
	for run := range b.Runs {
		b.say("copy, run %d of %d", run+1, b.Runs)
		b.copyOurs(&ours{bench: b, name: fmt.Sprintf("copy%d", run+1), from: from}, &part.ours)
		b.copyNative(from, copied, ready)
		b.copyPipe(from, piped)
		b.say("ours %s, native %s (%s until ready), pipe %s", seconds(part.ours.last()), seconds(copied.last()), seconds(ready.last()), seconds(piped.last()))
	}
	b.drop(from)
	return part
}

func (b *bench) copyOurs(o *ours, into *benchTimes) {
	o.to = b.empty(false)
	b.settle()
	o.start()
	start := o.entered("copying")
	servers, worker := b.servers(), o.used()
	end := o.entered("indexing")
	use := b.servers().since(servers)
	use.Client = o.used() - worker
	o.entered("streaming")
	use.Memory = o.stop()
	into.add(end.Sub(start), use)
	b.same("our copy", o.from, o.to)
	o.forget()
}

func (b *bench) copyNative(from *pgtest.DB, copied, ready *benchTimes) {
	n := b.publish(from)
	b.settle()
	start, servers := time.Now(), b.servers()
	n.subscribe()
	copied.add(n.until(n.to, benchCopied, nil).Sub(start), b.servers().since(servers))
	ready.add(n.until(n.to, benchReady, nil).Sub(start), b.servers().since(servers))
	b.same("native copy", from, n.to)
	n.close()
}

func (b *bench) copyPipe(from *pgtest.DB, into *benchTimes) {
	to := b.database(b.shards[0])
	b.settle()
	servers := b.servers()
	took, client := b.pipe(from, to)
	use := b.servers().since(servers)
	use.Client = client
	into.add(took, use)
	b.same("psql's copy", from, []*pgtest.DB{to})
	b.drop(to)
}

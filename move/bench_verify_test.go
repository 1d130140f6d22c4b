package move_test

import (
	"fmt"
	"io"
	"time"

	"pgreshard/pgtest"
)

// verify measures how long the comparison of everything takes beside the copy of it, by the same worker in the same run. The clock of the
// copy is that of the benchmark of copies; that of the comparison runs from the asking until its outcome is on record.
func (b *bench) verify() benchPart {
	from := b.fill(b.Rows)
	part := benchPart{title: fmt.Sprintf("Verification of %s rows on %d shards", thousands(b.Rows), b.Shards)}
	copied := part.peer("their copy, by the same worker")
	for run := range b.Runs {
		b.say("verification, run %d of %d", run+1, b.Runs)
		b.verifyOurs(&ours{bench: b, name: fmt.Sprintf("verify%d", run+1), from: from}, &part.ours, copied)
		b.say("copied in %s, verified in %s", seconds(copied.last()), seconds(part.ours.last()))
	}
	b.drop(from)
	return part
}

func (b *bench) verifyOurs(o *ours, verified, copied *benchTimes) {
	o.to = b.empty(false)
	b.settle()
	o.start()
	start := o.entered("copying")
	servers, worker := b.servers(), o.used()
	end := o.entered("indexing")
	use := b.servers().since(servers)
	use.Client = o.used() - worker
	copied.add(end.Sub(start), use)
	o.entered("streaming")
	b.settle()

	servers, worker, start = b.servers(), o.used(), time.Now()
	if _, err := io.WriteString(o.work.input, "verify\n"); err != nil {
		o.t.Fatal(err)
	}
	end = b.until([]*pgtest.DB{o.to[0]}, `select coalesce(bool_or(detail -> 'verified' ->> 'state' = 'clean'), false) from pgreshard.move`, o.alive)
	use = b.servers().since(servers)
	use.Client = o.used() - worker
	use.Memory = o.stop()
	verified.add(end.Sub(start), use)
	b.same("what was verified", o.from, o.to)
	o.forget()
}

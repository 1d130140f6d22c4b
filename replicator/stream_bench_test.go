package replicator

import (
	"context"
	"testing"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// BenchmarkStream streams one transaction of 500,000 rows again and again from a real server: what it takes beside
// the server's own work is the difference to the server's decoding alone.
func BenchmarkStream(b *testing.B) {
	db := pgtest.Shared(b).Database(b)
	db.Exec(b, `create table a (id int primary key, t text, n numeric, at timestamptz, f bool, v text)`)
	conn, err := db.Connect(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(b.Context())
	if err := CreatePublication(b.Context(), conn, "p", []pg.Name{{Schema: "public", Table: "a"}}); err != nil {
		b.Fatal(err)
	}
	slot, err := CreateSlot(b.Context(), db.Shard(0), slotOf(db), false)
	if err != nil {
		b.Fatal(err)
	}
	slot.Close()
	db.Exec(b, `insert into a select i, 'tenant-' || i % 100, i * 1.5, now(), true, md5(i::text) from generate_series(1, 500000) i`)
	rows := 0
	for b.Loop() {
		stream := New(Config{Shard: db.Shard(0), Slot: slotOf(db), Publication: "p", Start: slot.ConsistentPoint})
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- stream.Run(ctx) }()
		for block := range stream.Blocks() {
			rows += len(block.Changes)
			if block.Changes != nil && block.Changes[len(block.Changes)-1].Op == pg.OpCommit {
				cancel()
			}
			stream.Release(block)
		}
		cancel()
		<-done
	}
	b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
}

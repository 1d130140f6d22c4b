package replicator

import (
	"runtime"
	"testing"

	"pgreshard/pg"
)

// BenchmarkDecodeRow decodes inserts of 12 columns, blocks taken at the size the stream takes them.
func BenchmarkDecodeRow(b *testing.B) {
	d := newDecoder()
	for _, m := range [][]byte{
		relationMessage(1, "public", "orders", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"),
		beginMessage(0x100, 7),
	} {
		if err := d.decode(0, m); err != nil {
			b.Fatal(err)
		}
	}
	// A worker has a heap (lookup cache, queue); with none the collector would run every few milliseconds.
	heap := make([]byte, 64<<20)
	defer runtime.KeepAlive(heap)
	row := text("1234567", "42", "open", "2024-05-05 12:00:00+00", "19.99", "EUR", "f", "", "some words of a note", "7", "t")
	msg := insertMessage(1, append(row, pg.Datum{Kind: pg.Null}))
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	for b.Loop() {
		if err := d.decode(0x90, msg); err != nil {
			b.Fatal(err)
		}
		if d.size >= blockBytes {
			d.take()
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}

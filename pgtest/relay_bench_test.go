package pgtest

import (
	"io"
	"testing"
)

// BenchmarkCopyOut shows what a relay costs.
func BenchmarkCopyOut(b *testing.B) {
	db := Shared(b).Database(b)
	relay, err := ListenRelay(db.Cluster.Addr())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(relay.Close)
	for _, path := range []struct {
		name string
		db   *DB
	}{{"direct", db}, {"through a relay", db.Via(relay)}} {
		b.Run(path.name, func(b *testing.B) {
			conn := path.db.Conn(b).PgConn()
			b.SetBytes(200_000 * 100)
			for b.Loop() {
				if _, err := conn.CopyTo(b.Context(), io.Discard, `copy (select repeat('x', 99) from generate_series(1, 200000)) to stdout`); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package layout

import (
	"encoding/binary"
	"testing"

	"pgreshard/pg"
)

func hotKeys() map[string]struct {
	typeName string
	key      pg.Datum
} {
	id := "7b0dbb1e-3a57-4a26-9f60-1f0c9a6f7d11"
	return map[string]struct {
		typeName string
		key      pg.Datum
	}{
		"bigint binary":  {"bigint", binaryOf(binary.BigEndian.AppendUint64(nil, 123456789012345))},
		"bigint text":    {"bigint", text("123456789012345")},
		"integer binary": {"integer", binaryOf(binary.BigEndian.AppendUint32(nil, 1234567))},
		"uuid binary":    {"uuid", binaryOf([]byte("0123456789abcdef"))},
		"uuid text":      {"uuid", text(id)},
		"text of 32":     {"text", text("07b92136fa5807c9d1d582776faf4852")},
		"numeric text":   {"numeric", text("1234567.89")},
		"timestamptz":    {"timestamptz", text("2026-11-29 12:34:56.789012+00")},
	}
}

func BenchmarkPlaceByHash(b *testing.B) {
	for name, hot := range hotKeys() {
		b.Run(name, func(b *testing.B) {
			r := hashRule(b, 4, hot.typeName)
			key := key(hot.key)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Place(key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPlaceByMapping(b *testing.B) {
	var m []Mapping
	for i := range 1000 {
		m = append(m, Mapping{Column: "k", Kind: KindList, Values: []any{i * 3}, Shard: on(i % 4)},
			Mapping{Column: "k", Kind: KindRange, Start: 10_000 + i*10, End: 10_000 + i*10 + 10, Shard: on(i % 4)})
	}
	r := ruleOf(b, Spec{Shards: 4, Tables: []ShardedTable{{Column: "k"}}, Mappings: m}, tableOf("public.t", "k bigint"))
	for name, k := range map[string]string{"list of 1000": "1500", "range of 1000": "15003"} {
		b.Run(name, func(b *testing.B) {
			key := key(text(k))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Place(key); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestPlacingDoesNotAllocate(t *testing.T) {
	for name, hot := range hotKeys() {
		r, key := hashRule(t, 4, hot.typeName), key(hot.key)
		if n := testing.AllocsPerRun(100, func() { _, _ = r.Place(key) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

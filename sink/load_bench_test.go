package sink_test

import (
	"fmt"
	"testing"

	"pgreshard/copier"
	"pgreshard/pg"
)

// BenchmarkCopy copies a million rows of about 250 bytes into four keyed databases of the same cluster; routing is a
// remainder, so the figure is the copier's and the loader's. -benchtime 3x is plenty.
func BenchmarkCopy(b *testing.B) {
	const rows = 1_000_000
	r := newRig(b, 4, `create table t (id bigint primary key, tenant bigint, a text, b text, at timestamptz, n numeric, c text, d int)`)
	r.source.Exec(b, fmt.Sprintf(`insert into t select i, i %% 1000, repeat(md5(i::text), 2), repeat(md5((i + 1)::text), 3), now(), i / 7.0, md5(i::text), i
		from generate_series(1, %d) i`, rows))
	r.keys["t"] = []string{"tenant"}
	into := r.catalog(r.shards[0])
	for _, format := range []copier.Format{copier.Binary, copier.Text} {
		b.Run(string(format), func(b *testing.B) {
			r.format = format
			var bytes int64
			for b.Loop() {
				b.StopTimer()
				for _, s := range r.shards {
					s.Exec(b, `truncate t; truncate pgreshard.mark; checkpoint`)
				}
				from := r.catalog(r.source).Table(pg.Name{Schema: "public", Table: "t"})
				c, err := copier.Plan(from, into.Table(from.Name), r.keys["t"], true, format)
				if err != nil {
					b.Fatal(err)
				}
				var progress copier.Progress
				r.config = func(config *copier.Config) { config.Progress, config.Workers = &progress, 4 }
				chunks := copier.Split(c, copier.ChunkPages(from, 4))
				b.StartTimer()
				if err := r.run(b.Context(), chunks); err != nil {
					b.Fatal(err)
				}
				bytes = progress.Tables()[0].Bytes
			}
			b.ReportMetric(float64(bytes)/1e6*float64(b.N)/b.Elapsed().Seconds(), "MB/s")
			b.ReportMetric(rows*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"pgreshard/pgtest"
)

// A worker killed when four fifths of a large table are copied reads the rest and nothing else again.
func TestATableKilledAtFourFifthsDoesNotStartOver(t *testing.T) {
	t.Parallel()
	const rows, at = 20_000, 16_500 // 80 MB, eight chunks
	cluster := pgtest.Shared(t)
	source, shards := cluster.Database(t), []*pgtest.DB{cluster.Database(t), cluster.Database(t)}
	source.Exec(t, fmt.Sprintf(`create table notes (id int primary key, tenant int, note text, pad text);
		alter table notes alter pad set storage plain;
		insert into notes select g, g %% 7, 'note ' || g, repeat('x', 3800) from generate_series(1, %d) g`, rows))
	relay := pgtest.NewRelay(t, cluster.Addr())
	r := &rig{t: t, listen: freePort(t), sources: []*pgtest.DB{source}, shards: shards, file: filepath.Join(t.TempDir(), "pgreshard.toml"), env: []string{stateVariable + "=" + t.TempDir()}}
	writeConfig(t, r.file, nameOf(source), r.listen, urls([]*pgtest.DB{source.Via(relay)}), urls(shards),
		"[cutover]\nreverse = false\n[copy]\nworkers = 2\nformat = \"text\"\n[[sharded_tables]]\ncolumn = \"tenant\"\n")

	// Two connections read one chunk after another; all but the last two are held when the row comes.
	there := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Contains: fmt.Sprintf("\tnote %d\t", at), Do: pgtest.Stall})
	p := r.start("migrate", "--yes")
	select {
	case <-there:
	case <-p.ended:
		t.Fatalf("it ended with %d:\n%s", p.code, p.both.String())
	}
	p.kill()
	relay.Clear()
	relay.Resume(pgtest.ToClient)
	// A chunk that the kill found between the commits of two shards is read again for the second.
	heldBy := func(shard *pgtest.DB) string {
		return shard.Query(t, `select array_agg(chunk) from pgreshard.chunk`)[0][0]
	}
	held := source.Query(t, `select count(*), count(distinct (ctid::text::point)[0]::int / $1::int) from notes
			where (ctid::text::point)[0]::int / $1::int in (select unnest($2::text::int[]) intersect select unnest($3::text::int[]))`,
		shards[0].Query(t, `select jsonb_path_query(detail -> 'pages_0', '$.*') from pgreshard.move`)[0][0], heldBy(shards[0]), heldBy(shards[1]))
	var copied, chunks int
	if _, err := fmt.Sscan(held[0][0]+" "+held[0][1], &copied, &chunks); err != nil || copied < rows*6/10 || chunks < 5 {
		t.Fatalf("%d rows in %d chunks are held, %v", copied, chunks, err)
	}

	source.Exec(t, `update notes set note = 'changed' where id % 1000 = 0; delete from notes where id % 1001 = 0`)
	relay.ResetCounts()
	if code, _, said := r.run("migrate", "--yes"); code != exitDone {
		t.Fatalf("migrate: %d\n%s", code, said)
	}
	c := relay.Counts().ToClient
	read := c["CopyData"].Messages - c["XLogData"].Messages - c["PrimaryKeepalive"].Messages
	t.Logf("%d of %d rows in %d chunks were held; %d were read after the kill", copied, rows, chunks, read)
	if most := rows - copied + 100; read > most {
		t.Errorf("%d rows were read after the kill, want at most %d", read, most)
	}
	if err := pgtest.SameRows(t.Context(), r.conns(r.sources), r.conns(r.shards), "notes", pgtest.RowsOptions{}); err != nil {
		t.Error(err)
	}
}

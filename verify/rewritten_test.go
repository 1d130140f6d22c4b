package verify

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// hold takes a snapshot of every node, which the request then reads under.
func hold(t *testing.T, dbs []*pgtest.DB, nodes []Node) {
	t.Helper()
	for i, db := range dbs {
		conn := db.Conn(t)
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.QueryRow(t.Context(), `select pg_export_snapshot()`).Scan(&nodes[i].Snapshot); err != nil {
			t.Fatal(err)
		}
	}
}

// What happens to a table between a snapshot and the look at it, and is seen under the snapshot too, is neither taken for a
// difference nor hides one. What the snapshot does not see is no matter.
func TestATableThatIsEmptiedUnderASnapshotIsNotCompared(t *testing.T) {
	t.Parallel()
	const (
		ddl = `create table parts (k int, id int) partition by range (id);
			create table parts_1 partition of parts for values from (0) to (100); create table parts_2 partition of parts for values from (100) to (1000);
			create table plain (k int, id int primary key, note text)`
		all = `insert into parts select 0, g from generate_series(1, 300) g; insert into plain select 0, g, 'n' from generate_series(1, 300) g`
	)
	for name, c := range map[string]struct {
		source, shard string // done there behind the snapshots
		rewritten     bool
	}{
		"nothing":            {},
		"rows":               {source: `insert into plain values (0, 301, 'x'); delete from parts where id < 50`, shard: `update plain set note = 'y'`},
		"another table":      {source: `create table other (id int)`, shard: `create table parts_9 (k int, id int)`},
		"source emptied":     {source: `truncate plain`, rewritten: true},
		"shard emptied":      {shard: `truncate plain`, rewritten: true},
		"both emptied":       {source: `truncate plain`, shard: `truncate plain`, rewritten: true},
		"partition emptied":  {shard: `truncate parts_2`, rewritten: true},
		"partition detached": {source: `alter table parts detach partition parts_1`, rewritten: true},
		"partition dropped":  {shard: `drop table parts_1`, rewritten: true},
		"written anew":       {source: `cluster plain using plain_pkey`, rewritten: true},
		"made again":         {shard: `drop table plain; create table plain (k int, id int primary key, note text)`, rewritten: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setUp(t, 1, 1, ddl)
			for _, db := range []*pgtest.DB{b.sources[0], b.shards[0]} {
				b.exec(t, db, all)
			}
			r := b.request(t)
			hold(t, b.sources, r.Sources)
			hold(t, b.shards, r.Shards)
			if c.source != "" {
				b.exec(t, b.sources[0], c.source)
			}
			if c.shard != "" {
				b.exec(t, b.shards[0], c.shard)
			}
			report, err := Run(t.Context(), r)
			totals := Totals(t.Context(), r, func(TableTotals) {})
			if c.rewritten != errors.Is(err, ErrRewritten) || c.rewritten != errors.Is(totals, ErrRewritten) {
				t.Errorf("it ended with %v, and adding up with %v", err, totals)
			}
			if !c.rewritten && !report.Clean() {
				t.Errorf("%+v", report)
			}
		})
	}
}

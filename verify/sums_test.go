package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// opened is a verifier over a bench's request, for its parts.
func opened(t *testing.T, b *bench, r Request) *verifier {
	t.Helper()
	v, err := begin(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.close)
	return v
}

func TestATableReadInRangesAddsUpToTheWhole(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 1, `create table m (id int primary key, note text) partition by range (id);
		create table m1 partition of m for values from (0) to (5000);
		create table m2 partition of m default;
		insert into m select g, repeat('x', 100) || g from generate_series(1, 20000) g;
		create table one (id int primary key, note text); create table none (id int primary key);
		insert into one select * from m`)
	v := opened(t, b, b.request(t))
	for i := range v.Tables {
		table := &v.Tables[i]
		s := v.side(table, v.sources...)
		whole, err := v.sums(t.Context(), table, s)
		if err != nil {
			t.Fatal(err)
		}
		v.rangePages = 10
		ranges, err := v.ranges(t.Context(), s.nodes[0], table, s.sql)
		if want := table.Source.Name.Table != "none"; err != nil || (len(ranges) > v.Parallel) != want { // so that it can give way to load between two
			t.Errorf("%s is read in ranges %q, %v", table.Source.Name, ranges, err)
		}
		parts, err := v.sums(t.Context(), table, s)
		if err != nil {
			t.Fatal(err)
		}
		v.rangePages = rangePages
		if list, _ := differing(whole, parts); len(list) > 0 || whole.rows() != parts.rows() {
			t.Errorf("%s: %d buckets differ, %d and %d rows", table.Source.Name, len(list), whole.rows(), parts.rows())
		}
	}
}

// The record hash alone is linear in the columns' hashes: rows of one bucket that exchange a value have its sum.
func TestRowsOfOneBucketThatExchangeAValueAreFound(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 1, `create table m (id int primary key, a text, b bigint, c numeric);
		insert into m select g, 'a' || g, g, g from generate_series(1, 2000) g`)
	r := b.request(t)
	r.Limit = 2_000
	bucket := expressions{own: r.Tables[0].Source, other: r.Tables[0].Dest}.bucket([]string{"id"})
	pairs := b.shards[0].Query(t, "select min(id), max(id) from m group by "+bucket+" having count(*) = 2")
	if len(pairs) < 100 {
		t.Fatalf("only %d pairs share a bucket", len(pairs))
	}
	var swap strings.Builder
	for i, p := range pairs {
		column := []string{"a", "b", "c"}[i%3]
		fmt.Fprintf(&swap, "update m set %s = (select %[1]s from m o where o.id = %[2]s + %[3]s - m.id) where id in (%[2]s, %[3]s);", column, p[0], p[1])
	}
	b.shards[0].Exec(t, swap.String())
	if got := run(t, r).Tables[0]; int(got.Different) != 2*len(pairs) || got.Differences() != got.Different {
		t.Errorf("%d rows differ, found %+v", 2*len(pairs), got)
	}
}

func TestLookingInBlocksStopsAtTheLimitAndSaysSo(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 2, orders)
	b.spread(t, 1_000)
	b.shards[0].Exec(t, "truncate orders, events")
	r := b.request(t)
	r.Limit = 5
	v := opened(t, b, r)
	v.blockRows = 20
	for i := range v.Tables {
		var report TableReport
		if err := v.table(t.Context(), &v.Tables[i], &report); err != nil {
			t.Fatal(err)
		}
		if !report.AtLeast || report.State != Differs || len(report.Keys) != 5 || report.Missing < 5 || report.Missing > 100 {
			t.Errorf("%+v", report)
		}
	}
}

func TestRowsAreReadUnderTheSnapshotNamed(t *testing.T) {
	t.Parallel()
	b := &bench{sources: []*pgtest.DB{pgtest.Shared(t).Database(t)}, shards: []*pgtest.DB{pgtest.Shared(t).Database(t)}}
	for _, db := range slices.Concat(b.sources, b.shards) {
		db.Exec(t, "create table m (id int primary key); insert into m values (1)")
	}
	r := b.request(t)
	tx, err := b.sources[0].Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), "select pg_export_snapshot()").Scan(&r.Sources[0].Snapshot); err != nil {
		t.Fatal(err)
	}
	b.sources[0].Exec(t, "insert into m values (2)")
	if report := run(t, r); !report.Clean() || report.Tables[0].Rows != 1 {
		t.Errorf("%+v", report.Tables[0])
	}
	r.Sources[0].Snapshot = ""
	if report := run(t, r); report.Clean() {
		t.Errorf("%+v", report.Tables[0])
	}
}

package survey

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// small makes a sample of a table of some thousand rows.
var small = Limits{Rows: 4000, MinBlocks: 60, MaxBlocks: 150, Time: 10 * time.Second}

// sampled reads, places and counts one table of a database.
func sampled(t *testing.T, db *pgtest.DB, name string, spec layout.Spec, q *lookup.Query, limits Limits) (*Sample, *layout.Layout) {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Reader, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(conn)
	catalog, err := pg.ReadCatalog(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	root := catalog.Table(pg.Name{Schema: "public", Table: name})
	l, err := layout.Compile(spec, []*pg.Table{root})
	if err != nil {
		t.Fatal(err)
	}
	s := NewSample(Table{Name: root.Name, Rule: l.Rule(root.Name), Query: q})
	if err := s.Read(t.Context(), conn, 0, catalog.Leaves(root), limits); err != nil {
		t.Fatal(err)
	}
	if err := s.Place(t.Context(), lookup.Conn(conn.PgConn())); err != nil {
		t.Fatal(err)
	}
	if err := s.Count(t.Context(), conn, root, limits); err != nil {
		t.Fatal(err)
	}
	return s, l
}

// The rows of a Zipf-skewed tenant, stored as they came: a third of them tenant by tenant, so that blocks are alike.
const skewed = `create table events (id bigint primary key, tenant bigint, note text);
	insert into events select g, case when g % 3 = 0 then g / 400 else floor(power(random(), 4) * 200) end, repeat('x', 20 + (g % 60))
	  from (select setseed(0.42)) s, generate_series(1, 60000) g;
	insert into events select g, 7777, repeat('y', 100) from generate_series(60001, 64000) g;
	create table of_bigint (k bigint) partition by hash (k); analyze events`

func TestSharesAreThoseThatPlainSQLFinds(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, skewed)
	const shards = 4
	for name, limits := range map[string]Limits{"a sample": small, "the whole table": {Rows: 1e6, MaxBlocks: 1e6, Time: 10 * time.Second}} {
		s, _ := sampled(t, db, "events", layout.Spec{Shards: shards, Tables: []layout.ShardedTable{{Column: "tenant"}}}, nil, limits)
		r := s.Report(shards, true)
		if whole := name != "a sample"; r.Read.Whole != whole || whole != (r.Read.Rows == 64000) {
			t.Errorf("%s: %+v", name, r.Read)
		}
		if math.Abs(float64(r.Rows)/64000-1) > 0.05 {
			t.Errorf("%s: about %d rows, there are 64000", name, r.Rows)
		}
		for _, share := range r.Shares {
			got := db.Query(t, fmt.Sprintf(`select count(*)::float8 / 64000, sum(28 + 8 + 8 + pg_column_size(note))::float8 /
				(select sum(28 + 8 + 8 + pg_column_size(note)) from events)
				from events where satisfies_hash_partition('of_bigint'::regclass, %d, %d, tenant)`, shards, share.Shard))
			rows, bytes := number(t, got[0][0]), number(t, got[0][1])
			if off := math.Abs(rows - share.Rows); off > 2*share.Error+1e-9 || share.Error > 0.06 || r.Read.Whole && share.Error != 0 {
				t.Errorf("%s: shard %d has %.4f of the rows, foretold %.4f ± %.4f", name, share.Shard, rows, share.Rows, share.Error)
			}
			if math.Abs(bytes-share.Bytes) > 2*share.Error+1e-6 {
				t.Errorf("%s: shard %d has %.4f of the bytes, foretold %.4f", name, share.Shard, bytes, share.Bytes)
			}
		}
		// The heaviest keys are counted, whatever was sampled.
		checked := 0
		for _, h := range r.Largest {
			if h.Share < 0.01 {
				continue
			}
			checked++
			got := db.Query(t, "select count(*) from events where tenant = $1::bigint", h.Key)
			if !h.Exact || got[0][0] != strconv.FormatInt(h.Rows, 10) {
				t.Errorf("%s: key %s has %s rows, told %d, exact %v", name, h.Key, got[0][0], h.Rows, h.Exact)
			}
		}
		heavy := number(t, db.Query(t, "select count(*) from (select from events group by tenant having count(*) >= 0.01 * 64000) t")[0][0])
		if checked != int(heavy) {
			t.Errorf("%s: %d keys above a hundredth are named, there are %v", name, checked, heavy)
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// One placement value: what a rule places by is what is compared, so a layout that grows moves as many rows as foretold.
func TestWhatGrowingMovesIsWhatTheRulesMove(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table t (k bigint primary key); insert into t select generate_series(1, 20000); analyze t`)
	rule := func(shards int) layout.Spec {
		return layout.Spec{Shards: shards, Tables: []layout.ShardedTable{{Column: "k", Placement: layout.PlacementSlots, Slots: 1024}}}
	}
	s, nine := sampled(t, db, "t", rule(9), nil, Usual)
	_, eight := sampled(t, db, "t", rule(8), nil, Usual)
	from, to := eight.Rules()[0], nine.Rules()[0]
	moved := 0
	for k := range 20000 {
		key := []pg.Datum{{Kind: pg.Text, Bytes: strconv.AppendInt(nil, int64(k)+1, 10)}}
		a, errA := from.Place(key)
		b, errB := to.Place(key)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if a != b {
			moved++
		}
	}
	own, ok := s.Configured(from.Placement(), 8, 9)
	if want := float64(moved) / 20000; !ok || own.Rows != want || own.Keys != want {
		t.Errorf("the rules move %.4f, foretold %+v", want, own)
	}
	for _, c := range s.Compare(8, 9, 9) {
		if c.Strategy == "1024 slots, handed over whole" && (c.Rows != own.Rows || c.Largest != own.Largest) {
			t.Errorf("as a strategy %+v, as the rule %+v", c, own)
		}
	}
	if costs := s.Compare(9, 4, 10); len(costs) != 7*len(Strategies())-1 || costs[len(costs)-1].From != 9 {
		t.Errorf("a sweep has %d rows", len(costs))
	}
}

func TestWhatNoPlacementMendsIsSaid(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table hot (id bigint primary key, tenant text); insert into hot select g, case when g % 3 = 0 then 'secret' else 't' || g end from generate_series(1, 9000) g;
		create table grows (id bigint primary key, v int); create table parents (id bigint primary key, parent bigint);
		insert into parents select g, g / 2 from generate_series(1, 50) g; create table kids (id bigint primary key, p bigint);
		insert into kids select g, g % 60 from generate_series(0, 599) g`)
	for n := range 20 { // in transactions of their own: a row's age tells when it was written
		db.Exec(t, fmt.Sprintf("insert into grows select g, 0 from generate_series(%d, %d) g", n*100, n*100+99))
	}
	db.Exec(t, "analyze")
	modulo := func(column string) layout.Spec {
		return layout.Spec{Shards: 4, Tables: []layout.ShardedTable{{Column: column}}}
	}
	says := func(r *Report, what string) bool {
		for _, w := range r.Warnings {
			if strings.Contains(w.What, what) && w.Hint != "" {
				return true
			}
		}
		return false
	}
	s, _ := sampled(t, db, "hot", modulo("tenant"), nil, Usual)
	r := s.Report(4, true)
	if !says(r, "key secret alone has 33.3 % of the rows, 1.33 times what an average shard of 4 has") || len(r.Warnings) == 0 || len(r.Warnings[0].SubKeys) != 5 {
		t.Fatalf("a hot key: %+v", r.Warnings)
	}
	if sub := r.Warnings[0].SubKeys; sub[4].Hottest >= sub[0].Hottest || sub[4].Hit < 2 {
		t.Errorf("sub-keys: %+v", sub)
	}
	if keys := s.Weighed(); keys[0].Rows != 3000 || keys[0].Position != 0 || keys[1].Position != position(3000.0/9000) {
		t.Errorf("the first keys in order: %+v", keys[:2]) // secret comes before t1
	}
	if r.Growing || len(r.Largest) != 1 {
		t.Errorf("growing %v, largest %+v", r.Growing, r.Largest)
	}
	for _, w := range s.Report(4, false).Warnings {
		if strings.Contains(w.What+w.Hint, "secret") {
			t.Errorf("a key that must not be shown: %s", w.What)
		}
	}
	if h := s.Report(4, false).Largest[0]; !strings.HasPrefix(h.Key, "hash ") {
		t.Errorf("a key that must not be shown: %+v", h)
	}

	shard, other, from := 0, 1, any(int64(1000))
	ranges := layout.Spec{Shards: 2, Tables: []layout.ShardedTable{{Column: "id", Mapping: []layout.Mapping{
		{Kind: layout.KindRange, End: from, Shard: &shard}, {Kind: layout.KindRange, Start: from, End: any(int64(1900)), Shard: &other}}}}}
	s, _ = sampled(t, db, "grows", ranges, nil, Usual)
	r = s.Report(2, true)
	if !r.Growing || !says(r, "keys increase") || !says(r, "100 of the 2000 rows that were read have a key that no rule names a shard for") || r.Unplaced != 100 {
		t.Errorf("increasing keys: %+v", r)
	}
	if r.Shares[0].Recent != 0 || r.Shares[1].Recent != 1 {
		t.Errorf("rows written last: %+v", r.Shares)
	}

	// A translated key: kids of 51 to 59 and 0 have no mapping row.
	spec := modulo("p")
	spec.Tables[0].LookupQuery, spec.Tables[0].DataType = "select parent from parents where id = $1", "bigint"
	s, _ = sampled(t, db, "kids", spec, &lookup.Query{SQL: spec.Tables[0].LookupQuery}, Usual)
	if r = s.Report(4, true); r.Unplaced != 100 || r.Read.Keys != 27 || !says(r, "100 of the 600 rows") {
		t.Errorf("translated keys: %+v", r)
	}
}

// A statement that takes too long ends with an error and nothing else.
func TestASampleThatTakesTooLongEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table t (k bigint primary key); insert into t select generate_series(1, 200)`)
	conn := db.Conn(t)
	err := bounded(t.Context(), conn, time.Millisecond, func() error {
		_, err := conn.Exec(t.Context(), "select pg_sleep(60)")
		return err
	})
	if pg.Code(err) != "57014" {
		t.Error(err)
	}
	err = bounded(t.Context(), conn, time.Minute, func() error {
		_, err := conn.Exec(t.Context(), "delete from t")
		return err
	})
	if pg.Code(err) != "25006" {
		t.Errorf("a write: %v", err)
	}
	if _, err := conn.Exec(t.Context(), "select 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("the session is not as it was: %v", err)
	}
}

package verify

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a source side and a destination side with the same tables.
type bench struct {
	sources, shards []*pgtest.DB
	schema          string // where the tables are, empty: public
}

// exec runs SQL in the bench's schema.
func (b *bench) exec(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	db.Exec(t, "set search_path = "+cmp.Or(b.schema, "public")+";"+sql)
}

func setUp(t *testing.T, sources, shards int, ddl string) *bench {
	t.Helper()
	b := &bench{}
	for i := range sources + shards {
		db := pgtest.Shared(t).Database(t)
		db.Exec(t, ddl)
		if i < sources {
			b.sources = append(b.sources, db)
		} else {
			b.shards = append(b.shards, db)
		}
	}
	return b
}

// request compares every root and ordinary table, all columns, by its key; rows belong to the shard "k mod shards"
// where the table has a column k.
func (b *bench) request(t *testing.T) Request {
	t.Helper()
	r := Request{Place: moduloOf(len(b.shards))}
	for i, db := range b.sources {
		r.Sources = append(r.Sources, NodeOf(db.Shard(i)))
	}
	for i, db := range b.shards {
		r.Shards = append(r.Shards, NodeOf(db.Shard(i)))
	}
	source, dest := catalog(t, b.sources[0]), catalog(t, b.shards[0])
	for _, table := range source.Tables {
		if table.Root != table.OID || table.Name.Schema != cmp.Or(b.schema, "public") {
			continue
		}
		one := Table{Source: table, Dest: dest.Table(table.Name), Omni: strings.HasPrefix(table.Name.Table, "omni")}
		for _, c := range table.Columns {
			one.Columns = append(one.Columns, c.Name)
			if c.Name == "k" && !one.Omni {
				one.PlaceColumns = []string{"k"}
			}
		}
		for _, i := range table.Key {
			one.Key = append(one.Key, table.Columns[i].Name)
		}
		r.Tables = append(r.Tables, one)
	}
	return r
}

func catalog(t *testing.T, db *pgtest.DB) *pg.Catalog {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Reader, "test") // its search_path is part of a type's name
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(conn)
	c, err := pg.ReadCatalog(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func moduloOf(shards int) Placer {
	return func(_ context.Context, _ pg.Name, keys [][]pg.Datum) ([]int, error) {
		out := make([]int, len(keys))
		for i, key := range keys {
			k, err := strconv.Atoi(string(key[0].Bytes))
			if out[i] = k % shards; key[0].Kind == pg.Null || err != nil {
				out[i] = Nowhere
			}
		}
		return out, nil
	}
}

func run(t *testing.T, r Request) *Report {
	t.Helper()
	report, err := Run(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

const orders = `create table orders (k int, id int primary key, note text, amount numeric, ratio float8, at timestamptz, big bigint);
	create table events (k int, what text)`

// spread fills both sides: source i gets the ids that are i mod the number of sources, shard j those whose k names it.
func (b *bench) spread(t *testing.T, rows int) {
	t.Helper()
	insert := `insert into orders select g %% 7, g, 'note ' || g, g * 1.5, g / 3.0, '2026-01-01'::timestamptz + g * interval '1 s', g
		from generate_series(1, %d) g where %s order by %s;
		insert into events select g %% 7, 'event ' || g / 3 from generate_series(1, %[1]d) g where %[2]s order by %[3]s`
	for i, db := range b.sources {
		b.exec(t, db, fmt.Sprintf(insert, rows, fmt.Sprintf("g %% %d = %d", len(b.sources), i), "g"))
	}
	for i, db := range b.shards {
		b.exec(t, db, fmt.Sprintf(insert, rows, fmt.Sprintf("g %% 7 %% %d = %d", len(b.shards), i), "g desc"))
	}
}

func TestEqualSidesAreClean(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{1, 1}, {1, 4}, {2, 3}, {3, 2}} {
		t.Run(fmt.Sprintf("%d to %d", size[0], size[1]), func(t *testing.T) {
			t.Parallel()
			b := setUp(t, size[0], size[1], orders)
			b.spread(t, 3_000)
			report := run(t, b.request(t))
			if !report.Clean() || report.Differences() != 0 || len(report.Unclean()) != 0 {
				t.Errorf("%+v", report.Tables)
			}
			for _, table := range report.Tables {
				if table.Rows != 3_000 {
					t.Errorf("%s: %d rows", table.Table, table.Rows)
				}
			}
		})
	}
}

// Each case damages equal data on two shards; k = 3 and so id 3, 10, 17 … belong to shard 1.
func TestADamagedRowIsFoundAndNamed(t *testing.T) {
	t.Parallel()
	all := setUp(t, 1, 2, "")
	var schemas []string
	for name, test := range map[string]struct {
		shard  int
		damage string
		want   string // table, counts missing/extra/different/doubled/misplaced, first finding
	}{
		"missing":                       {1, "delete from orders where id = 10", `orders 1/0/0/0/0 {"what":"missing","key":"id=10","source":0}`},
		"extra":                         {0, "insert into orders values (0, -5, 'x')", `orders 0/1/0/0/0 {"what":"extra","key":"id=-5","shard":0}`},
		"on two shards":                 {0, "insert into orders select 3, 10, 'note 10', 15.0, 10/3.0, '2026-01-01 00:00:10+00', 10", `orders 0/0/0/1/1 {"what":"doubled","key":"id=10","shard":`},
		"another text":                  {1, "update orders set note = note || ' ' where id = 10", `orders 0/0/1/0/0 {"what":"different","key":"id=10","columns":["note"],"source":0,"shard":1}`},
		"one bit of a float":            {1, "update orders set ratio = 3.3333333333333339 where id = 10", `orders 0/0/1/0/0 {"what":"different","key":"id=10","columns":["ratio"],"source":0,"shard":1}`},
		"empty for NULL":                {1, "update orders set note = '' where id = 3", `orders 0/0/1/0/0 {"what":"different","key":"id=3","columns":["note"],"source":0,"shard":1}`},
		"0 for -0":                      {1, "update orders set ratio = 0 where id = 3", `orders 0/0/1/0/0 {"what":"different","key":"id=3","columns":["ratio"],"source":0,"shard":1}`},
		"1.00 for 1.0":                  {1, "update orders set amount = 1.00 where id = 3", `orders 0/0/1/0/0 {"what":"different","key":"id=3","columns":["amount"],"source":0,"shard":1}`},
		"a bigint with the same hash":   {1, "update orders set big = 4294967296 where id = 3", `orders 0/0/1/0/0 {"what":"different","key":"id=3","columns":["big"],"source":0,"shard":1}`},
		"a moment with the same hash":   {1, "update orders set at = '2000-01-01 00:00:00+00'::timestamptz + 4294967296 * interval '1 us' where id = 3", `orders 0/0/1/0/0 {"what":"different","key":"id=3","columns":["at"],"source":0,"shard":1}`},
		"two columns":                   {1, "update orders set note = null, big = 1 where id = 10", `orders 0/0/1/0/0 {"what":"different","key":"id=10","columns":["note","big"],"source":0,"shard":1}`},
		"its key changed":               {1, "update orders set id = -10 where id = 10", `orders 1/1/0/0/0 {"what":`},
		"two rows exchange a value":     {1, "update orders set note = 'note ' || 27 - id where id in (10, 17)", `orders 0/0/2/0/0 {"what":"different","key":"id=10","columns":["note"]`},
		"a row of a table without key":  {0, "delete from events where ctid = (select min(ctid) from events)", `events 1/0/0/0/0 {"what":"missing","key":"#`},
		"a doubled row without key":     {0, "insert into events select * from events limit 1", `events 0/0/0/1/0 {"what":"doubled","key":"#`},
		"an unknown row without key":    {0, "insert into events values (4, 'nothing')", `events 0/1/0/0/0 {"what":"extra","key":"#`},
		"rows without key swap a value": {1, "update events set what = case what when 'event 1' then 'event 3' else 'event 1' end where what in ('event 1', 'event 3')", `events `},
		"a key that names no shard":     {1, "update orders set k = null where id = 10", `orders 0/0/1/0/1 {"what":"different","key":"id=10","columns":["k"]`},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{sources: all.sources, shards: all.shards, schema: "case_" + strconv.Itoa(len(schemas))}
			schemas = append(schemas, b.schema)
			for _, db := range slices.Concat(b.sources, b.shards) {
				db.Exec(t, "create schema "+b.schema)
				b.exec(t, db, orders)
			}
			b.spread(t, 2_000)
			for _, db := range append(b.sources, b.shards[1]) {
				b.exec(t, db, "update orders set note = null, ratio = '-0', amount = 1.0, big = 1, at = '2000-01-01 00:00:00.000001+00' where id = 3")
			}
			b.exec(t, b.shards[test.shard], test.damage)
			report := run(t, b.request(t))
			if report.Clean() || report.Differences() == 0 {
				t.Fatalf("the damage was not found: %+v", report.Tables)
			}
			var got []string
			for _, one := range report.Tables {
				if one.State == Clean {
					continue
				}
				first, _ := json.Marshal(one.Keys[0])
				got = append(got, fmt.Sprintf("%s %d/%d/%d/%d/%d %s", strings.TrimPrefix(one.Table, b.schema+"."),
					one.Missing, one.Extra, one.Different, one.Doubled, one.Misplaced, first))
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], test.want) {
				t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), test.want)
			}
			b.sameByKeys(t, report)
		})
	}
}

func TestARowOnTheWrongShardIsMisplacedAlthoughNothingIsMissing(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 2, orders)
	b.spread(t, 100)
	b.shards[1].Exec(t, "delete from orders where k = 5")
	b.shards[0].Exec(t, `insert into orders select g % 7, g, 'note ' || g, g * 1.5, g / 3.0, '2026-01-01'::timestamptz + g * interval '1 s', g
		from generate_series(1, 100) g where g % 7 = 5`)
	report := run(t, b.request(t))
	one := report.Tables[slices.IndexFunc(report.Tables, func(t TableReport) bool { return t.Table == "public.orders" })]
	if one.State != Differs || one.Misplaced != 14 || one.Differences() != 14 {
		t.Fatalf("%+v", one)
	}
	got, _ := json.Marshal(one.Keys)
	if want := `[{"what":"misplaced","key":"k=5","shard":0,"want":1,"rows":14}]`; string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestEveryCopyOfAnOmnishardedTableIsCompared(t *testing.T) {
	t.Parallel()
	const ddl = `create table omni (id int primary key, name text); insert into omni select g, 'n' || g from generate_series(1, 500) g`
	b := setUp(t, 2, 3, ddl)
	if report := run(t, b.request(t)); !report.Clean() || report.Tables[0].Rows != 500 {
		t.Fatalf("%+v", report.Tables)
	}
	b.shards[2].Exec(t, "delete from omni where id = 7")
	b.sources[1].Exec(t, "update omni set name = 'other' where id = 8")
	one := run(t, b.request(t)).Tables[0]
	got, _ := json.Marshal(one.Keys)
	want := `[{"what":"different","key":"id=8","columns":["name"],"source":1},{"what":"missing","key":"id=7","source":0}]`
	if one.Missing != 1 || one.Different != 1 || string(got) != want {
		t.Errorf("%+v\n%s", one, got)
	}
}

func TestTheSameKeyOnTwoSourcesIsNotDoubled(t *testing.T) {
	t.Parallel()
	b := setUp(t, 2, 2, "create table orders (k int, id int primary key, note text)")
	for i := range 2 {
		insert := fmt.Sprintf("insert into orders select %d, g, 'of ' || %[1]d from generate_series(1, 200) g", i)
		b.sources[i].Exec(t, insert)
		b.shards[i].Exec(t, insert)
	}
	if report := run(t, b.request(t)); !report.Clean() {
		t.Fatalf("%+v", report.Tables)
	}
	b.shards[1].Exec(t, "update orders set note = 'of 0' where id = 9")
	if one := run(t, b.request(t)).Tables[0]; one.Different != 1 || one.Differences() != 1 {
		t.Errorf("%+v", one)
	}
}

func TestPartitionsAreComparedThroughTheirRoot(t *testing.T) {
	t.Parallel()
	b := &bench{sources: []*pgtest.DB{pgtest.Shared(t).Database(t)}, shards: []*pgtest.DB{pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)}}
	b.sources[0].Exec(t, `create table m (k int, id int, note text, primary key (k, id)) partition by range (k);
		create table m1 partition of m for values from (0) to (3) partition by list (k);
		create table m11 partition of m1 for values in (0, 1);
		create table m12 (note text, id int not null, k int not null);
		alter table m1 attach partition m12 for values in (2);
		create table m2 partition of m default`)
	b.shards[0].Exec(t, `create table m (note text, k int, id int, extra int default 7, primary key (k, id))`)
	b.shards[1].Exec(t, `create table m (note text, k int, id int, extra int default 7, primary key (k, id)) partition by hash (id);
		create table p0 partition of m for values with (modulus 2, remainder 0);
		create table p1 partition of m for values with (modulus 2, remainder 1)`)
	const insert = "insert into m (k, id, note) select g %% 7, g, 'n' || g from generate_series(1, 1000) g where %s"
	b.sources[0].Exec(t, fmt.Sprintf(insert, "true"))
	for i, db := range b.shards {
		db.Exec(t, fmt.Sprintf(insert, fmt.Sprintf("g %% 7 %% 2 = %d", i)))
	}
	// One side's table stands for all shards: without ONLY both kinds are read.
	r := b.request(t)
	r.Tables[0].Dest = catalog(t, b.shards[1]).Table(pg.Name{Schema: "public", Table: "m"})
	if report := run(t, r); !report.Clean() || report.Tables[0].Rows != 1000 {
		t.Fatalf("%+v", report.Tables)
	}
	b.shards[1].Exec(t, "update p1 set note = 'x' where id = (select min(id) from p1)")
	if one := run(t, r).Tables[0]; one.Different != 1 || one.Differences() != 1 || one.Keys[0].Columns[0] != "note" {
		t.Errorf("%+v", one)
	}
}

func TestLookingStopsAtTheLimitAndSaysSo(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 2, orders)
	b.spread(t, 2_000)
	b.shards[1].Exec(t, "delete from orders")
	r := b.request(t)
	r.Limit, r.HideKeys = 5, true
	report := run(t, r)
	one := report.Tables[slices.IndexFunc(report.Tables, func(t TableReport) bool { return t.State != Clean })]
	if len(one.Keys) != 5 || one.Missing < 5 || !strings.HasPrefix(one.Keys[0].Key, "#") {
		t.Errorf("%+v", one)
	}
	if one.Missing != 858 || one.AtLeast {
		t.Errorf("one block holds all rows, and the count is %d, at least: %t", one.Missing, one.AtLeast)
	}
}

func TestAShardThatDoesNotAnswerIsNamedAndNothingIsClean(t *testing.T) {
	t.Parallel()
	b := setUp(t, 1, 2, orders)
	b.spread(t, 100)
	r := b.request(t)
	r.Shards[1] = NodeOf(pg.FixedURL(1, "postgres://postgres@127.0.0.1:1/none?sslmode=disable"))
	report, err := Run(t.Context(), r)
	if err == nil || !pg.Transient(err) || report.Clean() {
		t.Fatalf("got %v", err)
	}
	for _, one := range report.Tables {
		if one.State != Partial || len(one.Failures) != 1 || one.Failures[0].Number != 1 || one.Failures[0].Reason != "unavailable" {
			t.Errorf("%+v", one)
		}
	}
}

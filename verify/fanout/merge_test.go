package fanout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var modelAggregates = []string{"count", "count(qty)", "sum(qty)", "sum(amount)", "sum(price)", "avg(qty)", "avg(amount)", "avg(price)",
	"min(note)", "max(note)", "min(amount)", "max(qty)"}

// Whatever the rows, the groups and the shards that fail: the answer is the model's of the rows of those that did not, and
// names each of the others. MERGE_SEED runs one again.
func TestAMergedAnswerIsTheModels(t *testing.T) {
	t.Parallel()
	var dbs []*pgtest.DB
	for range 6 {
		db := pgtest.Shared(t).Database(t)
		db.Exec(t, `create table part `+modelTable+`; create table whole `+modelTable)
		dbs = append(dbs, db)
	}
	table := tableOf(t, dbs[0], "part")
	for _, seed := range pgtest.Seeds(t, "MERGE_SEED", 20) {
		t.Run(fmt.Sprintf("MERGE_SEED=%d", seed), func(t *testing.T) { mergeOnce(t, seed, dbs, table) })
	}
}

func mergeOnce(t *testing.T, seed uint64, dbs []*pgtest.DB, table *pg.Table) {
	r := rand.New(rand.NewPCG(seed, 1))
	dbs = dbs[:2+r.IntN(5)]
	var by, aggregates []string
	for _, c := range []string{"region", "kind", "amount"} {
		if r.IntN(2) == 0 {
			by = append(by, c)
		}
	}
	for len(aggregates) == 0 {
		for _, a := range modelAggregates {
			if r.IntN(2) == 0 {
				aggregates = append(aggregates, a)
			}
		}
	}
	question := Question{Table: table, From: "only public.part", Aggregates: aggregates, GroupBy: by}
	from := r.IntN(3) // a condition, with a comment that must end with it
	if from > 0 {
		question.Where = fmt.Sprintf("kind >= %d -- these", from)
	}
	query := describe(t, dbs[0], question)

	// A shard's rows are of a size of its own: averages of averages would be wrong.
	rows := make([]map[int][]modelRow, len(dbs))
	dbs[0].Exec(t, `truncate whole`)
	for n, db := range dbs {
		rows[n] = map[int][]modelRow{}
		values := []string{}
		for range r.IntN(1 << r.IntN(7)) {
			kind, row := r.IntN(4), modelRowOf(r)
			values = append(values, row.insert(kind))
			if kind >= from {
				rows[n][kind] = append(rows[n][kind], row)
			}
		}
		db.Exec(t, `truncate part`)
		if len(values) > 0 {
			db.Exec(t, `insert into part values `+strings.Join(values, ", "))
			dbs[0].Exec(t, `insert into whole values `+strings.Join(values, ", "))
		}
	}

	var shards []Shard
	var want []Failure
	answering := map[int][]modelRow{}
	for n, db := range dbs {
		node, reason := Node{Name: db.Cluster.Addr(), Leads: true, Open: opener(db.Shard(n))}, ""
		nodes := func(context.Context) ([]Node, error) { return []Node{node}, nil }
		failure := Failure{Shard: n, Node: node.Name}
		switch how := r.IntN(12); how {
		case 0:
			reason, node.Name = "unavailable", closedPort(t)
			failure.Node, node.Open = node.Name, opener(pg.FixedURL(n, "postgres://postgres@"+node.Name+"/x?sslmode=disable"))
		case 1:
			reason, failure.Node, nodes = "error", "", func(context.Context) ([]Node, error) { return nil, errors.New("nobody knows") }
		case 2:
			reason, failure.Node, nodes = "no_leader", "", func(context.Context) ([]Node, error) { return nil, nil }
		case 3: // its answer is on its way
			relay := pgtest.NewRelay(t, db.Cluster.Addr())
			relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "BindComplete", Do: pgtest.Reset})
			reason, node.Name, node.Open = "unavailable", relay.Addr(), opener(db.Via(relay).Shard(n))
			failure.Node = node.Name
		case 4:
			db.Exec(t, `alter table part rename to away`)
			defer db.Exec(t, `alter table away rename to part`)
			reason, failure.Code = "error", "42P01"
		default:
			for kind, list := range rows[n] {
				answering[kind] = append(answering[kind], list...)
			}
		}
		if failure.Reason = reason; reason != "" {
			want = append(want, failure)
		}
		shards = append(shards, Shard{Number: n, Nodes: nodes})
	}
	answer, err := Ask(t.Context(), Request{Query: *query, Shards: shards, Consistency: Strong, Parallel: 1 + r.IntN(8)})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(answer.Failures, want) || answer.Partial() != (len(want) > 0) || len(answer.Asked) != len(dbs)-len(want) {
		t.Errorf("failed: %v, want %v; asked: %v", answer.Failures, want, answer.Asked)
	}
	if len(want) == len(dbs) {
		if answer.Rows != nil {
			t.Errorf("nobody answered: %v", answer.Rows)
		}
	} else {
		sameAsModel(t, by, aggregates, answer.Rows, modelOf(by, answering))
	}
	comparedWithAll(t, dbs, query, answer, len(want) > 0)
}

// comparedWithAll compares an answer with that of one table of all rows, and again once a row of that is another.
func comparedWithAll(t *testing.T, dbs []*pgtest.DB, query *Query, answer *Answer, partial bool) {
	t.Helper()
	whole := *query
	whole.From = "only public.whole"
	compare := func() *Comparison {
		t.Helper()
		all, err := Ask(t.Context(), Request{Query: whole, Shards: []Shard{shardOf(dbs[0], 0)}, Consistency: Strong})
		if err != nil || all.Partial() {
			t.Fatal(err, all)
		}
		c, err := Compare(t.Context(), query, all, answer)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	state := Equal
	if partial {
		state = Partial
	}
	if c := compare(); c.State != state {
		t.Errorf("compared with all rows in one table: %s, want %s: %+v", c.State, state, c.Lines)
	}
	if partial || !slices.ContainsFunc(query.Aggregates, func(a Aggregate) bool { return a.Name[0] == 'c' || a.Name[0] == 's' }) {
		return // others need not change with a row more
	}
	dbs[0].Exec(t, `insert into whole values ('eu', 3, 1, 1.000, 0.5, 'A')`)
	if c := compare(); c.State != Differs || c.Differences() != 1 || slices.Contains(c.Aggregates, "count") && !differsIn(c, "count") {
		t.Errorf("with a row more: %s: %+v", c.State, c.Lines)
	}
}

func differsIn(c *Comparison, aggregate string) bool {
	return slices.ContainsFunc(c.Lines, func(l Line) bool { return slices.Contains(l.Differs, aggregate) })
}

func opener(shard pg.Shard) func(context.Context) (*pgx.Conn, error) {
	return func(ctx context.Context) (*pgx.Conn, error) { return pg.Open(ctx, shard, pg.Reader, "test") }
}

func shardOf(db *pgtest.DB, n int) Shard {
	return Shard{Number: n, Nodes: NodesOf(db.Shard(n), nil, "test")}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func tableOf(t *testing.T, db *pgtest.DB, name string) *pg.Table {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Reader, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(conn)
	c, err := pg.ReadCatalog(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return c.Table(pg.Name{Schema: "public", Table: name})
}

func describe(t *testing.T, db *pgtest.DB, question Question) *Query {
	t.Helper()
	query, problems := described(t, db, question)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return query
}

func described(t *testing.T, db *pgtest.DB, question Question) (*Query, []Problem) {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Reader, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(conn)
	query, problems, err := Describe(t.Context(), conn, question)
	if err != nil {
		t.Fatal(err)
	}
	return query, problems
}

package move_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/verify/fanout"
)

// What one question to several shards takes.
const (
	fanoutServers = 4      // all shards are databases of these
	fanoutRows    = 20_000 // of each shard
	fanoutAway    = 2 * time.Millisecond
	fanoutRuns    = 9
)

// benchFanout asks 1, 4, 16 and 64 shards one question, each of as many rows, and prints the times: on this machine, and over links
// that delay whatever goes through them. More shards must cost less than they are more.
func benchFanout(t *testing.T) {
	rows := freezeNumber(t, "BENCH_ROWS", fanoutRows)
	var dbs, away []*pgtest.DB
	for range fanoutServers {
		cluster := pgtest.Start(t, pgtest.Options{})
		relay := pgtest.NewRelay(t, cluster.Addr())
		relay.Delay(pgtest.ToServer, fanoutAway)
		relay.Delay(pgtest.ToClient, fanoutAway)
		for range 64 / fanoutServers {
			db := cluster.Database(t)
			db.Exec(t, fmt.Sprintf(`create table rows (id int primary key, status text not null, amount numeric(12, 2) not null);
				insert into rows select g, (array['new', 'paid', 'shipped', 'returned'])[1 + g %% 4], g / 100.0 from generate_series(1, %d) g`, rows))
			dbs, away = append(dbs, db), append(away, db.Via(relay))
		}
	}
	query := fanoutQuery(t, dbs[0])
	times := func(dbs []*pgtest.DB) time.Duration {
		var shards []fanout.Shard
		for n, db := range dbs {
			shards = append(shards, fanout.Shard{Number: n, Nodes: fanout.NodesOf(db.Shard(n), nil, "bench")})
		}
		var took []time.Duration
		for range fanoutRuns {
			began := time.Now()
			a, err := fanout.Ask(t.Context(), fanout.Request{Query: *query, Shards: shards, Consistency: fanout.Strong})
			took = append(took, time.Since(began))
			if err != nil || a.Partial() || len(a.Rows) != 4 || *a.Rows[0].Values[0] != fmt.Sprint(rows/4*len(dbs)) {
				t.Fatalf("%+v, %v", a, err)
			}
		}
		return median(took)
	}
	fmt.Printf("| shards of %d rows | on this machine | times one shard's | %s away | times one shard's |\n|---|---|---|---|---|\n", rows, 2*fanoutAway)
	var one [2]time.Duration
	for _, n := range []int{1, 4, 16, 64} {
		took := [2]time.Duration{times(spread(dbs, n)), times(spread(away, n))}
		if n == 1 {
			one = took
		}
		fmt.Printf("| %d | %.1f ms | %.1f | %.1f ms | %.1f |\n", n, ms(took[0]), ms(took[0])/ms(one[0]), ms(took[1]), ms(took[1])/ms(one[1]))
		for i := range took {
			if n > 1 && took[i] >= time.Duration(n)*one[i] {
				t.Errorf("%d shards take %s, one %s", n, took[i], one[i])
			}
		}
	}
}

// spread takes n databases, of all servers where there are as many.
func spread(dbs []*pgtest.DB, n int) (out []*pgtest.DB) {
	for i := range n {
		out = append(out, dbs[i*len(dbs)/n])
	}
	return out
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func fanoutQuery(t *testing.T, db *pgtest.DB) *fanout.Query {
	t.Helper()
	var query *fanout.Query
	err := onReader(t.Context(), db, func(conn *pgx.Conn) error {
		c, err := pg.ReadCatalog(t.Context(), conn)
		if err != nil {
			return err
		}
		var problems []fanout.Problem
		query, problems, err = fanout.Describe(t.Context(), conn, fanout.Question{Table: c.Table(pg.Name{Schema: "public", Table: "rows"}), From: "only public.rows",
			Aggregates: []string{"count", "sum(amount)", "avg(amount)", "max(id)"}, GroupBy: []string{"status"}})
		if len(problems) > 0 {
			return fmt.Errorf("%v", problems)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return query
}

func onReader(ctx context.Context, db *pgtest.DB, do func(*pgx.Conn) error) error {
	conn, err := pg.Open(ctx, db.Shard(0), pg.Reader, "bench")
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	return do(conn)
}

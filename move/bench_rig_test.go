package move_test

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// The table: sharded by tenant, which is part of the identity, so that neither side has to look for a row. Rows came in
// in the order of id, as they do.
const benchTable = `create table rows (
	id bigint not null, tenant bigint not null, created_at timestamptz not null, amount numeric(12, 2) not null,
	active boolean not null, status text not null, note text not null,
	primary key (id, tenant))`

// benchTenants is how many sharding keys there are, where nothing else is said.
const benchTenants = 10_000

// row is row n, of about 250 bytes, as a select list.
func (b *bench) row(n string) string {
	return fmt.Sprintf(`%[1]s, %[1]s %% %[2]d, timestamptz '2024-01-01 00:00:00+00' + %[1]s * interval '1 second', (%[1]s %% 1000000) / 100.0,
		%[1]s %% 2 = 0, (array['new', 'paid', 'shipped', 'returned'])[1 + %[1]s %% 4], substr(repeat(md5((%[1]s)::text), 7), 1, 200)`, n, b.tenants)
}

// fill makes the source's table with n rows and leaves nothing of it to be done later.
func (b *bench) fill(n int) *pgtest.DB {
	b.t.Helper()
	b.say("filling the source with %d rows", n)
	db := b.database(b.source)
	db.Exec(b.t, fmt.Sprintf(`insert into rows select %s from generate_series(0::bigint, %d) n`, b.row("n"), n-1))
	db.Exec(b.t, `vacuum (freeze, analyze) rows`)
	return db
}

// empty makes a database on every shard, with the table or without.
func (b *bench) empty(table bool) (dbs []*pgtest.DB) {
	b.t.Helper()
	for _, c := range b.shards {
		db := b.database(c)
		if !table {
			db.Exec(b.t, `drop table rows`)
		}
		dbs = append(dbs, db)
	}
	return dbs
}

func (b *bench) database(c *pgtest.Cluster) *pgtest.DB {
	b.t.Helper()
	b.made++
	db, err := c.NewDatabase(b.t.Context(), fmt.Sprintf("bench_%d", b.made))
	if err != nil {
		b.t.Fatal(err)
	}
	db.Exec(b.t, benchTable)
	return db
}

func (b *bench) drop(dbs ...*pgtest.DB) {
	b.t.Helper()
	for _, db := range dbs {
		if err := db.Drop(b.t.Context()); err != nil {
			b.t.Fatal(err)
		}
	}
}

// settle writes out what earlier work left dirty, on every cluster, so that nobody pays for another's.
func (b *bench) settle() {
	b.t.Helper()
	for _, c := range append([]*pgtest.Cluster{b.source}, b.shards...) {
		b.onServer(c, "checkpoint")
	}
}

func (b *bench) onServer(c *pgtest.Cluster, sql string) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), c.URL("postgres"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(b.t.Context()))
	if _, err := conn.Exec(b.t.Context(), sql); err != nil {
		b.t.Fatal(err)
	}
}

// benchSum tells a table's rows apart from any other's, in whatever order and however they are spread.
const benchSum = `select count(*), coalesce(sum(hashtextextended(r::text, 0)), 0)::text from rows r`

// benchAstray counts rows that PostgreSQL's own hash partitioning would not put on a shard.
const benchAstray = `select count(*) from rows where not satisfies_hash_partition('of_bigint'::regclass, %d, %d, tenant)`

// same stops the run unless dbs together hold the source's rows and each the ones that are its own: a time counts only
// if the result is right.
func (b *bench) same(what string, from *pgtest.DB, dbs []*pgtest.DB) {
	b.t.Helper()
	want := from.Query(b.t, benchSum)[0]
	rows, sum := 0, new(big.Int)
	for shard, db := range dbs {
		got := db.Query(b.t, benchSum)[0]
		n, _ := strconv.Atoi(got[0])
		rows += n
		part, _ := new(big.Int).SetString(got[1], 10)
		sum.Add(sum, part)
		if len(dbs) == 1 {
			continue
		}
		db.Exec(b.t, `create table if not exists of_bigint (k bigint) partition by hash (k)`)
		if astray := db.Query(b.t, fmt.Sprintf(benchAstray, len(dbs), shard))[0][0]; astray != "0" {
			b.t.Fatalf("%s: %s rows on shard %d are not its own", what, astray, shard)
		}
		db.Exec(b.t, `drop table of_bigint`)
	}
	if strconv.Itoa(rows) != want[0] || sum.String() != want[1] {
		b.t.Fatalf("%s: %d rows with sum %s, the source has %s with sum %s", what, rows, sum, want[0], want[1])
	}
}

// until asks every database again and again until each has once answered true, and says when the last did. alive, which
// may be nil, ends the wait when what is waited for has failed.
func (b *bench) until(dbs []*pgtest.DB, sql string, alive func() error) time.Time {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Minute)
	defer cancel()
	conns := make([]*pgx.Conn, len(dbs))
	for i, db := range dbs {
		conn, err := db.Connect(ctx)
		if err != nil {
			b.t.Fatal(err)
		}
		defer conn.Close(context.WithoutCancel(ctx))
		conns[i] = conn
	}
	asked := time.Now()
	for left := len(conns); left > 0; {
		left = 0
		for i, conn := range conns {
			if conn == nil {
				continue
			}
			var yes bool
			if err := conn.QueryRow(ctx, sql).Scan(&yes); err != nil {
				b.t.Fatalf("wait on shard %d for %.200s: %v", i, strings.TrimSpace(sql), err)
			}
			if yes {
				conns[i] = nil
			} else {
				left++
			}
		}
		if alive != nil {
			if err := alive(); err != nil {
				b.t.Fatal(err)
			}
		}
		if left > 0 {
			time.Sleep(min(max(time.Since(asked)/200, time.Millisecond), 20*time.Millisecond)) // asking is work too
		}
	}
	return time.Now()
}

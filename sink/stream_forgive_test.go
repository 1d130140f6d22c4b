package sink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

// interrupted is a copy that is killed and resumed: each run reads the chunks it still lacks in a snapshot of its own.
// A row's chunk is its column u, so that rows move between chunks as they do between pages.
type interrupted struct {
	*following
	table string
	key   string          // the primary key's columns
	done  map[[2]int]bool // chunk and shard
}

const chunks = 3

// load reads a chunk as it is now and writes one shard's part of it, over whatever is there.
func (c *interrupted) load(chunk, shard int) {
	c.t.Helper()
	ctx := c.t.Context()
	var rows bytes.Buffer
	_, err := c.conn.PgConn().CopyTo(ctx, &rows, fmt.Sprintf(`copy (select * from %s where u %% %d = %d
		and satisfies_hash_partition('pg_temp.of_bigint'::regclass, %d, %d, tenant)) to stdout`, c.table, chunks, chunk, len(c.shards), shard))
	if err != nil {
		c.t.Fatal(err)
	}
	into := c.at[shard].PgConn()
	_, err = into.Exec(ctx, fmt.Sprintf(`begin; create temp table part (like %s) on commit drop`, c.table)).ReadAll()
	if err == nil {
		_, err = into.CopyFrom(ctx, &rows, `copy part from stdin`)
	}
	if err == nil {
		_, err = into.Exec(ctx, fmt.Sprintf(`delete from %[1]s where (%[2]s) in (select %[2]s from part); insert into %[1]s select * from part; commit`, c.table, c.key)).ReadAll()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// run is one run of the copy, whose snapshot is later than the stream's start: E grows.
func (c *interrupted) run(r *rand.Rand, last bool, between func()) {
	c.t.Helper()
	// One snapshot for the run.
	if _, err := c.conn.Exec(c.t.Context(), `begin isolation level repeatable read`); err != nil {
		c.t.Fatal(err)
	}
	var at pg.LSN
	if err := c.conn.QueryRow(c.t.Context(), `select pg_current_wal_insert_lsn()::text from (select count(*) from `+c.table+`) s`).Scan(&at); err != nil {
		c.t.Fatal(err)
	}
	used := false
	for chunk := range chunks {
		between()
		for shard := range c.shards {
			if c.done[[2]int{chunk, shard}] || !last && r.IntN(3) == 0 {
				continue
			}
			c.load(chunk, shard)
			c.done[[2]int{chunk, shard}] = true
			used = true
		}
	}
	if _, err := c.conn.Exec(c.t.Context(), `commit`); err != nil {
		c.t.Fatal(err)
	}
	if t := c.tables[c.table]; used {
		t.Forgive = max(t.Forgive, at)
	}
}

// The situations of model/copy_resume.py on real servers: a copy killed and resumed while rows move between its chunks,
// change their keys, die and come back; then the stream from the first snapshot on, which forgives up to the last one and
// is strict after it.
func TestAStreamForgivesWhatAResumedCopyAlreadyRead(t *testing.T) {
	t.Parallel()
	n := 2
	if os.Getenv(pgtest.EveryCase) != "" {
		n = 5
	}
	for _, v := range []variant{
		{name: "outside", primary: "primary key (id)", key: "tenant", nullable: true},
		{name: "inside", primary: "primary key (tenant, id)", key: "tenant"},
		{name: "indexed", primary: "primary key (id)", key: "tenant", also: variants[2].also},
		{name: "whole", primary: "primary key (id)", key: "tenant", nullable: true, also: variants[3].also},
		{name: "handed", primary: "primary key (id), code int unique", key: "tenant", nullable: true},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range pgtest.Seeds(t, "SINK_SEED", n) {
				t.Run(fmt.Sprintf("SINK_SEED=%d", seed), func(t *testing.T) { resumedRun(t, v, seed) })
			}
		})
	}
}

// oneOf is a random change of a row; a row's chunk (u) changes with most of them.
func oneOf(s scribe) string {
	t, id, tenant := s.variants[0].name, s.id(), s.tenant()
	moved := ""
	if s.IntN(10) < 6 {
		moved = fmt.Sprintf(", u = %d", s.IntN(9))
	}
	if t == "handed" && s.IntN(3) == 0 {
		moved += fmt.Sprintf(", code = %d", s.IntN(12))
	}
	switch s.IntN(8) {
	case 0, 1:
		if t == "handed" {
			return fmt.Sprintf("insert into %s (id, tenant, a, big, u, code) values (%d, %d, %d, %s, %d, %d)", t, id, tenant, s.IntN(5), s.big(), s.IntN(9), s.IntN(12))
		}
		return fmt.Sprintf("insert into %s values (%d, %d, %d, %s, %d)", t, id, tenant, s.IntN(5), s.big(), s.IntN(9))
	case 2, 3:
		return fmt.Sprintf("update %s set a = %d%s where id = %d", t, s.IntN(99), moved, id)
	case 4:
		return fmt.Sprintf("update %s set big = %s%s where id = %d", t, s.big(), moved, id)
	case 5:
		return fmt.Sprintf("update %s set tenant = %d%s where id = %d", t, tenant, moved, id)
	case 6:
		return fmt.Sprintf("update %s set id = %d%s where id = %d", t, s.id(), moved, id)
	}
	return fmt.Sprintf("delete from %s where id = %d", t, id)
}

func resumedRun(t *testing.T, v variant, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	list := []variant{v}
	var fill []string
	for id := range 7 {
		fill = append(fill, fmt.Sprintf(`insert into %s values (%d, %d, 0, repeat('%d ', 1200), %d)`, v.name, id+1, r.IntN(7)+1, r.IntN(1000), r.IntN(9)))
	}
	f := everyVariant(t, r.IntN(3)+1, list, fill...)
	if _, err := f.conn.Exec(t.Context(), `create temp table of_bigint (k bigint) partition by hash (k)`); err != nil {
		t.Fatal(err)
	}
	if v.name == "handed" { // a shard gets unique constraints only when nothing is to be forgiven any more
		for _, db := range f.shards {
			db.Exec(t, `alter table handed drop constraint handed_code_key`)
		}
	}
	s := scribe{rand.New(rand.NewPCG(seed, 2)), f.source.Conn(t), list}
	write := func(n int) {
		for range n {
			_, _ = s.conn.Exec(t.Context(), oneOf(s))
		}
	}
	write(r.IntN(15))
	primary, _, _ := strings.Cut(strings.TrimPrefix(v.primary, "primary key ("), ")")
	c := &interrupted{following: f, table: v.name, key: primary, done: map[[2]int]bool{}}
	for run := 0; len(c.done) < chunks*len(f.shards); run++ {
		c.run(r, run == 3, func() { write(r.IntN(8)) })
	}
	forgives := f.tables[v.name].Forgive
	write(r.IntN(20))

	var fetched atomic.Int64
	f.ready = func() {
		f.stream.BatchBytes = []int{1, 3000, 0}[r.IntN(3)]
		f.stream.BeforeCommit(crashes(12, 3))
		f.stream.Forgive = func(context.Context, *sink.Table, pg.LSN) error { fetched.Add(1); return nil }
	}
	f.ready()
	var writer errgroup.Group
	writer.Go(func() error { write(60); return nil })
	stop := f.run()
	time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	if r.IntN(2) == 0 {
		stop()
		f.takeOver()
		stop = f.run()
	}
	_ = writer.Wait()
	f.catchUp()
	f.compare(v.name)

	if v.name == "handed" {
		for _, db := range f.shards {
			db.Exec(t, `alter table handed add unique (code)`)
		}
	}

	// After E nothing is forgiven.
	if _, err := s.conn.Exec(t.Context(), fmt.Sprintf(`delete from %[1]s where id = 1; insert into %[1]s (id, tenant, a) values (1, 1, 1)`, v.name)); err != nil {
		t.Fatal(err)
	}
	f.catchUp()
	f.compare(v.name)
	for _, db := range f.shards {
		db.Exec(t, `delete from `+v.name+` where id = 1`)
	}
	if _, err := s.conn.Exec(t.Context(), fmt.Sprintf(`update %s set a = 5 where id = 1`, v.name)); err != nil {
		t.Fatal(err)
	}
	var diverged *sink.DivergedError
	if err := f.failure(); !errors.As(err, &diverged) || diverged.Table.Table != v.name || diverged.At <= forgives || !strings.Contains(diverged.Key, "1") {
		t.Errorf("it ended with %v", err)
	}
	stop()
	t.Logf("%d shards, %d runs, %d rows fetched, forgave up to %s", len(f.shards), f.runs, fetched.Load(), f.tables[v.name].Forgive)
}

// A row of another source under the same key is neither overwritten nor deleted while a copy is forgiven.
func TestForgivingNeverTouchesTheRowOfAnotherSource(t *testing.T) {
	t.Parallel()
	f := follow(t, 1, `create table t (id int primary key, tenant bigint); alter table t replica identity full`, "", rules{sharded: map[string]string{"t": "tenant"}})
	f.stream.Mine = func(_ *sink.Table, key []pg.Datum) (bool, error) { return len(key[0].Bytes) == 1, nil }
	f.shards[0].Exec(t, `insert into t values (1, 10), (2, 3)`)
	f.tables["t"].Forgive = ^pg.LSN(0)
	f.exec(`insert into t values (3, 1), (2, 2)`)
	f.exec(`update t set tenant = 3 where id = 2; delete from t where id = 3`)
	stop := f.run()
	f.catchUp()
	if rows := f.shards[0].Query(t, `select id, tenant from t order by 1`); fmt.Sprint(rows) != "[[1 10] [2 3]]" {
		t.Errorf("the shard holds %v", rows)
	}
	f.exec(`insert into t values (1, 1)`)
	var diverged *sink.DivergedError
	if err := f.failure(); !errors.As(err, &diverged) || !strings.Contains(diverged.What, "two sources, one key") || diverged.Key != "1" {
		t.Errorf("it ended with %v", err)
	}
	stop()
}

// A table copied again as of its own position leaves out what was committed before it, and nothing after.
func TestATableThatStartsLaterLeavesOutWhatItHolds(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table k (id int, tenant bigint); alter table k replica identity full; create table t (id int primary key)`, "",
		rules{sharded: map[string]string{"k": "tenant", "t": "id"}})
	f.exec(`insert into k values (1, 1), (1, 1), (2, 2); insert into t values (1)`)
	f.exec(`truncate k; insert into k values (3, 3)`)
	f.shards[f.shardOf(3)].Exec(t, `insert into k values (3, 3)`)
	at, err := pg.ParseLSN(f.source.Query(t, `select pg_current_wal_insert_lsn()`)[0][0])
	if err != nil {
		t.Fatal(err)
	}
	f.tables["k"].StartsAt = at
	f.exec(`insert into k values (3, 3), (4, 4); update k set tenant = 4 where ctid = (select min(ctid) from k)`)
	f.run()
	f.catchUp()
	f.compare()
}

package sink_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// errHalt ends the stream for good.
var errHalt = errors.New("halted")

// haltAfter ends the stream when shard first has committed a position beyond what is written now and the others have not
// yet.
func (f *following) haltAfter(first layout.Shard) {
	now := f.end()
	f.stream.BeforeCommit(func(ctx context.Context, shard layout.Shard, end pg.LSN) error {
		if shard == first || end <= now {
			return nil
		}
		for deadline := time.Now().Add(streamPatience); ctx.Err() == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			var at pg.LSN
			err := f.watch[first].QueryRow(context.Background(), `select lsn::text from pgreshard.checkpoint`).Scan(&at)
			if err != nil {
				return err
			}
			if at >= end {
				return errHalt
			}
		}
		return cmp.Or(ctx.Err(), fmt.Errorf("shard %d never committed", first))
	})
}

// apart are changes of one transaction that touch two shards; a and b are keys that live on different ones.
var apart = map[string]string{
	"a row moves":                        `update %[1]s set tenant = %[3]d where id = 1`,
	"two rows change places":             `update %[1]s set tenant = case tenant when %[2]d then %[3]d else %[2]d end where id in (1, 2)`,
	"a row moves and gets another key":   `update %[1]s set tenant = %[3]d, id = 50 where id = 1`,
	"two rows swap their ids":            `update %[1]s set id = -1 where id = 1; update %[1]s set id = 1 where id = 2; update %[1]s set id = 2 where id = -1`,
	"a row goes and comes back":          `update %[1]s set tenant = %[3]d where id = 1; update %[1]s set tenant = %[2]d where id = 1; update %[1]s set tenant = %[3]d where id = 2`,
	"a row goes there twice":             `update %[1]s set tenant = %[3]d where id = 1; update %[1]s set tenant = %[2]d where id = 1; update %[1]s set tenant = %[3]d, a = 9 where id = 1`,
	"a row moves and is deleted":         `update %[1]s set tenant = %[3]d where id = 1; delete from %[1]s where id = 1; insert into %[1]s values (51, %[2]d)`,
	"rows of both are deleted":           `delete from %[1]s where id in (1, 2)`,
	"a row is deleted and put elsewhere": `delete from %[1]s where id = 1; insert into %[1]s values (1, %[3]d, 5); update %[1]s set a = 6 where id = 1`,
	"a mapping changes":                  `update tenants set parent = %[3]d where id = %[2]d; update %[1]s set a = 7 where id = 1`,
	"mappings change places":             `update tenants set parent = case id when %[2]d then %[3]d else %[2]d end`,
	"a mapping changes twice":            `update tenants set parent = %[3]d where id = %[2]d; update %[1]s set id = 60 where id = 1; update tenants set parent = null where id = %[2]d`,
	"the table is emptied":               `update %[1]s set tenant = %[3]d where id = 1; set constraints all immediate; truncate %[1]s; insert into %[1]s values (1, %[2]d), (2, %[3]d); update %[1]s set tenant = %[3]d where id = 1`,
}

// A crash between the commits of two shards, whichever is first, loses and doubles nothing, although the columns the log
// left out were on the shard that has deleted the row. One transaction does the same in every kind of table.
func TestACrashBetweenTheCommitsOfTwoShards(t *testing.T) {
	t.Parallel()
	list := slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return v.key != "tenant" || v.name == "parts" })
	f := everyVariant(t, 2, list)
	f.watch = f.conns()
	a, b := f.keyOn(0, 0), f.keyOn(1, 0)
	f.exec(fmt.Sprintf(`insert into tenants values (%d), (%d)`, a, b))
	everywhere := func(sql string) string {
		all := "begin;"
		for _, v := range list {
			all += strings.NewReplacer("%[1]s", v.name, "%[2]d", fmt.Sprint(a), "%[3]d", fmt.Sprint(b)).Replace(sql) + ";"
		}
		return all + "commit"
	}
	for name, change := range apart {
		for first := range layout.Shard(2) {
			t.Run(fmt.Sprintf("%s, %s first", name, first), func(t *testing.T) {
				pgtest.OneIn(t, 3)
				f.takeOver()
				stop := f.run()
				f.exec(everywhere("delete from %[1]s"))
				f.exec("update tenants set parent = null")
				f.exec(everywhere(`insert into %[1]s select 1, %[2]d, 1, string_agg(md5(g::text), '') from generate_series(1, 100) g`))
				f.exec(everywhere(`insert into %[1]s select 2, %[3]d, 2, string_agg(md5(g::text), 'x') from generate_series(1, 100) g`))
				f.catchUp()
				stop()
				f.takeOver()
				f.haltAfter(first)
				stop = f.run()
				f.exec(everywhere(change))
				f.exec(`select pg_logical_emit_message(true, 'pgreshard', 'both')`)
				if err := f.failure(); !errors.Is(err, errHalt) {
					t.Fatalf("it ended with %v", err)
				}
				stop()
				f.takeOver()
				stop = f.run()
				f.catchUp()
				f.compareUnder(t)
				stop()
			})
		}
	}
}

// The same where the mapping is sharded itself, by an identity that does not tell where its row is: a worker that comes after
// the crash has not seen that translations change, and one shard is ahead.
func TestACrashWhileTheRowsOfAShardedMappingMove(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table orders (id bigint primary key, tenant bigint, note text); create table items (id int primary key, order_id bigint, a int);`, "",
		rules{sharded: map[string]string{"orders": "tenant", "items": "order_id"}, lookups: map[string]string{"items": "SELECT tenant FROM orders WHERE id = $1"}})
	f.watch = f.conns()
	a, b := f.keyOn(0, 0), f.keyOn(1, 0)
	f.exec(fmt.Sprintf(`insert into orders values (1, %d), (2, %d); insert into items select g, g %% 2 + 1, 0 from generate_series(1, 20) g`, a, b))
	for first := range layout.Shard(2) {
		for _, change := range []string{fmt.Sprintf(`update orders set tenant = case tenant when %d then %d else %[1]d end`, a, b),
			`begin; update items set a = a + 1 where order_id = 1; update orders set id = 3 - id, note = 'x' where id = 3; update orders set id = 3 where id = 1; insert into orders values (1, 7); commit`,
			`begin; delete from orders where id = 1; update orders set id = 1 where id = 3; update items set a = a + 1; commit`} {
			f.takeOver()
			stop := f.run()
			f.catchUp()
			stop()
			f.takeOver()
			f.haltAfter(first)
			stop = f.run()
			f.exec(change)
			f.exec(`select pg_logical_emit_message(true, 'pgreshard', 'both')`)
			if err := f.failure(); !errors.Is(err, errHalt) {
				t.Fatalf("%s: it ended with %v", change, err)
			}
			stop()
			f.takeOver()
			stop = f.run()
			f.catchUp()
			stop()
			f.compare("orders")
			if got := f.itemsWithTheirOrder(); got != "20" {
				t.Errorf("%s first, %s: %s items of 20 are with their order", first, change, got)
			}
		}
	}
}

// A stream that is cut within a transaction while a position without rows waits for its checkpoint must not commit the
// part it has.
func TestAStreamCutWithinATransactionCommitsNoPartOfIt(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table t (id int primary key, tenant bigint, big text)`, "", rules{sharded: map[string]string{"t": "tenant"}})
	a, b := f.keyOn(0, 0), f.keyOn(1, 0)
	f.exec(fmt.Sprintf(`insert into t values (1, %d)`, a)) // for shard 1 a position without rows
	f.exec(fmt.Sprintf(`insert into t select g, case g %% 2 when 0 then %d else %d end, repeat(g::text, 200) from generate_series(2, 3000) g`, a, b))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader := replicator.New(replicator.Config{Shard: f.source.Shard(0), Slot: f.source.Name, Publication: "p", Start: f.start})
	ended := make(chan struct{})
	go func() { _ = reader.Run(ctx); close(ended) }()
	blocks := make(chan *pg.Block, 64) // all there at once, so that no position without rows is recorded in between
	for commits, within := 0, false; commits == 0 || !within; {
		block := <-reader.Blocks()
		for _, c := range block.Changes {
			if c.Op == pg.OpCommit {
				commits++
			}
			within = within && c.Op != pg.OpCommit || c.Op == pg.OpBegin
		}
		blocks <- block
	}
	close(blocks)
	if err := f.stream.Run(ctx, blocks, reader.Release); err != nil {
		t.Fatal(err)
	}
	cancel()
	for range reader.Blocks() {
	}
	<-ended
	if n := f.shards[0].Query(t, `select count(*) from t`)[0][0] + f.shards[1].Query(t, `select count(*) from t`)[0][0]; n != "10" {
		t.Errorf("the shards hold %s rows", n)
	}
	f.run()
	f.catchUp()
	f.compare()
}

// A backend whose connection was cut may commit after the same worker has connected again and begun the same work: then
// the work is not done twice, and it is not called a divergence.
func TestAnOldBackendThatCommitsLateDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]string{
		"inserts without key": `insert into k values (1, %[1]d), (1, %[1]d)`,
		"inserts":             `insert into t values (2, %[1]d)`,
		"deletes":             `delete from t where id = 1`,
		"updates":             `update t set id = 5 where id = 1`,
		"moves":               `update t set tenant = %[2]d where id = 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := follow(t, 2, `create table t (id int primary key, tenant bigint); create table k (id int, tenant bigint);
				alter table k replica identity full`, "", rules{sharded: map[string]string{"t": "tenant", "k": "tenant"}})
			relay := pgtest.NewRelay(t, f.shards[0].Cluster.Addr())
			f.via[0] = f.shards[0].Via(relay)
			f.takeOver()
			a, b := f.keyOn(0, 0), f.keyOn(1, 0)
			stop := f.run()
			f.exec(fmt.Sprintf(`insert into t values (1, %d)`, a))
			f.catchUp()

			lock, err := f.at[0].Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := lock.Exec(t.Context(), `lock table t, k in share mode`); err != nil {
				t.Fatal(err)
			}
			f.exec(strings.NewReplacer(`%[1]d`, fmt.Sprint(a), `%[2]d`, fmt.Sprint(b)).Replace(step))
			f.awaitWaiting(1)
			relay.Refuse(true) // pgx would ask to cancel
			stop()
			relay.Refuse(false)
			f.run()
			f.awaitWaiting(2)
			if err := lock.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.catchUp()
			f.compare()
			t.Logf("%d runs (2: the new backend was first, 3: the old one)", f.runs)
		})
	}
}

// awaitWaiting waits until n backends of the stream wait for a lock on shard 0.
func (f *following) awaitWaiting(n int) {
	f.t.Helper()
	for end := time.Now().Add(streamPatience); ; time.Sleep(5 * time.Millisecond) {
		got := f.shards[0].Query(f.t, `select count(*) from pg_stat_activity where datname = current_database() and application_name = $1 and wait_event_type = 'Lock'`, f.stream.AppName)[0][0]
		if got == fmt.Sprint(n) {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("%s backends wait, not %d", got, n)
		}
	}
}

func TestAnOlderWorkerCanWriteNothing(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table t (id int primary key)`, "", rules{sharded: map[string]string{"t": "id"}})
	stop := f.run()
	f.exec(`insert into t select generate_series(1, 9)`)
	f.catchUp()
	old := f.stream
	f.takeOver()
	f.exec(`insert into t select generate_series(10, 19)`)
	if err := f.failure(); !errors.Is(err, checkpoints.ErrSuperseded) {
		t.Errorf("the older worker ended with %v", err)
	}
	stop()
	f.run()
	f.catchUp()
	f.compare()
	if old.Applied() >= f.stream.Applied() {
		t.Error("the older worker is as far as the new one")
	}
}

// A checkpoint that was moved under an open transaction, by whatever, is never moved on from a wrong place.
func TestACheckpointThatMovedIsReadAgain(t *testing.T) {
	t.Parallel()
	f := follow(t, 1, `create table t (id int primary key)`, "", rules{sharded: map[string]string{"t": "id"}})
	var last, once atomic.Int64
	f.watch = f.conns()
	f.stream.BeforeCommit(func(ctx context.Context, _ layout.Shard, end pg.LSN) error {
		if once.Load() != 0 {
			return nil
		}
		_, err := f.watch[0].PgConn().Exec(ctx, fmt.Sprintf(`set lock_timeout = '500ms'; begin; insert into public.t select generate_series(%d, %[1]d + 8);
			update pgreshard.checkpoint set lsn = '%s'; commit`, last.Load(), end)).ReadAll()
		switch {
		case err == nil:
			once.Store(1)
		case pg.Code(err) == "55P03": // this run has written some of the rows already: the next ones
			_, err = f.watch[0].Exec(ctx, `rollback`)
		}
		return err
	})
	f.run()
	for first := int64(1); once.Load() == 0 && first < 1000; first += 10 {
		last.Store(first)
		f.exec(fmt.Sprintf(`insert into t select generate_series(%d, %[1]d + 8)`, first))
		f.catchUp()
	}
	f.compare()
	if f.runs < 2 {
		t.Error("it went on without reading the checkpoint again")
	}
}

func TestARowThatIsGoneFromAShardStopsTheStreamThere(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{variants[0], variants[1], variants[3], variants[7]} {
		for name, change := range map[string]string{
			"update": `update %s set a = 5 where id = 1`, "delete": `delete from %s where id = 1`, "update of its key": `update %s set id = 99 where id = 1`,
		} {
			t.Run(v.name+", "+name, func(t *testing.T) {
				t.Parallel()
				pgtest.OneIn(t, 3)
				f := everyVariant(t, 2, []variant{v})
				f.run()
				f.exec(fmt.Sprintf(`insert into tenants values (3); insert into %[1]s values (1, 3, 1), (2, 3, 1); `, v.name))
				f.catchUp()
				shard := 0
				for i, db := range f.shards {
					if rows := db.Query(t, `with gone as (delete from `+v.name+` where id = 1 returning 1) select * from gone`); len(rows) == 1 {
						shard = i
					}
				}
				f.exec(`begin; update ` + v.name + ` set a = 7 where id = 2; ` + fmt.Sprintf(change, v.name) + `; commit`)
				err := f.failure()
				var diverged *sink.DivergedError
				if !errors.As(err, &diverged) {
					t.Fatalf("it ended with %v", err)
				}
				key := map[bool]string{true: "1", false: "3,1"}[v.name != "inside"]
				if diverged.Table.Table != v.name || diverged.Key != key && !(name == "update of its key" && diverged.Key == "99") || diverged.At == 0 {
					t.Errorf("it says %v, key %q", err, diverged.Key)
				}
				at, err := f.position(t.Context(), f.shards[shard])
				if err != nil || at > diverged.At {
					t.Errorf("the shard committed up to %s, %v", at, err)
				}
				if rows := f.shards[shard].Query(t, `select a from `+v.name+` where id = 2 or id = 1`); len(rows) > 0 && rows[0][0] != "1" {
					t.Errorf("a part of the transaction was committed: %v", rows)
				}
			})
		}
	}
}

func TestARowThatIsThereAlreadyStopsTheStream(t *testing.T) {
	t.Parallel()
	f := follow(t, 1, `create table t (id int primary key, u int unique)`, "", rules{sharded: map[string]string{"t": "id"}})
	f.run()
	f.shards[0].Exec(t, `insert into t values (1, 5)`)
	f.exec(`insert into t values (2, 2), (1, 1)`)
	var diverged *sink.DivergedError
	if err := f.failure(); !errors.As(err, &diverged) || diverged.Key != "1" || diverged.Shard != 0 {
		t.Errorf("it ended with %v", err)
	}
	if n := f.shards[0].Query(t, `select count(*) from t`)[0][0]; n != "1" {
		t.Errorf("%s rows", n)
	}
}

// What looks at the shards' standbys ends with what is written.
func TestAStreamThatLooksAtStandbysEndsWithItsBlocks(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table a (id int primary key)`, "", rules{sharded: map[string]string{"a": "id"}})
	f.stream.Standbys = true
	blocks, done := make(chan *pg.Block), make(chan error, 1)
	close(blocks)
	go func() { done <- f.stream.Run(t.Context(), blocks, func(*pg.Block) {}) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(streamPatience):
		t.Fatal("it does not end")
	}
}

// A row that one shard has given away is taken over by another that has got a column meanwhile.
func TestARowOnItsWayWhileItsTableGetsAColumn(t *testing.T) {
	t.Parallel()
	f := follow(t, 2, `create table notes (id int primary key, tenant bigint, pad text); alter table notes alter pad set storage external`, "",
		rules{sharded: map[string]string{"notes": "tenant"}})
	f.watch = f.conns()
	a, b := f.keyOn(0, 0), f.keyOn(1, 0)
	stop := f.run()
	f.exec(fmt.Sprintf(`insert into notes select 1, %d, string_agg(md5(g::text), '') from generate_series(1, 100) g`, a))
	f.catchUp()
	stop()
	f.takeOver()
	f.haltAfter(0)
	stop = f.run()
	f.exec(fmt.Sprintf(`update notes set tenant = %d`, b))
	f.exec(`select pg_logical_emit_message(true, 'pgreshard', 'both')`)
	if err := f.failure(); !errors.Is(err, errHalt) {
		t.Fatalf("it ended with %v", err)
	}
	stop()
	for _, db := range append(f.shards, f.source) {
		db.Exec(t, `alter table notes add column more int default 7`)
	}
	f.takeOver()
	stop = f.run()
	f.catchUp()
	f.compareUnder(t)
	stop()
}

// What all shards are asked for places rows, and is gone in the next transaction. Shard 1 commits, and the process dies before shard 0
// does. The replay places the rows as before: the shard that is ahead is not so far that it does not tell any more.
func TestAReplayPlacesRowsThoughTheirMappingIsGoneSoonAfter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string    // %[1]d and %[2]d are keys of the shards
		rows   [2]string // then
	}{
		"rows move to shard 1":   {`update orders set tenant = %[2]d, home = %[2]d`, [2]string{"0", "3"}},
		"rows come to shard 0":   {`insert into items values (4, 2)`, [2]string{"4", "0"}},
		"rows leave their order": {`update orders set home = %[2]d where id = 1`, [2]string{"0", "3"}},
	} {
		for _, gone := range []string{`delete from orders`, `truncate orders`, `update orders set id = id + 10`} {
			t.Run(name+", "+gone, func(t *testing.T) {
				t.Parallel()
				f := follow(t, 2, `create table orders (id bigint primary key, tenant bigint, home bigint); create table items (id int primary key, order_id bigint)`, "",
					rules{sharded: map[string]string{"orders": "tenant", "items": "order_id"}, lookups: map[string]string{"items": "SELECT home FROM orders WHERE id = $1"}})
				a, b := f.keyOn(0, 0), f.keyOn(1, 0)
				f.exec(fmt.Sprintf(`insert into orders values (1, %[1]d, %[1]d), (2, %[2]d, %[1]d); insert into items select g, 1 from generate_series(1, 3) g`, a, b))
				stop := f.run()
				f.catchUp()
				stop()
				f.takeOver()
				f.watch = f.conns()
				f.stream.BeforeCommit(func(ctx context.Context, shard layout.Shard, end pg.LSN) error {
					for deadline := time.Now().Add(2 * time.Second); shard == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
						var at pg.LSN
						if err := f.watch[1].QueryRow(ctx, `select lsn::text from pgreshard.checkpoint`).Scan(&at); err != nil {
							return err
						}
						if at >= end {
							return errHalt
						}
					}
					return nil // nothing has happened yet
				})
				f.exec(fmt.Sprintf("begin;"+c.change+";commit --%[1]d %[2]d", a, b))
				f.exec(gone)
				stop = f.run()
				if err := f.failure(); !errors.Is(err, errHalt) {
					t.Fatalf("it ended with %v", err)
				}
				stop()
				f.takeOver()
				f.run()
				f.catchUp()
				f.compare("orders")
				for shard, want := range c.rows {
					if got := f.shards[shard].Query(t, `select count(*) from items`)[0][0]; got != want {
						t.Errorf("shard %d has %s items, not %s", shard, got, want)
					}
				}
			})
		}
	}
}

package sink_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// A stream that is held still, let go on to the position of a slot and held again has on every shard exactly what that slot's
// snapshot shows, whatever is written meanwhile; and a run that ends while it is held says so.
func TestAStreamStandsStillAtExactlyAPosition(t *testing.T) {
	t.Parallel()
	const schema = `create table notes (id bigint primary key, tenant bigint, note text); create table places (id bigint primary key, n int)`
	f := follow(t, 3, schema+`; alter table notes replica identity full`, schema, rules{sharded: map[string]string{"notes": "tenant"}, omni: []string{"places"}})
	stop := f.run()
	f.exec(`insert into notes select g, g % 20, 'n' from generate_series(1, 200) g; insert into places select g, 0 from generate_series(1, 20) g`)
	f.catchUp()
	var writers sync.WaitGroup
	writing, enough := context.WithCancel(t.Context())
	for w := range 3 {
		conn := f.source.Conn(t)
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				sql := fmt.Sprintf(`begin; update notes set note = 'w%[1]d %[2]d', tenant = tenant + 1 where id %% 40 = %[2]d %% 40 and id %% 3 = %[1]d; update places set n = n + 1 where id = %[1]d + 1;
					insert into notes values (%[1]d * 1000000 + 1000 + %[2]d, %[2]d %% 20, 'new'); commit`, w, i)
				if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for n := range 10 {
		p, err := f.stream.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if open := f.source.Query(t, `select count(*) from pg_stat_activity where application_name = $1 and xact_start is not null and backend_type = 'client backend'`, "sink "+f.source.Name)[0][0]; open != "0" {
			t.Errorf("%s destination transactions are open while the stream stands still", open)
		}
		slot, err := replicator.CreateSlot(t.Context(), f.source.Shard(0), fmt.Sprintf("%s_%d", f.source.Name, n), true)
		if err != nil {
			t.Fatal(err)
		}
		f.exec(`select pg_logical_emit_message(true, 'pgreshard', 'beyond')`)
		if err := p.To(t.Context(), slot.ConsistentPoint); err != nil {
			t.Fatal(err)
		}
		for table, copies := range map[string]int64{"notes": 1, "places": 3} {
			sum := fmt.Sprintf(`select count(*), coalesce(sum(hashtextextended(t::text, 0)), 0)::text from %s t`, table)
			shown, err := f.source.Connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var want [2]string
			_, err = shown.PgConn().Exec(t.Context(), `begin isolation level repeatable read; set transaction snapshot '`+slot.Snapshot+`'`).ReadAll()
			if err == nil {
				err = shown.QueryRow(t.Context(), strings.Replace(sum, "count(*)", "count(*)::text", 1)).Scan(&want[0], &want[1])
			}
			if err := errors.Join(err, shown.Close(t.Context())); err != nil {
				t.Fatal(err)
			}
			rows, hashes := int64(0), new(big.Int)
			for _, shard := range f.shards {
				row := shard.Query(t, sum)[0]
				n, err := strconv.ParseInt(row[0], 10, 64)
				hash, ok := new(big.Int).SetString(row[1], 10)
				if err != nil || !ok {
					t.Fatal(row)
				}
				rows, hashes = rows+n, hashes.Add(hashes, hash)
			}
			expected, _ := new(big.Int).SetString(want[1], 10)
			expected.Mul(expected, big.NewInt(copies))
			if fmt.Sprint(rows/copies) != want[0] || hashes.Cmp(expected) != 0 {
				t.Errorf("at %s the shards hold %d rows of %s with the sum %s, the source %s with %s", slot.ConsistentPoint, rows/copies, table, hashes, want[0], expected)
			}
		}
		slot.Close()
		p.Resume()
	}
	if f.runs != 1 {
		t.Errorf("the stream was begun %d times", f.runs)
	}
	p, err := f.stream.Pause(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	stop()
	short, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.To(short, 1<<60); !errors.Is(err, sink.ErrEnded) {
		t.Errorf("a stream whose run has ended goes on: %v", err)
	}
	p.Resume()
	enough()
	writers.Wait()
	f.run()
	f.catchUp()
	f.compare()
}

// A stream that is to stop at a position leaves the checkpoint of every shard behind all that commits before: also of a shard
// that has no row of it, and was asked already for a key of what follows.
func TestAStreamThatStopsLeavesNoShardBehind(t *testing.T) {
	t.Parallel()
	f, _, b := orphans(t, 2, "")
	f.exec(fmt.Sprintf(`insert into tenants values (1, %d), (2, 0)`, b))
	f.exec(`insert into users values (1, 1)`)
	stop := f.run()
	f.catchUp()
	stop()
	stop = f.run() // nothing that this one reads makes the next forget where the key of user 1 lives
	f.exec(`insert into users values (2, 1)`)
	f.catchUp()
	stop()

	f.stream.StopAt = f.end() + 1<<20
	f.run()
	f.exec(`insert into users values (3, 1)`)
	for f.shards[1].Query(t, `select count(*) from users where id = 3`)[0][0] == "0" {
		time.Sleep(time.Millisecond)
	}
	f.exec(`select pg_logical_emit_message(false, 'filler', repeat('x', 2 << 20))`)
	f.exec(`insert into users values (4, 2)`)
	if err := f.failure(); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	var at [2]pg.LSN
	for i, db := range f.shards {
		var err error
		if at[i], err = f.position(t.Context(), db); err != nil {
			t.Fatal(err)
		}
		if rows := db.Query(t, `select id from users where id = 4`); len(rows) > 0 {
			t.Errorf("shard %d has a row of what was to come later", i)
		}
	}
	if at[0] != at[1] {
		t.Errorf("the shards are at %s", at)
	}
}

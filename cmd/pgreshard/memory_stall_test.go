//go:build linux

package main

import (
	"fmt"
	"os"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// A large transaction while one shard keeps a table locked: what cannot be applied yet waits in the source's log and not in
// the worker.
func TestTheWorkerStaysSmallWhileAShardStalls(t *testing.T) {
	rows, stall := 50_000, 2*time.Second
	cluster := pgtest.Shared(t)
	if os.Getenv(memoryVariable) != "" {
		rows, stall = 5_000_000, time.Minute
		cluster = pgtest.Start(t, pgtest.Options{})
	}
	r := &memoryRig{rows: 1000, source: cluster.Database(t)}
	for range memoryShards {
		r.shards = append(r.shards, cluster.Database(t))
	}
	binary(t)
	r.fill(t)
	r.writeConfig(t)
	worker := r.start(t, "migrate", "--hold")
	r.awaitStreaming(t, worker)

	slow := r.shards[1].Conn(t)
	if _, err := slow.Exec(t.Context(), `begin; lock table orders in share mode`); err != nil {
		t.Fatal(err)
	}
	r.source.Exec(t, fmt.Sprintf(`insert into orders select i, i %% 1000, md5(i::text) from generate_series(1000001, %d) i`, 1_000_000+rows))
	until(t, worker, "the shard had stalled it", func() bool {
		return r.shards[1].Query(t, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
			and clock_timestamp() - query_start > $1::interval`, stall.String())[0][0] == "1"
	})
	t.Logf("after a stall of %s: worker %s", stall, &r.worker)
	if _, err := slow.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.awaitConfirmed(t, worker)
	t.Logf("%d rows were on every shard %.1f s later; worker %s", rows, time.Since(began).Seconds(), &r.worker)
	stop(t, worker)
	r.compare(t)
	if sum := r.worker.bytes + r.children.bytes; sum >= memoryBound {
		t.Errorf("the worker and its children held %.0f MB, the bound is %d MB", mb(sum), memoryBound>>20)
	}
}

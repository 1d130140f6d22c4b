package move_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// One shard keeps a table locked for ten times as long as any timeout there is: of the walsender, and those of one second
// that the role carries. First the copy waits for it, then the stream. The source's walsender stays the same, the other
// shard goes on, status names the one that is slow, and nothing has to be done for all to go on.
func TestAnApplyMayTakeLongerThanEveryTimeout(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"wal_sender_timeout": "1s"}})
	source, shards := cluster.Database(t), []*pgtest.DB{cluster.Database(t), cluster.Database(t)}
	const table = `create table items (id bigint primary key, note text)`
	source.Exec(t, table+`; insert into items select g, 'copied' from generate_series(1, 500) g`)
	for _, db := range shards {
		db.Exec(t, table)
	}
	for _, db := range append([]*pgtest.DB{source}, shards...) {
		for _, timeout := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"} {
			db.Exec(t, fmt.Sprintf(`alter role postgres in database %q set %s = '1s'`, db.Name, timeout))
		}
	}
	s := smallMoveOf(t, source, shards, "id")
	s.config.CreateSchema = false
	slow, other := shards[1].Conn(t), shards[0].Conn(t)
	for _, sql := range []string{`set statement_timeout = 0`, `set lock_timeout = 0`, `set idle_in_transaction_session_timeout = 0`, `set idle_session_timeout = 0`} {
		runOn(t, slow, sql)
		runOn(t, other, sql)
	}
	count := func(sql string) (n int) {
		t.Helper()
		if err := other.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	await := func(what, sql string, want int) {
		t.Helper()
		for count(sql) != want {
			select {
			case <-t.Context().Done():
				t.Fatalf("never: %s", what)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	waits := func(seconds int) string {
		return fmt.Sprintf(`select count(*) from pg_stat_activity where datname = '%s' and wait_event_type = 'Lock' and clock_timestamp() - query_start > interval '%d s'`, shards[1].Name, seconds)
	}
	walsender := fmt.Sprintf(`select coalesce(max(active_pid), 0) from pg_replication_slots where database = '%s'`, source.Name)

	runOn(t, slow, `begin; lock table items in share mode`)
	worker, ended, held, release := s.move(), make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() {
		ended <- worker.Migrate(t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			close(held)
			<-release
			return true, nil
		}})
	}()
	await("the copy waits", waits(2), 1)
	runOn(t, slow, `commit`)
	<-held

	pid := count(walsender)
	runOn(t, slow, `begin; lock table items in share mode`)
	source.Exec(t, `insert into items select g, 'streamed' from generate_series(501, 700) g`)
	await("the stream waits", waits(5), 1)
	source.Exec(t, `insert into items select g, 'later' from generate_series(701, 900) g`)
	named := awaitStatus(t, "named", worker.Snapshot, func(st move.Status) bool { return len(st.Waiting) == 1 })
	if !strings.HasPrefix(named.Waiting[0], "destination shard 1 at "+cluster.Addr()+" has not answered for ") || named.SafeToCutOver.OK || named.Error != nil {
		t.Errorf("status: %+v", named)
	}
	await("the stream waits for long", waits(10), 1)
	await("the other shard goes on", `select least(1, count(*)) from items where note = 'later'`, 1)
	if now := count(walsender); now != pid || pid == 0 {
		t.Errorf("the walsender was %d and is %d", pid, now)
	}
	runOn(t, slow, `commit`)
	awaitStatus(t, "safe again", worker.Snapshot, func(st move.Status) bool { return st.SafeToCutOver.OK })
	close(release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	s.onItsShard("items", "id", "bigint")
}

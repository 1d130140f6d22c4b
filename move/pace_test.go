package move_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// await repeats a question until it has an answer.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// A comparison beside the writers gives way while a shard's applications wait for their disk and for each other, and while a stream falls
// behind; says which; and goes on when that is over, or when it has waited for a third of its time.
func TestAComparisonGivesWay(t *testing.T) {
	t.Parallel()
	source, shard := pgtest.Shared(t).Database(t), pgtest.Start(t, pgtest.Options{Durable: true}).Database(t)
	source.Exec(t, `create table orders (id bigint primary key, tenant_id bigint not null); insert into orders select g, g from generate_series(1, 100) g`)
	s := smallMoveOf(t, source, []*pgtest.DB{shard}, "tenant_id")
	ctx, end := context.WithCancel(t.Context())
	m := s.hold(ctx, s.move())
	reading := func(for_ time.Duration) string { return m.GivesWay(time.Now().Add(-for_), 0) }
	if because := reading(time.Hour); because != "" {
		t.Errorf("it waits although nothing is the matter: %s", because)
	}

	shard.Exec(t, `create table beside (id bigint)`)
	busy, rest := context.WithCancel(t.Context())
	defer rest()
	var all sync.WaitGroup
	for range 24 {
		conn := shard.Conn(t)
		all.Go(func() {
			for busy.Err() == nil {
				if _, err := conn.Exec(t.Context(), `insert into beside values (1)`); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	await(t, "a busy shard to be seen", func() bool {
		because := reading(time.Hour)
		return strings.HasPrefix(because, "on destination shard 0 ") && strings.HasSuffix(because, " sessions of applications at work wait for the disk or for each other")
	})
	if because := reading(time.Second); because != "" {
		t.Errorf("one that has just begun waits: %s", because)
	}
	rest()
	all.Wait()
	await(t, "the shard to be seen at rest", func() bool { return reading(time.Hour) == "" })

	lock := shard.Conn(t)
	if _, err := lock.PgConn().Exec(t.Context(), `begin; lock table orders in access exclusive mode`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	source.Exec(t, `insert into orders select g, g from generate_series(1000, 300000) g`)
	await(t, "a stream that falls behind to be seen", func() bool { return strings.HasPrefix(reading(time.Hour), "stream of source 0 is ") })
	if waits := m.GivesWay(time.Now().Add(-9*time.Second), 3100*time.Millisecond); waits != "" {
		t.Errorf("it has waited for more than a third of its time, and goes on waiting: %s", waits)
	}
	if _, err := lock.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	await(t, "the stream to have caught up", func() bool { return reading(time.Hour) == "" })
	s.sameRows(pgtest.RowsOptions{}, "orders")
	end()
	<-m.done
}

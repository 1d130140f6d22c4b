package move_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// A unique value handed over, while the copy is down, from a row it has to one it has not: the shard holds it twice until
// the stream has passed. The constraint is made after that, and the move goes through.
func TestAUniqueValueHandedOverBetweenTwoRunsOfACopy(t *testing.T) {
	s := newSmallMove(t, 1, "tenant", `create table coupons (id int primary key, tenant int, code text, pad text, unique (code), exclude using btree (code with =)) with (fillfactor = 50); -- a row that changes stays on its page
		alter table coupons alter pad set storage plain;
		insert into coupons select g, g % 5, 'code ' || g, repeat('x', 1500) from generate_series(1, 6000) g`)
	relay := pgtest.NewRelay(t, s.sources[0].Cluster.Addr())
	s.config.CopyWorkers = 1
	direct := s.config.Source.Shards[0]
	s.config.Source.Shards[0] = s.sources[0].Via(relay).Shard(0)
	stalled := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Contains: "code 6000", Do: pgtest.Stall})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.move().Migrate(ctx, move.MigrateOptions{}) }()
	select {
	case <-stalled:
	case err := <-done:
		t.Fatalf("the copy was not stopped: %v", err)
	}
	cancel()
	relay.Clear()
	relay.Resume(pgtest.ToClient)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if rows := s.shards[0].Query(t, `select count(*) > 0, count(*) < 6000 from coupons`); fmt.Sprint(rows) != "[[t t]]" {
		t.Fatalf("the copy was not stopped in its middle: %v", rows)
	}
	s.sources[0].Exec(t, `begin; update coupons set code = 'another' where id = 1; update coupons set code = 'code 1' where id = 6000; commit`)
	s.config.Source.Shards[0] = direct
	s.run(func() {
		s.sources[0].Exec(t, `delete from coupons where id = 2; update coupons set code = 'code 2' where id = 5999`)
	})
	s.same("coupons", "id")
	if got := s.shards[0].Query(t, `select count(*) from pg_index where indrelid = 'coupons'::regclass and indisvalid and indisunique or indisexclusion`); got[0][0] != "3" {
		t.Errorf("%s unique indexes", got[0][0])
	}
}

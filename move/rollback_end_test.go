package move_test

import (
	"fmt"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// What follows the switch back is interrupted. The run ends with it all the same: it does not cut over again.
func TestARollbackThatIsInterruptedAtItsEndIsNotFollowedByACutover(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema)
	s.config.Reverse = true
	relay := pgtest.NewRelay(t, s.sources[0].Cluster.Addr())
	s.config.Source.Shards[0] = s.sources[0].Via(relay).Shard(0)
	k := s.keep()
	cut := relay.Add(pgtest.Rule{Direction: pgtest.ToServer, Contains: "delete from pgreshard.outbox", Do: pgtest.Reset})
	if _, err := k.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-k.done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("the worker goes on: %+v", k.Snapshot())
	}
	select {
	case <-cut:
	default:
		t.Error("nothing was interrupted: the test proves nothing")
	}
	if got := s.shards[0].Query(t, `select state, (select version from pgreshard.serving) from pgreshard.move`); fmt.Sprint(got) != "[[rolled_back 1]]" {
		t.Errorf("the move is %v", got)
	}
	s.sources[0].Exec(t, `update items set note = 'the source serves'`)
}

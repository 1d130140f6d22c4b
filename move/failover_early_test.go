package move_test

import (
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// A shard fails over to a standby that has not even got its first checkpoint: the copy's chunks are waited for, so that it
// has none of them either, and it begins where the other shards do.
func TestAShardFailsOverBeforeItsFirstCheckpointIsOnTheStandby(t *testing.T) {
	t.Parallel()
	source, p := pgtest.Shared(t).Database(t), newPair(t, "", nil, nil)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), p.db}, "id")
	s.config.Destination.Shards[1] = p.shard(1)
	relay := pgtest.NewRelay(t, source.Cluster.Addr())
	s.config.Source.Shards[0] = source.Via(relay).Shard(0)
	made := relay.Add(pgtest.Rule{Direction: pgtest.ToServer, Type: "Query", Contains: "CREATE_REPLICATION_SLOT", Do: pgtest.Stall})
	worker, ended := s.move(), make(chan error, 1)
	go func() { ended <- worker.Migrate(t.Context(), move.MigrateOptions{}) }()
	select {
	case <-made:
	case err := <-ended:
		t.Fatal(err)
	}
	if err := p.standby.CatchUp(t.Context(), p.db.Query(t, `select pg_current_wal_flush_lsn()`)[0][0]); err != nil {
		t.Fatal(err)
	}
	p.cutOff()
	relay.Resume(pgtest.ToServer)
	first := func(db *pgtest.DB) int { return len(db.Query(t, `select 1 from pgreshard.checkpoint`)) }
	awaitStatus(t, "waits for the standby", worker.Snapshot, func(st move.Status) bool { return len(st.Waiting) == 1 })
	if first(p.db) != 1 || first(p.after) != 0 {
		t.Fatalf("%d checkpoints on the leader, %d on the standby: the test proves nothing", first(p.db), first(p.after))
	}
	source.Exec(t, `update items set note = 'meanwhile' where id % 3 = 0; delete from items where id % 7 = 0`)
	p.failOver(t)
	s.shards[1] = p.after
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	s.onItsShard("items", "id", "bigint")
}

// A standby that went away is about to lead, for all the worker knows, and holds the slot back; after a minute it does not.
func TestAStandbyThatIsGoneIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	source, p := pgtest.Shared(t).Database(t), newPair(t, "", nil, nil)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{p.db}, "id")
	s.config.Destination.Shards[0] = p.shard(0)
	worker, goOn, ended := s.holding()
	source.Exec(t, `update items set note = 'on both' where id % 3 = 0`)
	awaitApplied(t, worker, source)
	p.link.Refuse(true)
	p.link.Cut()
	gone := time.Now()
	source.Exec(t, `update items set note = 'on the leader' where id % 2 = 0`)
	awaitApplied(t, worker, source)
	behind := source.Query(t, `select pg_current_wal_insert_lsn()`)[0][0]
	source.Exec(t, `insert into items values (1000, 'later')`)
	awaitApplied(t, worker, source)
	for {
		// The clock is read first: what is confirmed was so no earlier.
		since, confirmed := time.Since(gone), source.Query(t, `select confirmed_flush_lsn > $2 from pg_replication_slots where slot_name = $1`, "pgreshard_"+s.config.Name+"_0", behind)[0][0]
		if confirmed == "t" && since < 50*time.Second {
			t.Fatalf("confirmed %s after the standby went away, which may lead now", since)
		}
		if confirmed == "t" {
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-t.Context().Done():
			t.Fatal("the slot is held back for ever")
		case <-time.After(200 * time.Millisecond):
		}
	}
	goOn()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

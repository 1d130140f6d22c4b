package fanout

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// Which node answers, with a standby that stands still, a leader out of reach, and one that has failed over.
func TestWhoMayAnswerIsWhatTheConsistencySays(t *testing.T) {
	t.Parallel()
	leader := pgtest.Start(t, pgtest.Options{})
	standby := leader.Standby(t)
	db := leader.Database(t)
	db.Exec(t, `create table part (id int); insert into part values (1)`)
	query := describe(t, db, Question{Table: tableOf(t, db, "part"), From: "only public.part", Aggregates: []string{"count"}})
	replica := standby.Existing(db.Name)
	position, err := leader.Position(t.Context())
	if err == nil {
		err = standby.CatchUp(t.Context(), position)
	}
	if err != nil {
		t.Fatal(err)
	}
	replica.Exec(t, `select pg_wal_replay_pause()`)
	db.Exec(t, `insert into part values (2)`)

	relay := pgtest.NewRelay(t, leader.Addr())
	known := new(pg.Known)
	known.Expect(db.Query(t, `select system_identifier || '/' || current_database() from pg_control_system()`)[0][0])
	through, behind := db.Via(relay).Shard(0), replica.Shard(0)
	through.Known, behind.Known = known, known
	shard := Shard{Nodes: NodesOf(through, []pg.Shard{behind}, "test")}
	ask := func(name string, c Consistency, most time.Duration, count, node, reasons string) {
		t.Helper()
		a, err := Ask(t.Context(), Request{Query: *query, Shards: []Shard{shard}, Consistency: c, Behind: most})
		if err != nil {
			t.Fatal(err)
		}
		got, who, why := "", "", []string{}
		if a.Rows != nil {
			got = *a.Rows[0].Values[0]
		}
		for _, one := range a.Asked {
			who = one.Node
		}
		for _, f := range a.Failures {
			why = append(why, f.Node+" "+f.Reason)
		}
		if text := fmt.Sprint(why); got != count || who != node || text != reasons || a.Partial() != (count == "") {
			t.Errorf("%s: %q by %s, failed %s; want %q by %s, failed %s", name, got, who, text, count, node, reasons)
		}
	}
	const nobody = "[]"
	ask("strong", Strong, 0, "2", relay.Addr(), nobody)
	ask("bounded", Bounded, time.Hour, "2", relay.Addr(), nobody)
	ask("eventual", Eventual, 0, "1", standby.Addr(), nobody)

	relay.Refuse(true)
	gone := relay.Addr() + " unavailable"
	ask("strong without a leader", Strong, 0, "", "", "["+gone+"]")
	ask("bounded without a leader", Bounded, time.Hour, "1", standby.Addr(), nobody)
	ask("bounded without a leader, and the replica is too far behind", Bounded, time.Nanosecond, "", "", "["+gone+" "+standby.Addr()+" behind]")
	relay.Refuse(false)

	// A replica of another system, one that follows nobody, a leader that follows.
	other := pgtest.Shared(t).Database(t)
	other.Exec(t, `create table part (id int)`)
	stranger, promoted := other.Shard(0), db.Shard(0)
	stranger.Known, promoted.Known = known, known
	shard.Nodes = NodesOf(through, []pg.Shard{stranger}, "test")
	ask("another system's replica is passed over", Eventual, 0, "2", relay.Addr(), nobody)
	relay.Refuse(true)
	ask("and never answers", Eventual, 0, "", "", "["+other.Cluster.Addr()+" error "+gone+"]")
	shard.Nodes = NodesOf(through, []pg.Shard{promoted}, "test")
	ask("a replica that leads is not known to be current", Bounded, time.Hour, "", "", "["+gone+" "+leader.Addr()+" error]")
	ask("but is a node", Eventual, 0, "2", leader.Addr(), nobody)
	shard.Nodes = NodesOf(replica.Shard(0), nil, "test")
	ask("a leader that follows", Strong, 0, "", "", "["+standby.Addr()+" no_leader]")

	// A failed-over shard is seen by the next question, and its nodes are read for each.
	read := 0
	both := pg.FixedURL(0, fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable", leader.Addr(), standby.Addr(), db.Name))
	nodes := NodesOf(both, nil, "test")
	shard.Nodes = func(ctx context.Context) ([]Node, error) { read++; return nodes(ctx) }
	ask("before the fail-over", Strong, 0, "2", leader.Addr(), nobody)
	replica.Exec(t, `select pg_wal_replay_resume()`)
	if position, err = leader.Position(t.Context()); err == nil {
		err = standby.CatchUp(t.Context(), position)
	}
	if err == nil {
		err = leader.Stop("immediate")
	}
	if err != nil {
		t.Fatal(err)
	}
	ask("with no leader", Strong, 0, "", "", "[ no_leader]")
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask("after it", Strong, 0, "2", standby.Addr(), nobody)
	if read != 3 {
		t.Errorf("the nodes were read %d times for 3 questions", read)
	}
}

// One that does not answer in time is named, and those that do are not kept waiting for.
func TestAShardThatIsTooSlowStopsNoOther(t *testing.T) {
	t.Parallel()
	var shards []Shard
	var dbs []*pgtest.DB
	for n := range 3 {
		db := pgtest.Shared(t).Database(t)
		db.Exec(t, `create table part (id int); insert into part values (1)`)
		dbs, shards = append(dbs, db), append(shards, shardOf(db, n))
	}
	query := describe(t, dbs[0], Question{Table: tableOf(t, dbs[0], "part"), From: "only public.part", Aggregates: []string{"count"}})
	locked := dbs[1].Conn(t)
	if _, err := locked.Exec(t.Context(), `begin; lock part`); err != nil {
		t.Fatal(err)
	}
	a, err := Ask(t.Context(), Request{Query: *query, Shards: shards, Consistency: Strong, Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(a.Failures, []Failure{{Shard: 1, Node: dbs[1].Cluster.Addr(), Reason: "timeout"}}) || *a.Rows[0].Values[0] != "2" || len(a.Asked) != 2 {
		t.Errorf("%+v, %v", a, a.Rows)
	}
	if _, err := locked.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	if a, err = Ask(t.Context(), Request{Query: *query, Shards: shards, Consistency: Strong}); err != nil || a.Partial() || *a.Rows[0].Values[0] != "3" {
		t.Errorf("once it is free: %+v, %v", a, err)
	}
}

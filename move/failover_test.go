package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/replicator"
)

// pair is a database on a leader with a standby, reached by one URL that names both. The standby streams through a relay.
type pair struct {
	leader, standby *pgtest.Cluster
	db, after       *pgtest.DB // the database on each of them
	link            *pgtest.Relay
}

func newPair(t *testing.T, schema string, leader, standby map[string]string) *pair {
	t.Helper()
	p := &pair{leader: pgtest.Start(t, pgtest.Options{Settings: leader})}
	p.db = p.leader.Database(t)
	if schema != "" {
		p.db.Exec(t, schema)
	}
	p.link = pgtest.NewRelay(t, p.leader.Addr())
	settings := map[string]string{"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%s user=postgres dbname=%s application_name=standby_1",
		p.link.Addr()[strings.LastIndexByte(p.link.Addr(), ':')+1:], p.db.Name)}
	for k, v := range standby {
		settings[k] = v
	}
	var err error
	if p.standby, err = p.leader.NewStandby(t.Context(), pgtest.Options{Settings: settings}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.standby.Close)
	p.after = p.standby.Existing(p.db.Name)
	return p
}

// shard names both nodes; the standby first, so that the leader is not just the first.
func (p *pair) shard(n int) pg.Shard {
	return pg.FixedURL(n, fmt.Sprintf("postgres://postgres@%s,%s/%s?sslmode=disable", p.standby.Addr(), p.leader.Addr(), p.db.Name))
}

// cutOff keeps from the standby what the leader writes from now on.
func (p *pair) cutOff() { p.link.Stall(pgtest.ToClient) }

// failOver kills the leader and makes the standby one.
func (p *pair) failOver(t *testing.T) {
	t.Helper()
	if err := p.leader.Kill(); err != nil {
		t.Fatal(err)
	}
	p.link.Refuse(true)
	p.link.Cut()
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
}

const failoverSchema = `create table items (id bigint primary key, note text); insert into items select g, 'x' from generate_series(1, 500) g`

// awaitApplied waits until the shards hold what the source has written.
func awaitApplied(t *testing.T, worker *move.Move, source *pgtest.DB) {
	t.Helper()
	end := source.Query(t, `select pg_logical_emit_message(true, 'pgreshard', 'level')`)[0][0]
	awaitStatus(t, "applied", worker.Snapshot, func(s move.Status) bool {
		return len(s.Streams) == 1 && source.Query(t, `select $1::pg_lsn >= $2::pg_lsn`, s.Streams[0].Applied, end)[0][0] == "t"
	})
}

// holding starts a move that streams until go is called, or ends before.
func (s *smallMove) holding() (worker *move.Move, goOn func(), ended <-chan error) {
	s.t.Helper()
	held, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	worker = s.move()
	go func() {
		once := false
		done <- worker.Migrate(s.t.Context(), move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
			if !once {
				once = true
				close(held)
			}
			select {
			case <-release:
				return true, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}})
	}()
	select {
	case <-held:
	case err := <-done:
		s.t.Fatal(err)
	}
	return worker, func() { close(release) }, done
}

// A shard fails over to a standby that lacks the last commits of the leader. With confirm = "standby" the source still has
// them; with "leader" it may not, and the move must not go on.
func TestAShardFailsOverToAStandbyThatLacksTheLastCommits(t *testing.T) {
	t.Parallel()
	for _, confirm := range []string{move.ConfirmStandby, move.ConfirmLeader} {
		t.Run(confirm, func(t *testing.T) {
			t.Parallel()
			source, p := pgtest.Shared(t).Database(t), newPair(t, "", nil, nil)
			source.Exec(t, failoverSchema)
			other := pgtest.SharedDestination(t).Database(t)
			s := smallMoveOf(t, source, []*pgtest.DB{other, p.db}, "id")
			s.config.Destination.Shards[1], s.config.Confirm = p.shard(1), confirm
			worker, goOn, ended := s.holding()
			source.Exec(t, `update items set note = 'on both' where id % 3 = 0`)
			awaitApplied(t, worker, source)
			confirmed := func() string {
				return source.Query(t, `select confirmed_flush_lsn from pg_replication_slots where slot_name = $1`, "pgreshard_"+s.config.Name+"_0")[0][0]
			}
			end := source.Query(t, `select pg_current_wal_insert_lsn()`)[0][0]
			p.cutOff()
			source.Exec(t, `update items set note = 'on the leader' where id % 2 = 0; insert into items select g, 'on the leader' from generate_series(501, 700) g; delete from items where id % 7 = 0`)
			awaitApplied(t, worker, source)
			lost := p.db.Query(t, `select count(*) from items where note = 'on the leader'`)[0][0]
			if confirm == move.ConfirmLeader {
				for source.Query(t, `select $1::pg_lsn > $2`, confirmed(), end)[0][0] != "t" {
					time.Sleep(10 * time.Millisecond)
				}
			} else {
				for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // time enough for what must not happen
					at := confirmed()
					if has := p.after.Query(t, `select lsn from pgreshard.checkpoint`)[0][0]; source.Query(t, `select $1::pg_lsn > $2`, at, has)[0][0] == "t" {
						t.Fatalf("confirmed at %s, and the standby is at %s", at, has)
					}
				}
			}
			p.failOver(t)
			s.shards[1] = p.after
			if got := p.after.Query(t, `select count(*) from items where note = 'on the leader'`)[0][0]; lost == "0" || got != "0" {
				t.Fatalf("the leader had %s of the last rows and the standby %s: nothing was lost, the test proves nothing", lost, got)
			}
			if confirm == move.ConfirmLeader {
				err := <-ended
				if !errors.Is(err, replicator.ErrConfirmedAhead) || !strings.Contains(err.Error(), "destination shard 1 is at ") || !strings.Contains(move.Hint(err), "cancel --drop-data") {
					t.Errorf("got %v", err)
				}
				t.Log(err)
				if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
					t.Fatal(err)
				}
				s.run(func() {})
			} else {
				source.Exec(t, `insert into items select g, 'after' from generate_series(701, 750) g`)
				awaitApplied(t, worker, source)
				if node := worker.Snapshot().Shards[1].Node; node != p.standby.Addr() {
					t.Errorf("shard 1 is said to be at %s", node)
				}
				goOn()
				if err := <-ended; err != nil {
					t.Fatal(err)
				}
			}
			s.same("items", "id")
			s.onItsShard("items", "id", "bigint")
		})
	}
}

// A standby is promoted while the leader runs on: both are named, neither is written to, and when one gives up the move
// goes on with the other.
func TestAShardWithTwoLeadersIsNotWritten(t *testing.T) {
	t.Parallel()
	source, p := pgtest.Shared(t).Database(t), newPair(t, "", nil, nil)
	source.Exec(t, failoverSchema)
	s := smallMoveOf(t, source, []*pgtest.DB{p.db}, "id")
	p.db.Exec(t, `create role mover login`)
	s.config.Destination.Shards[0] = pg.FixedURL(0, strings.Replace(p.db.URL(), "postgres@", "mover@", 1))
	if problems := s.problems(); !containing(problems, `role mover does not see what its standbys have; grant pg_monitor to "mover"`) {
		t.Errorf("the plan says %v", problems)
	}
	s.config.Destination.Shards[0] = p.shard(0)
	worker, goOn, ended := s.holding()
	source.Exec(t, `update items set note = 'before' where id % 3 = 0`)
	awaitApplied(t, worker, source)
	if err := p.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := awaitStatus(t, "both named", worker.Snapshot, func(st move.Status) bool {
		return len(st.Waiting) == 1 && strings.HasSuffix(st.Waiting[0], p.standby.Addr()+" and "+p.leader.Addr()+" both say they lead")
	})
	if got.SafeToCutOver.OK || got.Error != nil {
		t.Errorf("%+v", got)
	}
	positions := func() string {
		return p.db.Query(t, `select lsn from pgreshard.checkpoint`)[0][0] + " " + p.after.Query(t, `select lsn from pgreshard.checkpoint`)[0][0]
	}
	stand := positions()
	source.Exec(t, `update items set note = 'meanwhile' where id % 2 = 0`)
	// Whatever is tried again in these seconds must not get through.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if now := positions(); now != stand {
			t.Fatalf("written while two lead: from %s to %s", stand, now)
		}
	}
	if err := p.leader.Kill(); err != nil {
		t.Fatal(err)
	}
	s.shards[0] = p.after
	awaitApplied(t, worker, source)
	goOn()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

// Chunks that only the leader has do not count as copied; after a fail-over they are copied again.
func TestAShardFailsOverDuringTheCopy(t *testing.T) {
	t.Parallel()
	source, p := pgtest.Shared(t).Database(t), newPair(t, "", nil, nil)
	source.Exec(t, `create table items (id bigint primary key, note text); alter table items alter note set storage plain;
		insert into items select g, 'note ' || g || repeat('x', 1500) from generate_series(1, 4000) g`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), p.db}, "id")
	s.config.Destination.Shards[1], s.config.CopyWorkers = p.shard(1), 1
	relay := pgtest.NewRelay(t, source.Cluster.Addr())
	s.config.Source.Shards[0] = source.Via(relay).Shard(0)
	begun := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Contains: "note 10x", Do: pgtest.Stall})
	worker, ended := s.move(), make(chan error, 1)
	go func() { ended <- worker.Migrate(t.Context(), move.MigrateOptions{}) }()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatal(err)
	}
	p.cutOff()
	relay.Resume(pgtest.ToClient)
	got := awaitStatus(t, "waits for the standby", worker.Snapshot, func(st move.Status) bool {
		return len(st.Waiting) == 1 && strings.Contains(st.Waiting[0], "no standby of destination shard 1 has flushed ")
	})
	if got.State != move.StateCopying {
		t.Errorf("the move is %s", got.State)
	}
	var refused *move.NotReadyError
	if _, err := worker.Cutover(t.Context(), move.CutoverOptions{}); !errors.As(err, &refused) || refused.Because[0] != "the move is copying" {
		t.Errorf("a cutover asked for while copying: %v", err)
	}
	all, has := p.db.Query(t, `select count(*) from items`)[0][0], p.after.Query(t, `select count(*) from items`)[0][0]
	if all == has {
		t.Fatalf("the standby has all %s rows: the test proves nothing", all)
	}
	p.failOver(t)
	s.shards[1] = p.after
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	s.onItsShard("items", "id", "bigint")
}

// A source fails over to a standby that has not got the slot, as none has before 17 and without sync_replication_slots: the
// move says so and is started over. Where the standby also lacks what the shards have already, that is said instead.
func TestASourceFailsOverToAStandbyWithoutTheSlot(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		t.Run(fmt.Sprintf("behind %v", behind), func(t *testing.T) {
			t.Parallel()
			p := newPair(t, failoverSchema, nil, nil)
			s := smallMoveOf(t, p.db, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
			s.config.Source.Shards[0] = p.shard(0)
			worker, _, ended := s.holding()
			want := []string{"the replication slot does not exist: the server failed over (timeline 1 to 2) to a standby that had not got it", "sync_replication_slots"}
			known := replicator.ErrSlotMissing
			if behind {
				p.cutOff()
				want, known = []string{"it left timeline 1 at ", ", and changes up to ", "it was promoted without the last of them"}, replicator.ErrOtherHistory
			}
			p.db.Exec(t, `update items set note = 'applied' where id % 2 = 0`)
			awaitApplied(t, worker, p.db)
			if !behind {
				if err := p.standby.CatchUp(t.Context(), p.db.Query(t, `select pg_current_wal_flush_lsn()`)[0][0]); err != nil {
					t.Fatal(err)
				}
			}
			p.failOver(t)
			s.sources[0] = p.after
			p.after.Exec(t, `insert into items select g, repeat('on the new leader', 100) from generate_series(501, 3000) g`) // its log is longer than the shards' position
			err := <-ended
			for run := range 2 { // and the next says the same
				for _, part := range want {
					if !errors.Is(err, known) || !strings.Contains(err.Error(), part) || !strings.Contains(move.Hint(err), "cancel --drop-data") {
						t.Errorf("run %d: no %q in %v", run, part, err)
					}
				}
				if run == 0 {
					err = s.move().Migrate(t.Context(), move.MigrateOptions{})
				}
			}
			t.Log(err)
			if err := s.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
				t.Fatal(err)
			}
			s.run(func() { p.after.Exec(t, `delete from items where id % 5 = 0`) })
			s.same("items", "id")
		})
	}
}

// From 17 on a standby keeps the slot: the move goes on from it.
func TestASourceFailsOverToAStandbyThatKeepsTheSlot(t *testing.T) {
	t.Parallel()
	if pgtest.Shared(t).Version < 17 {
		t.Skip("standbys keep slots from PostgreSQL 17 on")
	}
	p := newPair(t, failoverSchema, map[string]string{"synchronized_standby_slots": ""},
		map[string]string{"sync_replication_slots": "on", "hot_standby_feedback": "on"})
	s := smallMoveOf(t, p.db, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.Source.Shards[0] = p.shard(0)
	p.db.Exec(t, `alter system set synchronized_standby_slots = 'standby_1'`)
	p.db.Exec(t, `select pg_reload_conf()`)
	worker, goOn, ended := s.holding()
	p.db.Exec(t, `update items set note = 'before' where id % 2 = 0`)
	awaitApplied(t, worker, p.db)
	slot := "pgreshard_" + s.config.Name + "_0"
	for p.after.Query(t, `select count(*) from pg_replication_slots where slot_name = $1 and synced and not temporary`, slot)[0][0] != "1" {
		p.db.Exec(t, `insert into items select max(id) + 1, 'until the slot is kept' from items`)
		select {
		case <-t.Context().Done():
			t.Fatal("the standby never keeps the slot")
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(100 * time.Millisecond):
		}
	}
	p.db.Exec(t, `update items set note = 'last' where id % 3 = 0`)
	awaitApplied(t, worker, p.db)
	p.failOver(t)
	s.sources[0] = p.after
	p.after.Exec(t, `alter system reset synchronized_standby_slots`)
	p.after.Exec(t, `select pg_reload_conf()`)
	p.after.Exec(t, `insert into items select g, 'on the new leader' from generate_series(10001, 10100) g; delete from items where id % 5 = 0`)
	awaitApplied(t, worker, p.after)
	goOn()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	s.onItsShard("items", "id", "bigint")
}

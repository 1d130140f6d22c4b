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
	s.interruptCopy("code 6000")
	if rows := s.shards[0].Query(t, `select count(*) > 0, count(*) < 6000 from coupons`); fmt.Sprint(rows) != "[[t t]]" {
		t.Fatalf("the copy was not stopped in its middle: %v", rows)
	}
	s.sources[0].Exec(t, `begin; update coupons set code = 'another' where id = 1; update coupons set code = 'code 1' where id = 6000; commit`)
	s.run(func() {
		s.sources[0].Exec(t, `delete from coupons where id = 2; update coupons set code = 'code 2' where id = 5999`)
	})
	s.same("coupons", "id")
	if got := s.shards[0].Query(t, `select count(*) from pg_index where indrelid = 'coupons'::regclass and indisvalid and indisunique or indisexclusion`); got[0][0] != "3" {
		t.Errorf("%s unique indexes", got[0][0])
	}
}

// interruptCopy runs the move until it has read a row that contains a text, and ends it there.
func (s *smallMove) interruptCopy(row string) {
	s.t.Helper()
	relay := pgtest.NewRelay(s.t, s.sources[0].Cluster.Addr())
	direct := s.config.Source.Shards[0]
	s.config.CopyWorkers = 1
	s.config.Source.Shards[0] = s.sources[0].Via(relay).Shard(0)
	stalled := relay.Add(pgtest.Rule{Direction: pgtest.ToClient, Type: "CopyData", Contains: row, Do: pgtest.Stall})
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.move().Migrate(ctx, move.MigrateOptions{}) }()
	select {
	case <-stalled:
	case err := <-done:
		s.t.Fatalf("the copy was not stopped: %v", err)
	}
	cancel()
	relay.Clear()
	relay.Resume(pgtest.ToClient)
	if err := <-done; !errors.Is(err, context.Canceled) {
		s.t.Fatal(err)
	}
	s.config.Source.Shards[0] = direct
}

// Rows are found by the source's replica identity, and an upsert conflicts on the destination's key, which may be another.
func TestAResumedCopyIntoTablesWithAnotherKeyThanTheIdentity(t *testing.T) {
	s := newSmallMove(t, 1, "tenant", `create table notes (id int primary key, tenant int not null, v int, note text, unique (id, tenant));
		alter table notes replica identity using index notes_id_tenant_key; alter table notes alter note set storage plain;
		insert into notes select g, g % 5, 0, 'note ' || g || repeat('x', 3000) from generate_series(1, 6000) g`)
	s.shards[0].Exec(t, `create table notes (note text, v int, tenant int not null, id int primary key)`)
	s.config.CreateSchema = false
	s.interruptCopy("note 6000")
	s.sources[0].Exec(t, `update notes set v = 1 where id % 7 = 0; update notes set tenant = tenant + 1, v = 2 where id % 11 = 0; delete from notes where id % 13 = 0`)
	s.sources[0].Exec(t, `insert into notes select g * 13, 1, 3, 'again' from generate_series(1, 100) g`)
	s.run(func() { s.sources[0].Exec(t, `update notes set v = v + 1 where id % 5 = 0`) })
	s.same("notes", "id")
}

// Every mark is void once a table's file has changed. A worker that dies right then leaves rows without any mark: the next
// one must not take the copy for one that has not begun.
func TestACopyKilledWhenAllItsMarksWereVoidGoesOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ key, next string }{ // the statement that comes next
		"a table with a key": {"primary key", "from stdin"}, "one without": {"not null", "truncate "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 1, "tenant", fmt.Sprintf(`create table notes (id int %s, tenant int, note text); alter table notes replica identity full;
				alter table notes alter note set storage plain;
				insert into notes select g, g %% 5, 'note ' || g || repeat('x', 3000) from generate_series(1, 3000) g`, c.key))
			s.interruptCopy("note 3000")
			s.sources[0].Exec(t, `vacuum full notes`)
			relay := pgtest.NewRelay(t, s.shards[0].Cluster.Addr())
			direct := s.config.Destination.Shards[0]
			s.config.Destination.Shards[0] = s.shards[0].Via(relay).Shard(0)
			next := relay.Add(pgtest.Rule{Direction: pgtest.ToServer, Contains: c.next, Do: pgtest.Stall})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- s.move().Migrate(ctx, move.MigrateOptions{}) }()
			select {
			case <-next:
			case err := <-done:
				t.Fatalf("the second run was not stopped: %v", err)
			}
			cancel()
			relay.Cut()
			<-done
			s.config.Destination.Shards[0] = direct
			if rows := s.shards[0].Query(t, `select (select count(*) from pgreshard.chunk), (select count(*) > 0 from notes)`); fmt.Sprint(rows) != "[[0 t]]" {
				t.Fatalf("marks, rows: %v", rows)
			}
			s.run(func() { s.sources[0].Exec(t, `update notes set tenant = tenant + 1 where id % 7 = 0`) })
			s.sameRows(pgtest.RowsOptions{}, "notes")
		})
	}
}

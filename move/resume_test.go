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
	t.Parallel()
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
	s.interruptCopyOf(0, row)
}

func (s *smallMove) interruptCopyOf(source int, row string) {
	s.t.Helper()
	relay := pgtest.NewRelay(s.t, s.sources[source].Cluster.Addr())
	direct := s.config.Source.Shards[source]
	s.config.CopyWorkers = 1
	s.config.Source.Shards[source] = s.sources[source].Via(relay).Shard(source)
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
	s.config.Source.Shards[source] = direct
}

// Rows are found by the source's replica identity, and an upsert conflicts on the destination's key, which may be another.
func TestAResumedCopyIntoTablesWithAnotherKeyThanTheIdentity(t *testing.T) {
	t.Parallel()
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

// wide is a table of three chunks whose column big is stored apart from its row.
const wide = `create table notes (id int primary key, tenant int, v int default 0, note text, pad text default repeat('x', 1000), big text);
	alter table notes alter pad set storage plain, alter big set storage external;
	insert into notes (id, tenant, note, big) select g, g % 5, 'note ' || g, repeat(md5(g::text), 66) from generate_series(1, 6000) g;`

// What happens to rows of which an interrupted copy has some: those that moved from a chunk still to be read to one that is
// not read again come from the stream, which lacks what is stored apart and asks the source for it; others are there
// already, or again, or no more. All of it twice.
func TestACopyInterruptedTwiceForgivesWhatItHasAndFetchesWhatItLacks(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", wide)
	changes := func(from, to int) {
		runOn(t, s.sources[0].Conn(t), fmt.Sprintf(`delete from notes where id between %[1]d and %[1]d + 900`, from))
		runOn(t, s.sources[0].Conn(t), `vacuum notes`)
		runOn(t, s.sources[0].Conn(t), fmt.Sprintf(`update notes set v = v + 1 where id between %[2]d and %[2]d + 300;
			update notes set tenant = tenant + 1 where id %% 97 = 0; update notes set id = id + %[1]d * 10000 where id %% 89 = 0 and id < 10000;
			update notes set id = id + %[1]d * 10000, tenant = tenant + 1 where id %% 83 = 0 and id < 10000;
			update notes set big = 'short' where id %% 79 = 0; update notes set v = 7 where id %% 79 = 0;
			insert into notes (id, tenant, note, big) select g, g %% 5, 'again', repeat(md5(g::text), 66) from generate_series(%[1]d, %[1]d + 100) g;
			delete from notes where id %% 73 = 0`, from, to))
	}
	s.interruptCopy("note 3500")
	changes(1, 5600)
	chunk := s.shards[0].Query(t, `select jsonb_path_query(detail -> 'pages_0', '$.*')::int from pgreshard.move`)[0][0]
	moved := s.sources[0].Query(t, `select count(*) from notes where id between 5600 and 5900 and ctid < format('(%s,0)', $1::text)::tid`, chunk)[0][0]
	marks := s.shards[0].Query(t, `select count(*) from pgreshard.chunk where chunk = 0`)[0][0]
	if moved == "0" || marks != "1" {
		t.Fatalf("%s rows moved from the last chunk to the first, which is held %s times", moved, marks)
	}
	s.interruptCopy("note 5990")
	changes(1500, 5200)
	s.run(func() { changes(3000, 4500) })
	s.same("notes", "id")
	s.onItsShard("notes", "tenant", "int")
}

// A table without key whose copy was interrupted is emptied and copied again, but for the rows of other sources; what was
// written meanwhile is neither lost nor there twice.
func TestATableWithoutKeyIsEmptiedOfItsSourcesRowsAndCopiedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 2, pgtest.WorkloadOptions{})
	for _, db := range r.sources {
		db.Exec(t, `alter table events alter payload set storage plain;
			insert into events select tenant_id, 1000000 + g, 'more ' || g, jsonb_build_object('n', repeat('x', 1500)), 1
				from (select distinct tenant_id from events order by 1 limit 1) t, generate_series(1, 7000) g;
			insert into events select * from events where id > 1006990`)
	}
	s := &smallMove{rig: r}
	s.config.CopySources = 1
	s.interruptCopyOf(1, "more 6999")
	partly := 0
	for _, db := range r.shards {
		var rows int
		if err := db.Conn(t).QueryRow(t.Context(), `select count(*) from events where id > 1000000`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		partly += rows
	}
	if partly <= 7010 || partly >= 2*7010 {
		t.Fatalf("the shards hold %d rows: the copy of the second source was not stopped in its middle", partly)
	}
	change := func(n int) {
		for _, db := range r.sources {
			db.Exec(t, fmt.Sprintf(`insert into events select * from events where id %% 500 = %[1]d; update events set kind = 'changed' where id %% 300 = %[1]d;
				delete from events where id %% 700 = %[1]d`, n))
		}
	}
	change(1)
	s.run(func() { change(2) })
	r.compare()
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

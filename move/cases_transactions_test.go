package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestCase11SavepointsEmptyTransactionsAndOthersMessages(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant bigint, v text); create table other_things (a int); insert into notes select g, g % 7, 'v' from generate_series(1, 50) g`)
	s.config.Exclude = []string{"public.other_things"}
	s.run(s.steps(
		`begin; commit`, `begin; select txid_current(); commit`, `begin; insert into notes values (900, 1, 'x'); rollback`, `begin; insert into other_things values (1); commit`,
		// 10,000 subtransactions, a third of them rolled back, some within others
		`do $$ begin for i in 1000..10999 loop begin insert into notes values (i, i % 7, 's'); update notes set v = v || i, tenant = tenant + i % 2 where id = i;
			begin delete from notes where id = i - 1 and i % 5 = 0; if i % 4 = 0 then raise exception 'inner'; end if; exception when raise_exception then null; end;
			if i % 3 = 0 then raise exception 'no'; end if; exception when raise_exception then null; end; end loop; end $$`,
		`begin; savepoint a; insert into notes values (901, 1, 'kept'); savepoint b; delete from notes; rollback to b; update notes set tenant = 5 where id = 901; release a; savepoint c; truncate notes; rollback to c; commit`,
		`begin; savepoint a; savepoint b; update notes set v = 'no' where id < 9; rollback to a; commit`,
		`select pg_logical_emit_message(true, 'somebody', 'else'), pg_logical_emit_message(false, 'somebody', repeat('x', 100000))`,
		`begin; insert into notes values (902, 2, 'with a message'); select pg_logical_emit_message(true, 'pgreshard', 'not of this worker'); select pg_logical_emit_message(false, '', ''); update notes set v = 'after it' where id = 902; commit`,
		`begin; select pg_logical_emit_message(false, 'from a rollback', 'x'); insert into notes values (903, 3, 'never'); rollback`))
	s.same("notes", "id")
	s.onItsShard("notes", "tenant", "bigint")
}

// A hundred thousand of them under `make memory`.
func TestCase11ManySavepoints(t *testing.T) {
	t.Parallel()
	many := 20_000
	if largeToo() {
		many = 100_000
	}
	s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant bigint, v text); insert into notes select g, g % 7, 'v' from generate_series(1, 50000) g`)
	s.run(s.steps(fmt.Sprintf(`do $$ begin for i in 1..%d loop begin
			if i %% 2 = 0 then insert into notes values (50000 + i, i %% 7, 's'); else update notes set tenant = tenant + (i %% 41 = 0)::int, v = 's' || i where id = i / 2; end if;
			if i %% 3 = 0 then raise exception 'no'; end if; exception when raise_exception then null; end; end loop; end $$`, many)))
	s.same("notes", "id")
	s.onItsShard("notes", "tenant", "bigint")
}

// One transaction is prepared before the slot is made and committed while it waits, one is prepared and committed while
// it streams, one is rolled back, and pairs commit back to back around the slot's consistent point.
func TestCase11PreparedTransactionsAndCommitsAroundTheSlot(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant bigint, v text); insert into notes select g, g % 7, 'v' from generate_series(1, 50) g;
		create table counts (id serial primary key, tenant bigint, of int)`)
	db := s.sources[0].Name
	conn := s.sources[0].Conn(t)
	runOn(t, conn, fmt.Sprintf(`begin; insert into notes values (100, 1, 'before'); update notes set v = 'prepared', tenant = tenant + 1 where id < 10; delete from notes where id = 20; prepare transaction '%s first'`, db))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	pairs := make(chan error, 1)
	one, two := s.sources[0].Conn(t), s.sources[0].Conn(t)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := one.Exec(ctx, `insert into counts (tenant, of) values ($1, 1)`, i%7)
			if err == nil {
				_, err = two.Exec(ctx, `insert into counts (tenant, of) values ($1, 2)`, i%7)
			}
			if err != nil && ctx.Err() == nil && !strings.Contains(err.Error(), "pgreshard: ") {
				pairs <- err
				return
			}
		}
		pairs <- nil
	}()
	ended := make(chan error, 1)
	go func() {
		ended <- s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			for _, step := range []string{
				`begin; insert into notes values (101, 2, 'streamed'); update notes set tenant = 3 where id = 30; prepare transaction '%s second'`,
				`begin; insert into notes values (102, 2, 'never'); update notes set v = 'never' where id = 31; prepare transaction '%s third'`,
				`update notes set v = 'meanwhile' where id = 32`, `commit prepared '%s second'`, `rollback prepared '%s third'`, `update notes set v = v || '!' where id in (30, 31, 101)`} {
				runOn(t, conn, strings.ReplaceAll(step, "%s", db))
			}
			return true, nil
		}})
	}()
	slot := `select 1 from pg_replication_slots where database = current_database() and confirmed_flush_lsn is null`
	for len(s.sources[0].Query(t, slot)) == 0 { // it waits for the prepared transaction
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	runOn(t, conn, fmt.Sprintf(`commit prepared '%s first'`, db))
	err := <-ended
	stop()
	if err := errors.Join(err, <-pairs); err != nil {
		t.Fatal(err)
	}
	s.same("notes", "id")
	s.same("counts", "id")
	s.onItsShard("notes", "tenant", "bigint")
}

func TestCase12TruncateInAllItsForms(t *testing.T) {
	t.Parallel()
	const tables = `create table a (id int primary key, tenant bigint, v text); create table b (id serial primary key, tenant bigint, v text); create table c (id int, tenant bigint, v text); alter table c replica identity full;
		create table parent (id int primary key, tenant bigint); create table child (id int primary key, tenant bigint, parent int references parent); create table everywhere (id int primary key, v text);
		create table parts (id int, tenant bigint, v text, primary key (id)) partition by range (id);
		create table parts_0 partition of parts for values from (0) to (100); create table parts_1 (v text, tenant bigint, id int not null); alter table parts attach partition parts_1 for values from (100) to (200);`
	const fill = `insert into a select g, g % 7, 'a' from generate_series(1, 30) g; insert into b (tenant, v) select g % 7, 'b' from generate_series(1, 30) g; insert into c select g, g % 7, 'c' from generate_series(1, 30) g;
		insert into parent select g, g % 7 from generate_series(1, 30) g; insert into child select g, g % 7, g from generate_series(1, 30) g; insert into everywhere select g, 'e' from generate_series(1, 9) g; insert into parts select g, g % 7, 'p' from generate_series(50, 150) g;`
	all := []string{"a", "b", "c", "parent", "child", "parts"}
	for name, list := range map[string][]string{
		"one":                    {`truncate a`, `insert into a values (1, 1, 'new')`},
		"several":                {`truncate a, b, c, everywhere`, `insert into a values (1, 1, 'new')`, `insert into c values (1, 1, 'new')`, `insert into b (tenant, v) values (1, 'new')`, `insert into everywhere values (1, 'new')`},
		"cascade":                {`truncate parent cascade`, `insert into parent values (1, 4); insert into child values (1, 4, 1), (2, 4, null)`},
		"restart identity":       {`truncate b restart identity`, `insert into b (tenant, v) select g, 'new' from generate_series(1, 3) g`},
		"a partition":            {`truncate parts_0`, `insert into parts values (55, 1, 'new')`, `truncate only parts_1; insert into parts values (155, 2, 'new')`},
		"a partitioned table":    {`truncate parts, a`, `insert into parts values (55, 1, 'new'), (155, 2, 'new'); insert into a values (5, 5, 'new')`},
		"among inserts":          {`begin; insert into a values (100, 1, 'lost'); update b set tenant = tenant + 1; truncate a, b; insert into a values (100, 2, 'kept'), (101, 3, 'kept'); insert into c values (100, 2, 'kept'); insert into b (tenant, v) values (1, 'kept'); update a set tenant = 5 where id = 100; truncate parts_1; insert into parts values (150, 6, 'kept'); commit`},
		"twice, and rolled back": {`begin; truncate a; insert into a values (1, 1, 'lost'); truncate a; insert into a values (1, 2, 'kept'); savepoint s; truncate b, c; rollback to s; commit`, `begin; truncate c; rollback`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "tenant", tables+fill)
			s.omni("everywhere")
			s.run(s.steps(list...))
			s.sameRows(pgtest.RowsOptions{}, all...)
			s.sameRows(pgtest.RowsOptions{Omni: true}, "everywhere")
			var next []string
			for _, db := range s.shards { // beyond what is there, whatever the source's sequence was set back to
				next = append(next, db.Query(t, `insert into b (tenant, v) values (1, 'x') returning id`)[0][0])
			}
			if next[0] == next[1] {
				t.Errorf("both shards hand out %s", next[0])
			}
		})
	}
}

// A table renamed, or dropped and made again under its name, is another table: the stream stops and says so.
func TestCase13ATableRenamedOrMadeAgainStops(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ddl, says string }{
		"renamed":    {`insert into notes values (100, 1, 'before'); alter table notes rename to papers; insert into papers values (101, 1, 'after')`, "notes"},
		"made again": {`drop table notes; create table notes (id int primary key, tenant bigint, v text); insert into notes values (1, 1, 'new')`, "notes"},
		"a type":     {`insert into notes values (100, 1, 'before'); alter table notes alter id type bigint; insert into notes values (5000000000, 1, 'after')`, `column "id" was integer and is bigint`},
	} {
		for _, mode := range []string{move.DDLStop, move.DDLIgnore} {
			if name == "a type" && mode == move.DDLIgnore {
				continue // types are what ignore ignores, until a value does not fit
			}
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant bigint, v text); insert into notes select g, g % 7, 'v' from generate_series(1, 20) g`)
				s.config.OnDDL = mode
				err := stopsAtDDL(t, s.rig, c.ddl)
				if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "hint") {
					t.Fatalf("it ended with %v", err)
				}
				t.Log(err)
			})
		}
	}
}

func TestCase14PartitionTreesIntoEveryKindOfDestination(t *testing.T) {
	t.Parallel()
	const tree = `create table events (id int, day int, tenant bigint, big text, primary key (id, day)) partition by range (day);
		create table events_1 partition of events for values from (0) to (10);
		create table events_2 partition of events for values from (10) to (20) partition by list (id);
		create table events_2a (big text, gone int, tenant bigint, day int not null, id int not null); alter table events_2a drop gone; alter table events_2 attach partition events_2a for values in (1, 2, 3);
		create table events_2b partition of events_2 default; create table events_x partition of events default;`
	const rows = `insert into events select g, g % 40, g % 7, repeat('b' || g, 1200) from generate_series(1, 120) g;
		insert into events values (1, 15, 1, 'x'), (2, 16, 2, 'y'), (3, 17, 3, null);`
	list := []string{`insert into events select g, g % 40, g % 7, 'n' from generate_series(200, 260) g; insert into events values (1, 12, 1, 'x'), (2, 12, 2, 'y')`,
		`update events set big = big || 'x' where id % 3 = 0; update events set tenant = tenant + 1 where id % 2 = 0`, `update events set day = day + 10 where id % 4 = 0`,
		`begin; update events set day = 5 where id = 53; update events set day = 30 where id = 53; update events set tenant = 9 where id = 53; commit`,
		`update events set day = 11, id = 3, tenant = 5 where id = 7`, `delete from events where id % 10 = 5`, `truncate events_2a`, `insert into events values (3, 13, 4, 'again')`,
		`begin; insert into events values (1000, 3, 1, 'kept?'); truncate events_1; insert into events values (1001, 3, 1, 'kept'); commit`}
	for name, there := range map[string]string{
		"made by the move": "", "the same": tree, "not partitioned": `create table events (id int, day int, tenant bigint, big text, primary key (id, day))`,
		"partitioned otherwise": `create table events (big text, tenant bigint, day int, id int, primary key (id, day)) partition by hash (id);
			create table events_h0 partition of events for values with (modulus 2, remainder 0); create table events_h1 partition of events for values with (modulus 2, remainder 1)`,
	} {
		for _, identity := range []string{"default", "full"} {
			t.Run(name+", identity "+identity, func(t *testing.T) {
				t.Parallel()
				source := pgtest.Shared(t).Database(t)
				schema := tree
				if identity == "full" {
					schema += strings.Join(stepsOf([]string{"events", "events_1", "events_2", "events_2a", "events_2b", "events_x"}, `alter table %T replica identity full`), ";") + ";"
				}
				source.Exec(t, schema+rows)
				s := smallMoveOf(t, source, emptyShards(t, 2, there), "tenant")
				s.config.CreateSchema = there == ""
				s.run(s.steps(list...))
				s.sameRows(pgtest.RowsOptions{}, "events")
				s.onItsShard("events", "tenant", "bigint")
			})
		}
	}
}

// The other way round: a plain table goes into a partitioned one.
func TestCase14APlainTableIntoAPartitionedOne(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table events (id int, day int, tenant bigint, v text, primary key (id, day)); insert into events select g, g % 20, g % 7, 'v' from generate_series(1, 90) g`)
	s := smallMoveOf(t, source, emptyShards(t, 2, `create table events (v text, id int, day int, tenant bigint, primary key (id, day)) partition by range (day);
		create table events_1 partition of events for values from (0) to (10); create table events_2 partition of events default`), "tenant")
	s.config.CreateSchema = false
	s.run(s.steps(`insert into events values (500, 5, 1, 'n'), (501, 15, 2, 'n')`, `update events set day = day + 10 where id % 3 = 0; update events set tenant = tenant + 1, v = 'u' where id % 4 = 0`, `delete from events where id % 9 = 0`))
	s.sameRows(pgtest.RowsOptions{}, "events")
	s.onItsShard("events", "tenant", "bigint")
}

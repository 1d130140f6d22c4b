package move_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

const ddlSchema = `create type mood as enum ('sad', 'happy');
	create table notes (id int primary key, tenant bigint, note varchar(10) not null, feels mood, gone text not null, big text, n numeric(5,2) default 1);
	alter table notes alter big set storage external;
	insert into notes select g, g % 7, 'n' || g, 'sad', 'x', repeat('b' || g, 1000), g from generate_series(1, 200) g;
	create table parts (id int, tenant bigint, note text, primary key (id)) partition by range (id);
	create table parts_0 partition of parts for values from (0) to (100);
	create table parts_1 (note text, tenant bigint, id int not null); alter table parts attach partition parts_1 for values from (100) to (1000);
	insert into parts select g, g % 7, 'p' from generate_series(1, 200) g;`

// ddlSteps are changes of the source's tables, and writes in their new shape at once: the stream meets those before
// anybody looks at the catalog.
var ddlSteps = []string{
	`alter table notes add plain int; update notes set plain = id where id % 3 = 0`,
	`alter table notes add filled text default 'it''s 7' not null; insert into notes (id, tenant, note, gone) values (300, 3, 'a', 'x'); update notes set filled = 'x' where id = 5`,
	`alter table notes alter filled set default 'other'; insert into notes (id, tenant, note, gone) values (301, 4, 'b', 'x')`,
	`alter table notes alter note type varchar(20); update notes set note = repeat('y', 20) where id = 7`,
	`alter table notes alter note type text, alter n type numeric(12,2); update notes set note = repeat('z', 40), n = 1234567.89 where id = 8`,
	`alter table notes alter note drop not null; update notes set note = null where id = 9`,
	`alter table notes drop gone; insert into notes (id, tenant, note) values (302, 5, 'c'); delete from notes where id = 10; update notes set tenant = 6 where id = 11`,
	`alter table notes rename note to words; update notes set words = 'renamed' where id = 12; insert into notes (id, tenant, words) values (303, 6, 'd'); update notes set tenant = tenant + 1 where id = 13`,
	`alter type mood add value 'calm' before 'happy'; alter type mood add value 'wild'`,
	`update notes set feels = 'calm' where id = 14; update notes set feels = 'wild' where id = 15`,
	`alter table notes add brief int default 5; update notes set brief = 6 where id = 16; alter table notes drop brief; update notes set plain = 1 where id = 17`,
	`update notes set plain = 0 where plain is null; alter table notes alter plain set not null; insert into notes (id, tenant, plain) values (304, 1, 2)`,
	`alter table parts add more int default 3; update parts set more = id where id % 2 = 0; insert into parts values (250, 1, 'q', 9); delete from parts where id = 99; update parts set id = 99 where id = 199`,
	`alter table parts rename note to words; alter table parts drop more; insert into parts values (251, 2, 'r'); update parts set tenant = 3 where id = 251`,
}

// underDDL is a move that streams while steps are run on the source, one after another and among other writes; seen
// says that each step is to be noticed by itself, interruptions how often the worker ends before.
func underDDL(t *testing.T, mode string, seen bool, interruptions int, steps ...string) (*smallMove, error) {
	s := newSmallMove(t, 2, "tenant", ddlSchema)
	s.config.OnDDL = mode
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var done, last atomic.Bool
	streaming := make(chan struct{}, 100)
	var writers errgroup.Group
	conn, other := s.sources[0].Conn(t), s.sources[0].Conn(t)
	writers.Go(func() error {
		select {
		case <-streaming:
		case <-ctx.Done():
			return nil
		}
		for i, step := range steps {
			for _, one := range strings.Split(step, "; ") { // each its own transaction
				if _, err := conn.Exec(ctx, one); err != nil {
					cancel()
					return fmt.Errorf("%s: %w", one, err)
				}
			}
			if seen {
				time.Sleep(3500 * time.Millisecond) // the catalog is looked at every three seconds
			} else {
				time.Sleep(time.Duration(i%3+4*min(interruptions, 1)) * 50 * time.Millisecond)
			}
		}
		done.Store(true)
		return nil
	})
	writers.Go(func() error { // writes that any shape takes
		for i := 0; !done.Load() && ctx.Err() == nil; i++ {
			_, err := other.Exec(ctx, `update notes set big = $1 where id = $2`, strings.Repeat(fmt.Sprint(i), 700), i%200+1)
			if err == nil {
				_, err = other.Exec(ctx, `update notes set tenant = tenant + 1 where id = $1`, i%190+1)
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
	ready := move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		streaming <- struct{}{}
		for !(done.Load() && last.Load()) && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		return ctx.Err() == nil, ctx.Err()
	}}
	for range interruptions {
		some, stop := context.WithTimeout(ctx, time.Duration(rand.IntN(1500)+300)*time.Millisecond)
		err := s.move().Migrate(some, ready)
		stop()
		if some.Err() == nil {
			t.Error(err)
		}
	}
	last.Store(true)
	err := s.move().Migrate(ctx, ready)
	cancel()
	var row *sink.DivergedError
	if errors.As(err, &row) {
		t.Logf("key %s", row.Key)
	}
	return s, errors.Join(writers.Wait(), err)
}

// catalogOf is what both sides must have alike in the end.
const catalogOf = `select a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated, coalesce(pg_get_expr(d.adbin, d.adrelid), '')
	from pg_attribute a left join pg_attrdef d on (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
	where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped order by 1`

func TestDDLIsCarriedToEveryShardAtItsPosition(t *testing.T) {
	t.Parallel()
	s, err := underDDL(t, move.DDLExec, false, 0, ddlSteps...)
	if err != nil {
		t.Fatal(err)
	}
	labels := `select array_agg(enumlabel order by enumsortorder) from pg_enum where enumtypid = 'mood'::regtype`
	for _, table := range []string{"notes", "parts"} {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
		for n, db := range s.shards {
			if want, got := s.sources[0].Query(t, catalogOf, table), db.Query(t, catalogOf, table); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("shard %d, %s: %v, want %v", n, table, got, want)
			}
			if want, got := s.sources[0].Query(t, labels), db.Query(t, labels); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("shard %d: %v, want %v", n, got, want)
			}
		}
	}
}

var partitionSteps = []string{
	`create table parts_2 partition of parts for values from (1000) to (2000); insert into parts select g, g % 7, 'new' from generate_series(1000, 1050) g; delete from parts where id = 1003`,
	`create table parts_3 (like parts including all); insert into parts_3 select g, g % 7, 'attached' from generate_series(2500, 2550) g`,
	`alter table parts attach partition parts_3 for values from (2000) to (3000); update parts set note = 'moved', id = id + 1000 where id between 1005 and 1010; update parts set tenant = tenant + 1 where id = 2501`,
	`update parts set id = id - 1800 where id between 2540 and 2545; update parts set tenant = tenant + 3 where id in (141, 150)`,
	`alter table parts detach partition parts_0; update parts_0 set note = 'not of it any more' where id = 5; insert into parts_0 values (0, 0, 'x')`,
	`truncate parts_1; insert into parts values (111, 1, 'again')`,
	`drop table parts_2; insert into parts values (2999, 1, 'last')`,
	`create table parts_4 partition of parts for values from (0) to (100); insert into parts values (7, 1, 'in the place of another')`,
}

func TestPartitionsThatComeAndGoWhileStreaming(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]string{
		"in one go":         partitionSteps,
		"one after another": {partitionSteps[0], partitionSteps[1] + "; " + partitionSteps[2], partitionSteps[3], partitionSteps[4], partitionSteps[6]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			partitionsUnderDDL(t, name != "in one go", 0, steps...)
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		partitionsUnderDDL(t, false, 5, append(slices.Clone(partitionSteps), ddlSteps[:12]...)...)
	})
}

func partitionsUnderDDL(t *testing.T, seen bool, interruptions int, steps ...string) {
	s, err := underDDL(t, move.DDLExec, seen, interruptions, steps...)
	if err != nil {
		t.Fatal(err)
	}
	s.same("parts", "id")
	s.same("notes", "id")
	s.onItsShard("parts", "tenant", "bigint")
	tree := `select relid::text, pg_get_expr(c.relpartbound, c.oid) from pg_partition_tree('parts') join pg_class c on c.oid = relid order by 1`
	for n, db := range s.shards {
		if want, got := s.sources[0].Query(t, tree), db.Query(t, tree); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("shard %d: %v, want %v", n, got, want)
		}
	}
}

// Of several sources each changes its partitions in its own time; what a source had in one goes with it there, and what
// another has in it stays until it is gone everywhere.
func TestPartitionsOfSeveralSourcesThatComeAndGo(t *testing.T) {
	t.Parallel()
	for name, atOnce := range map[string]int{"one source after the other": 1, "all sources at once": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			partitionsOfTwoSources(t, atOnce)
		})
	}
}

func partitionsOfTwoSources(t *testing.T, atOnce int) {
	s, tenants := twoSources(t, 2, `create table parts (id int, tenant bigint, note text, primary key (tenant, id)) partition by range (id);
		create table parts_0 partition of parts for values from (0) to (100); create table parts_1 partition of parts for values from (100) to (200);
		create table countries (code text, name text, primary key (code)) partition by list (code); create table countries_a partition of countries for values in ('at', 'au');
		insert into countries values ('at', 'Austria')`)
	s.config.OnDDL = move.DDLExec
	for _, side := range []*move.Side{&s.config.Source, &s.config.Destination} {
		side.Spec.Omni = []layout.OmniTables{{Database: side.Database, Tables: []string{"countries"}}}
	}
	rows := func(source, from, to int) string {
		var all []string
		for _, list := range tenants[source] {
			for _, tenant := range list {
				all = append(all, strconv.Itoa(tenant))
			}
		}
		return fmt.Sprintf(`insert into parts select g, t, 's%d' from generate_series(%d, %d) g, unnest('{%s}'::bigint[]) t`, source, from, to, strings.Join(all, ","))
	}
	steps := func(source int) []string {
		return strings.Split(strings.Join([]string{
			`create table parts_2 partition of parts for values from (200) to (300); ` + rows(source, 200, 220) + `; update parts set id = id + 130 where id between 110 and 115; delete from parts where id = 205`,
			`create table parts_3 (like parts including all)`, strings.Replace(rows(source, 300, 330), "parts", "parts_3", 1),
			`alter table parts attach partition parts_3 for values from (300) to (400); update parts set note = 'late' where id between 305 and 310; update parts set id = id - 180 where id = 320`,
			`alter table parts detach partition parts_0; update parts_0 set note = 'not of it any more'`,
			`drop table parts_1; create table parts_4 partition of parts for values from (0) to (200); ` + rows(source, 50, 60),
			`create table countries_b partition of countries for values in ('be', 'br'); insert into countries values ('be', 'Belgium')`,
		}, "; "), "; ")
	}
	for source, db := range s.sources {
		db.Exec(t, rows(source, 1, 20))
		db.Exec(t, rows(source, 100, 130))
	}
	var once sync.Once
	changed := make(chan struct{})
	var changing errgroup.Group
	change := func() error {
		defer close(changed)
		var sources errgroup.Group
		sources.SetLimit(atOnce)
		for source, db := range s.sources {
			conn := db.Conn(t)
			sources.Go(func() error {
				for _, step := range steps(source) {
					if _, err := conn.Exec(t.Context(), step); err != nil {
						return fmt.Errorf("%s: %w", step, err)
					}
				}
				return nil
			})
		}
		return sources.Wait()
	}
	err := s.move().Migrate(t.Context(), move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		once.Do(func() { changing.Go(change) })
		select {
		case <-changed:
			return true, nil
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}})
	if err := errors.Join(changing.Wait(), err); err != nil {
		t.Fatal(err)
	}
	s.sameRows(pgtest.RowsOptions{}, "parts")
	s.onItsShard("parts", "tenant", "bigint")
	tree := `select relid::text, pg_get_expr(c.relpartbound, c.oid) from pg_partition_tree('parts') join pg_class c on c.oid = relid order by 1`
	countries := `select tableoid::regclass::text, * from countries order by 2`
	for n, db := range s.shards {
		for _, q := range []string{tree, countries} {
			if want, got := s.sources[0].Query(t, q), db.Query(t, q); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("shard %d: %v, want %v", n, got, want)
			}
		}
	}
}

// What rewrites rows is not in the log, and what takes another column's name cannot be told apart in it.
func TestDDLThatCannotBeCarriedExactlyStopsWithItsReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ step, says string }{
		"a volatile default":      {`alter table notes add stamp timestamptz default clock_timestamp()`, "the values its rows got are not in the log"},
		"a column of values":      {`alter table notes add twice int generated always as (id * 2) stored`, "its values are computed"},
		"a type of other values":  {`alter table notes alter note type int using length(note)`, "its new values are not in the log"},
		"values of one type":      {`alter table notes alter note type varchar(10) using upper(note)`, "its new values are not in the log"},
		"a name used again":       {`alter table notes drop gone; alter table notes rename note to gone`, "the name was another column's before"},
		"a label renamed":         {`alter type mood rename value 'sad' to 'blue'`, `label "sad" was renamed`},
		"a serial added":          {`alter table notes add s serial`, "not in the log"},
		"a replica identity lost": {`alter table notes replica identity nothing`, "the replica identity of public.notes was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := underDDL(t, move.DDLExec, false, 0, c.step, `select pg_sleep(20)`)
			var stopped *move.DDLError
			if !errors.As(err, &stopped) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "cancel --drop-data") {
				t.Errorf("got %v, want a DDLError that says %s", err, c.says)
			}
		})
	}
}

func TestDDLThatIsIgnoredLeavesTheShardsAsTheyAre(t *testing.T) {
	t.Parallel()
	s, err := underDDL(t, move.DDLIgnore, false, 0,
		`alter table notes alter n set default 2; alter table notes alter gone drop not null`,
		`alter table parts drop note; insert into parts values (250, 1); update parts set tenant = 5 where id = 3`)
	if err != nil {
		t.Fatal(err)
	}
	s.same("notes", "id")
	for n, db := range s.shards {
		if got := db.Query(t, `select count(*) from pg_attribute where attrelid = 'parts'::regclass and attname = 'note' and not attisdropped`); got[0][0] != "1" {
			t.Errorf("shard %d has lost the column", n)
		}
	}
	count := func(q string) string { return s.shards[0].Query(t, q)[0][0] + "+" + s.shards[1].Query(t, q)[0][0] }
	want := s.sources[0].Query(t, `select count(*) from parts`)[0][0]
	var total, part int
	if _, err := fmt.Sscanf(count(`select count(*) from parts`), "%d+%d", &total, &part); err != nil || fmt.Sprint(total+part) != want {
		t.Errorf("%d and %d rows of %s, %v", total, part, want, err)
	}
	_, err = underDDL(t, move.DDLIgnore, false, 0, `alter table notes add plain int; update notes set plain = id`, `select pg_sleep(20)`)
	var stopped *move.DDLError
	if !errors.As(err, &stopped) || !strings.Contains(err.Error(), `run on every destination shard`) || !strings.Contains(err.Error(), `add column "plain" integer`) {
		t.Errorf("a column the destination lacks: %v", err)
	}
}

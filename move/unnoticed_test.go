package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

const behindSchema = `create table items (id int primary key, tenant bigint, note text); insert into items select g, g % 7, 'n' from generate_series(1, 100) g;
	create table others (id int primary key, tenant bigint)`

// interrupt streams and, once level, runs what happens behind the move's back; with cutover it goes on to cut over, else
// it waits for the move to notice.
func (s *smallMove) interrupt(cutover bool, happens func()) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	return s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		happens()
		return cutover, nil
	}})
}

func TestAPublicationChangedBySomebodyElseEndsTheMove(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql, says string
		version   int
	}{
		"a table out":         {`alter publication %s drop table items`, "table public.items was taken out of it", 14},
		"a table out and in":  {`alter publication %s drop table items; alter publication %[1]s add table only items`, "table public.items was taken out of it and put back", 14},
		"some operations":     {`alter publication %s set (publish = 'insert')`, "its options were changed", 14},
		"a row filter":        {`alter publication %s set table items where (id < 1000), others`, "a row filter or column list was changed", 15},
		"dropped and made":    {`drop publication %s; create publication %[1]s for table only items, only others`, "it was dropped and made again", 14},
		"a table more, first": {`create table more (id int); alter publication %s add table more; alter publication %[1]s drop table others`, "table public.others was taken out of it", 14},
	} {
		for _, cutover := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cutover %v", name, cutover), func(t *testing.T) {
				t.Parallel()
				pgtest.OneIn(t, 3)
				if pgtest.Shared(t).Version < c.version {
					t.Skip("not in this version")
				}
				s := newSmallMove(t, 2, "tenant", behindSchema)
				s.config.MustVerify, s.config.Exclude = false, []string{"more"}
				publication := "pgreshard_" + s.config.Name + "_0"
				err := s.interrupt(cutover, func() {
					runOn(t, s.sources[0].Conn(t), fmt.Sprintf(c.sql, publication))
					s.sources[0].Exec(t, `insert into items values (1001, 1, 'lost')`)
				})
				for range 2 { // and the next run does not begin
					var changed *move.PublicationError
					if !errors.As(err, &changed) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "cancel --drop-data") {
						t.Fatalf("got %v, want a PublicationError that says %s", err, c.says)
					}
					err = s.interrupt(cutover, func() { t.Error("it streams again") })
				}
			})
		}
	}
}

func TestObjectsThatOneSideHasAloneAreNamedBeforeAnythingIsRefused(t *testing.T) {
	t.Parallel()
	const schema = behindSchema + `;
		create function f() returns trigger language plpgsql as 'begin return new; end';
		create trigger stays before insert on items for each row execute function f();
		create trigger goes before insert on items for each row execute function f();
		create trigger is_renamed before insert on items for each row execute function f();
		create index old_index on items (note); create unique index not_wanted on items (id, note);
		create policy of_others on items using (exists (select from others));
		create table parts (id int, tenant bigint, primary key (id)) partition by range (id);
		create table parts_0 partition of parts for values from (0) to (100); create table parts_1 (tenant bigint, id int not null, constraint own check (id >= 100));
		alter table parts attach partition parts_1 for values from (100) to (200); create index on parts (tenant);
		create trigger on_parts after insert on parts for each row execute function f();
		create table older (id int primary key, tenant bigint, constraint positive check (id > 0)); create table younger (primary key (id)) inherits (older)`
	s := newSmallMove(t, 2, "tenant", schema)
	s.config.Exclude = []string{"others"} // and so the policy is left out
	s.config.SkipConstraint = []string{"unique:not_wanted"}
	changes := []string{
		`create index new_index on items (tenant)`, `drop index old_index`,
		`alter table items add constraint new_unique unique (id, tenant)`, `alter table items add constraint new_check check (id > 0)`,
		`alter table items add constraint new_exclusion exclude using btree (id with =)`,
		`create trigger new_trigger before update on items for each row execute function f()`, `drop trigger goes on items`,
		`alter trigger is_renamed on items rename to renamed`,
		`alter table items enable row level security`, `create policy new_policy on items using (true)`,
		`create index new_on_parts on parts (id, tenant)`, `create index new_on_one on parts_1 (tenant, id)`,
	}
	err := s.interrupt(true, func() {
		for _, change := range changes {
			s.sources[0].Exec(t, change)
		}
	})
	var differ *move.ObjectsError
	if !errors.As(err, &differ) {
		t.Fatalf("got %v, want an ObjectsError", err)
	}
	want := []string{
		"check constraint new_check of public.items is missing on shards 0, 1",
		"exclusion constraint new_exclusion of public.items is missing on shards 0, 1",
		"index new_index of public.items is missing on shards 0, 1",
		"index new_on_one of public.parts_1 is missing on shards 0, 1",
		"index new_on_parts of public.parts is missing on shards 0, 1",
		"index old_index of public.items is not on the source, and is on shards 0, 1",
		"policy new_policy of public.items is missing on shards 0, 1",
		"row security of public.items is missing on shards 0, 1",
		"trigger goes of public.items is not on the source, and is on shards 0, 1",
		"trigger is_renamed of public.items is not on the source, and is on shards 0, 1",
		"trigger new_trigger of public.items is missing on shards 0, 1",
		"trigger renamed of public.items is missing on shards 0, 1",
		"unique constraint new_unique of public.items is missing on shards 0, 1",
	}
	if !slices.Equal(differ.Differences, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(differ.Differences, "\n"), strings.Join(want, "\n"))
	}
	if slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(err.Error(), w) }) || !strings.Contains(err.Error(), "hint: ") {
		t.Error(err)
	}
	s.sources[0].Exec(t, `insert into items values (1001, 1, 'nothing is refused')`)
	for _, change := range changes { // on the first shard alone
		s.shards[0].Exec(t, change)
	}
	err = s.interrupt(true, func() {})
	if !errors.As(err, &differ) || len(differ.Differences) != len(want) || strings.Contains(err.Error(), "0, 1") || !strings.Contains(differ.Differences[0], "on shard 1") {
		t.Errorf("with the first shard alike: %v", err)
	}
	for _, change := range changes {
		s.shards[1].Exec(t, change)
	}
	if err := s.interrupt(true, func() {}); err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

func TestASubscriptionThatWritesAMovedTableIsRefused(t *testing.T) {
	t.Parallel()
	publisher := pgtest.Shared(t).Database(t)
	publisher.Exec(t, `create table items (id int primary key, tenant bigint, note text); create publication feed for table items`)
	s := newSmallMove(t, 2, "tenant", behindSchema)
	source := s.sources[0]
	slot := "feed_" + s.config.Name
	publisher.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	source.Exec(t, fmt.Sprintf(`create subscription %[2]s connection '%[1]s' publication feed with (create_slot = false, slot_name = %[2]s, copy_data = false)`, publisher.URL(), slot))
	defer func() { // or its database could not be dropped
		source.Exec(t, `alter subscription `+slot+` disable`)
		source.Exec(t, `alter subscription `+slot+` set (slot_name = none)`)
		source.Exec(t, `drop subscription `+slot)
	}()
	const says = " writes public.items, and the fence does not stop it"
	var blocked *move.PlanError
	if err := s.interrupt(true, func() {}); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "subscription "+slot+says) {
		t.Errorf("a plan with a subscription: %v", err)
	}
	source.Exec(t, `alter subscription `+slot+` disable`)
	err := s.interrupt(true, func() {
		source.Exec(t, `alter subscription `+slot+` enable`)
		publisher.Exec(t, `insert into items values (500, 5, 'by subscription')`)
		for source.Query(t, `select count(*) from items where id = 500`)[0][0] == "0" {
			time.Sleep(10 * time.Millisecond)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "subscription "+slot+says) || !strings.Contains(err.Error(), "disable") {
		t.Errorf("a cutover with a subscription: %v", err)
	}
	source.Exec(t, `alter subscription `+slot+` disable`)
	if err := s.interrupt(true, func() {}); err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
}

func TestAPlanNamesWhatWouldGoWrongBehindIt(t *testing.T) {
	t.Parallel()
	problems := func(s *smallMove) string {
		plan, err := s.move().Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, p := range plan.Problems {
			all = append(all, p.String())
		}
		return strings.Join(all, "\n")
	}
	const rules = `create table items (id int primary key, tenant bigint); create rule harmless as on update to items do also select 1;
		create rule rewrites as on insert to items where id > 5 do instead nothing; alter table items enable always rule rewrites;
		create rule in_replicas as on delete to items do also select 1; alter table items enable replica rule in_replicas`
	s := newSmallMove(t, 2, "tenant", rules+`; create table parts (id int, tenant bigint, primary key (id)) partition by range (id);
		create table parts_0 partition of parts for values from (0) to (100); create unlogged table parts_1 partition of parts for values from (100) to (200)`)
	got := problems(s)
	for _, want := range []string{"rule rewrites is enabled always", "rule in_replicas is enabled replica", "public.parts_1: it is an unlogged partition", `alter table "public"."parts_1" set logged`} {
		if !strings.Contains(got, want) {
			t.Errorf("the plan does not say %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, "harmless") {
		t.Errorf("the plan says:\n%s", got)
	}

	s = newSmallMove(t, 2, "tenant", rules)
	s.shards[0].Exec(t, `create table items (id int primary key, tenant bigint)`)
	s.shards[1].Exec(t, rules)
	s.config.CreateSchema = false
	if got := problems(s); !strings.Contains(got, "rule rewrites is enabled always") {
		t.Errorf("the plan says:\n%s", got)
	}
	s.sources[0].Exec(t, `alter table items enable rule rewrites; alter table items enable rule in_replicas`)
	s.shards[1].Exec(t, `alter table items enable rule rewrites; alter table items enable rule in_replicas`)
	if got := problems(s); got != "" {
		t.Errorf("the plan says:\n%s", got)
	}

	source := encoded(t, pgtest.Shared(t), "SQL_ASCII")
	source.Exec(t, `create table items (id int primary key, tenant bigint, note text)`)
	s = smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t)}, "tenant")
	if got := problems(s); !strings.Contains(got, "its encoding is SQL_ASCII") {
		t.Errorf("the plan says:\n%s", got)
	}
}

// own is a table's own rows.
func (s *smallMove) own(table string, dbs ...*pgtest.DB) (rows []string) {
	for _, db := range dbs {
		for _, row := range db.Query(s.t, fmt.Sprintf(`select r::text from only %s r`, table)) {
			rows = append(rows, row[0])
		}
	}
	slices.Sort(rows)
	return rows
}

func TestTablesThatInheritFromEachOtherKeepTheirOwnRows(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table p (id int primary key, tenant bigint, note text);
		create table ch (more int, primary key (id)) inherits (p); create table grand (primary key (id)) inherits (ch);
		create table bare (tenant bigint, note text); alter table bare replica identity full; create table bare_ch () inherits (bare); alter table bare_ch replica identity full;
		insert into p select g, g % 7, 'p' from generate_series(1, 60) g; insert into ch select g, g % 5, 'c', g from generate_series(1, 80) g; insert into grand select g, g % 3, 'g' from generate_series(1, 20) g;
		insert into bare select g % 4, 'b' from generate_series(1, 40) g; insert into bare_ch select g % 4, 'b' from generate_series(1, 40) g`)
	tables := []string{"p", "ch", "grand", "bare", "bare_ch"}
	s.run(func() {
		source := s.sources[0]
		for _, step := range []string{
			`update only p set note = 'own' where id < 10`, `update p set note = note || '!' where id % 2 = 0`, `update only ch set id = id + 1000 where id % 3 = 0`,
			`update only p set tenant = tenant + 1 where id % 4 = 0`, `delete from only p where id between 11 and 20`, `delete from p where id = 5`,
			`delete from only bare where ctid in (select ctid from only bare where tenant = 1 limit 3)`, `update only bare_ch set note = 'x' where tenant = 2`,
			`truncate only ch`, `insert into ch values (7, 7, 'again', 7)`, `truncate only p`, `insert into p values (7, 8, 'again'), (8, 9, 'again')`, `truncate only bare`,
		} {
			source.Exec(t, step)
		}
	})
	for _, table := range tables {
		if want, got := s.own(table, s.sources...), s.own(table, s.shards...); !slices.Equal(got, want) {
			t.Errorf("%s has %d rows, want %d:\n%.300q\n%.300q", table, len(got), len(want), got, want)
		}
	}
}

func TestAnEmptyKeyThatIsTranslatedIsPlacedAlikeByCopyAndStream(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "code", `create table codes (name text primary key, tenant bigint); create table uses (id int primary key, code text);
		insert into codes select 'k' || g, g from generate_series(1, 20) g; insert into codes values ('', 7); insert into uses select g, case when g % 3 > 0 then 'k' || g % 20 + 1 else '' end from generate_series(1, 60) g`)
	s.config.Destination.Spec = layout.Spec{
		Tables: []layout.ShardedTable{{Database: "app_sharded", Name: "uses", Columns: []string{"code"}, DataType: "bigint", LookupQuery: "SELECT tenant FROM codes WHERE name = $1"}},
		Omni:   []layout.OmniTables{{Database: "app_sharded", Tables: []string{"codes"}}}}
	s.run(func() {
		s.sources[0].Exec(t, `insert into uses values (100, ''), (101, 'k3')`)
		s.sources[0].Exec(t, `update uses set code = '' where id < 10`)
		s.sources[0].Exec(t, `delete from uses where code = '' and id > 50`)
	})
	s.same("uses", "id")
	s.onItsShard("uses", "(select tenant from codes where name = uses.code)", "bigint")
}

package move_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgreshard/move"
)

// Each of these is something a plan or an error says before, or instead of, going wrong.

func TestAPlanListsWhatIsNotMoved(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table kept (id int primary key, tenant bigint, lo oid);
		insert into kept values (1, 1, lo_from_bytea(0, 'large')); create materialized view summed as select tenant from kept;
		create foreign data wrapper nothing; create server elsewhere foreign data wrapper nothing; create foreign table far (id int, tenant bigint) server elsewhere`)
	plan, err := s.move().Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"public.summed", "public.far", "1 large object", "public.kept.lo"} {
		if !containing(plan.Notes, name) {
			t.Errorf("plan does not note %s: %q", name, plan.Notes)
		}
	}
}

func TestAPlanListsUniqueConstraintsThatDoNotHoldAcrossShards(t *testing.T) {
	t.Parallel()
	const schema = `create table users (id int primary key, tenant bigint, email text constraint one_address unique, name text, unique (tenant, name));
		create unique index one_name on users (lower(name)); create unique index covered on users (name) include (tenant);
		create table parts (id int, tenant bigint, day int not null, unique (tenant, day)) partition by list (day);
		create table parts_1 partition of parts (constraint one_id unique (id)) for values in (1);`
	s := newSmallMove(t, 2, "tenant", schema+`create table countries (id int primary key, code text unique)`)
	s.omni("countries")
	check := func(want ...string) {
		t.Helper()
		plan, err := s.move().Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, note := range plan.Notes {
			if kind, rest, ok := strings.Cut(note, " does not contain the "); ok {
				if strings.Contains(rest, `skip = ["`) == strings.HasPrefix(kind, "primary key") {
					t.Errorf("only what does not tell rows apart can be left out: %q", note)
				}
				got = append(got, kind)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("notes of %q, want %q; problems: %v", got, want, plan.Problems)
		}
	}
	uniques := []string{"unique one_id of public.parts_1", "unique covered of public.users", "unique one_address of public.users", "unique one_name of public.users"}
	check(uniques...)
	s.config.SkipConstraint = []string{"unique:one_address"}
	check(uniques[0], uniques[1], uniques[3])

	s, _ = twoSources(t, 1, schema) // what two sources have twice cannot be on one shard either
	check(append(uniques, "primary key users_pkey of public.users")...)
}

// A superuser may give a table to whom it likes; only another role needs the new owner to have CREATE.
func TestAPlanDoesNotAskASuperuserForTheOwnersRights(t *testing.T) {
	t.Parallel()
	roles(t, "cases_powerless")
	s := newSmallMove(t, 1, "id", `create table kept (id int primary key); create index on kept ((id + 1)); insert into kept values (1); alter table kept owner to cases_powerless`)
	if got := s.problems(); len(got) > 0 {
		t.Fatalf("%q", got)
	}
	s.run(s.steps(`insert into kept values (2)`))
	s.same("kept", "id")
}

func TestAPrimaryKeyThatTwoSourcesHaveIsNamedWithAWayOut(t *testing.T) {
	t.Parallel()
	s, tenants := twoSources(t, 3, `create table orders (id int primary key, tenant bigint)`)
	s.sources[0].Exec(t, `insert into orders values (1, $1)`, tenants[0][0][0])
	s.sources[1].Exec(t, `insert into orders values (1, $1)`, tenants[1][0][0])
	err := s.move().Migrate(t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) { return true, nil }})
	if err == nil || !strings.Contains(err.Error(), "hint: two sources have a row with this key") {
		t.Errorf("it ended with %v", err)
	}
}

// A key of generated columns alone cannot be written, so a row cannot be found by it.
func TestAPlanRefusesAKeyOfNothingButGeneratedColumns(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table codes (name text, tenant bigint, code text generated always as (lower(name)) stored primary key)`)
	if got := s.problems(); !containing(got, "public.codes") {
		t.Errorf("plan: %q", got)
	}
}

// A row is found by the key's other columns: they must determine the generated one.
func TestAPlanRefusesAKeyWhoseOtherColumnsDoNotTellRowsApart(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table mixed (name text, tenant bigint, code text generated always as (lower(name)) stored, primary key (tenant, code));
		create table mixed_full (like mixed including all); alter table mixed_full replica identity full;
		create table computed (id int, tenant bigint, double int generated always as (id * 2) stored, primary key (double, id));
		create table alone_full (name text, tenant bigint, code text generated always as (lower(name)) stored primary key); alter table alone_full replica identity full`)
	got := s.problems()
	if len(got) != 2 || !containing(got, "public.mixed: rows are found by tenant alone") || !containing(got, "public.mixed_full: rows are found by tenant alone") {
		t.Errorf("plan: %q", got)
	}
}

func TestAPlanRefusesAVirtualColumnUnderIdentityFull(t *testing.T) {
	t.Parallel()
	if oldestServer(t) < 18 {
		t.Skip("virtual columns are 18's")
	}
	s := newSmallMove(t, 2, "tenant", `create table notes (id int primary key, tenant bigint, v int generated always as (id * 2) virtual); alter table notes replica identity full`)
	s.sources[0].Exec(t, `create table keyless (id int, tenant bigint, v int generated always as (id * 2) virtual)`)
	s.config.SetIdentity = true // which it cannot
	got := s.problems()
	if len(got) != 2 || !containing(got, "public.notes: it has REPLICA IDENTITY FULL") || !containing(got, "public.keyless: it needs REPLICA IDENTITY FULL") {
		t.Errorf("plan: %q", got)
	}
}

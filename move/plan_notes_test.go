package move_test

import (
	"slices"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestAPlanNotesWhatAnOmnishardedTableNeedsAndIsNot(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table items (id bigserial primary key); create table countries (id serial primary key, n bigint generated always as identity);
		create table towns (id bigint primary key)`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.Destination.Spec.Omni = []layout.OmniTables{{Database: "app_sharded", Tables: []string{"countries", "public.towns", "contries"}}}
	notes := func() (of []string) {
		plan, err := s.move().Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range plan.Notes {
			if strings.Contains(n, "omnisharded") {
				of = append(of, n)
			}
		}
		slices.Sort(of)
		return of
	}
	unknown := "[[omnisharded_tables]] names contries, and no table of the move is called so"
	got := notes()
	if len(got) != 2 || got[0] != unknown || !strings.HasPrefix(got[1], "omnisharded public.countries takes id, n from a sequence, of which each shard hands out other values") {
		t.Errorf("notes: %q", got)
	}
	s.config.Sequences = "none"
	if got := notes(); len(got) != 1 {
		t.Errorf("notes where sequences are left alone: %q", got)
	}
}

// A plan tells of keys without exactly one mapping row: of a sample that is all there is, and of every key where it is asked to.
func TestAPlanCountsKeysWithoutExactlyOneMappingRow(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table tenants (id bigint, parent bigint); alter table tenants replica identity full; create table orders (id int primary key, tenant bigint);
		create table codes (code text primary key, tenant bigint); create table uses (id int primary key, code text) partition by range (id); create table uses_0 partition of uses default;
		insert into tenants select g, g from generate_series(1, 10) g; insert into tenants values (3, 4), (5, 6);
		insert into orders select g, g % 12 from generate_series(1, 40) g; insert into orders values (100, null);
		insert into codes values ('a', 1), ('b', 2), ('c', null); insert into uses select g, (array['a', 'b'])[g % 2 + 1] from generate_series(1, 30) g`)
	d := &s.config.Destination
	d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "orders", Columns: []string{"tenant"}, LookupQuery: "select parent from tenants where id = $1"},
		layout.ShardedTable{Database: d.Database, Name: "uses", Columns: []string{"code"}, LookupQuery: "select tenant from codes where code = $1"})
	d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants", "codes"}}}
	everyKey := false
	notes := func() (of []string) {
		t.Helper()
		plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{EveryKey: everyKey})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range plan.Notes {
			if strings.Contains(n, "mapping row") || strings.Contains(n, "translate no key") {
				of = append(of, n)
			}
		}
		slices.Sort(of)
		return of
	}
	some := "public.orders: of a sample of its keys (12) 2 have no mapping row and 2 have several; a row with such a key stops the move"
	if got := notes(); !slices.Equal(got, []string{some}) {
		t.Errorf("notes: %q", got)
	}
	everyKey = true
	unused := "public.codes: 1 of its rows translate no key of any row, by code"
	every := []string{unused, strings.Replace(some, "of a sample of its", "of its", 1), "public.uses: each of its keys (2) has exactly one mapping row"}
	if got := notes(); !slices.Equal(got, every) {
		t.Errorf("notes of every key: %q", got)
	}
	s.sources[0].Exec(t, `insert into uses values (100, 'c'), (101, 'x')`)
	d.Spec.Tables[len(d.Spec.Tables)-2].OnMissing = layout.MissingIdentity
	every = every[1:] // a row carries the key now
	every[0] = strings.Replace(every[0], "a row with such a key stops the move", "rows with such a key go by on_missing", 1)
	every[1] = "public.uses: of its keys (4) 2 have no mapping row and 0 have several; a row with such a key stops the move"
	if got := notes(); !slices.Equal(got, every) {
		t.Errorf("notes with keys that have none: %q", got)
	}
	s.sources[0].Exec(t, `insert into orders select g, 5000 + g from generate_series(1000, 60000) g; analyze orders`)
	everyKey = false
	if got := notes(); len(got) != 2 || !strings.HasPrefix(got[0], "public.orders: of a sample of its keys (") || strings.Contains(got[0], "(590") {
		t.Errorf("notes of a large table: %q", got)
	}
}

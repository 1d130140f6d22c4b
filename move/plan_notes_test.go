package move_test

import (
	"slices"
	"strings"
	"testing"

	"pgreshard/layout"
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

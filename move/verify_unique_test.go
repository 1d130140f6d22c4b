package move_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/verify"
)

// A constraint that the source enforced and no shard can: what two shards have twice is found, by the index's own words.
func TestWhatTheSourceKeptUniqueIsLookedAtAcrossShards(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create table users (id int primary key, tenant bigint not null, email text constraint one_address unique, name text, gone boolean not null default false,
			skipped int unique, unique (tenant, name));
		create unique index one_name on users (lower(name)) where not gone;
		create table parts (id int, tenant bigint, day int not null, code text, unique (code, day)) partition by list (day);
		create table parts_1 partition of parts for values in (1); create table parts_2 partition of parts for values in (2);
		alter table parts_1 replica identity full; alter table parts_2 replica identity full;
		create table countries (id int primary key, code text unique);
		insert into users select g, g, 'u' || g, 'N' || g, false, g from generate_series(1, 60) g;
		insert into parts select g, g, 1 + g % 2, 'c' || g from generate_series(1, 40) g; insert into countries values (1, 'a'), (2, 'b')`)
	s.omni("countries")
	s.config.SkipConstraint = []string{"unique:users_skipped_key"}
	s.run(func() {})
	m := s.move()
	conflicts := func() (found []string) {
		t.Helper()
		report, err := m.Verify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range report.Tables {
			if table.NotUnique != int64(len(table.Conflicts)) || table.NotUnique > 0 && table.State != verify.Differs {
				t.Errorf("%+v", table)
			}
			for _, c := range table.Conflicts {
				var rows []string
				for _, row := range c.Rows {
					rows = append(rows, fmt.Sprintf("%d: %s", row.Shard, row.Key))
				}
				found = append(found, table.Table+" "+c.Constraint+" "+strings.Join(rows, ", "))
			}
		}
		slices.Sort(found)
		return found
	}
	if found := conflicts(); len(found) > 0 {
		t.Fatalf("found where nothing is: %q", found)
	}

	// Applications write to shards that know nothing of each other.
	on := func(id int) (shard int) {
		for shard = range s.shards {
			if rows := s.shards[shard].Query(t, `select 1 from users where id = $1`, id); len(rows) > 0 {
				break
			}
		}
		return shard
	}
	from := on(7)
	to := (from + 1) % len(s.shards)
	tenant := s.shards[to].Query(t, `select tenant from users limit 1`)[0][0]
	s.shards[to].Exec(t, fmt.Sprintf(`insert into users values (107, %[1]s, 'u7', 'x', false, 107), (108, %[1]s, 'y', 'n7', false, 108), (109, %[1]s, 'z', 'n8', true, 109),
		(110, %[1]s, null, null, false, 7)`, tenant))
	day := s.shards[from].Query(t, `select code, day from parts limit 1`)[0]
	s.shards[to].Exec(t, fmt.Sprintf(`insert into parts values (200, %s, %s, '%s')`, tenant, day[1], day[0]))
	rows := func(ids ...int) string {
		at := []string{fmt.Sprintf("%d: id=%d", from, ids[0]), fmt.Sprintf("%d: id=%d", to, ids[1])}
		if to < from {
			slices.Reverse(at)
		}
		return strings.Join(at, ", ")
	}
	found := conflicts()
	if len(found) != 3 || !strings.HasPrefix(found[0], "public.parts parts_code_day_key ") || !strings.Contains(found[0], ": #") ||
		found[1] != "public.users one_address "+rows(7, 107) || found[2] != "public.users one_name "+rows(7, 108) {
		t.Errorf("%q", found)
	}
}

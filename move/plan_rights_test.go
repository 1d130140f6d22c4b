package move_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// as is a database's shard as another role reaches it.
func as(role string, n int, db *pgtest.DB) pg.Shard {
	return pg.FixedURL(n, strings.Replace(db.URL(), "postgres://postgres@", "postgres://"+role+"@", 1))
}

// hints lists what a plan asks for on one node, sorted.
func hints(t *testing.T, m *move.Move, node string) (out []string) {
	t.Helper()
	plan, err := m.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range plan.Problems {
		if p.Table == node {
			out = append(out, p.Hint)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestAPlanNamesRightsOnTablesThatAreThereAndPastRowSecurity(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{})
	source, shard := cluster.Database(t), cluster.Database(t)
	source.Exec(t, `create role mover login replication; create role app; grant app to mover; grant pg_read_all_stats to mover;
		create role stranger; grant create on schema public to app, mover`)
	const tables = `create table items (id bigint primary key); alter table items owner to app;
		create table secrets (id bigint primary key); alter table secrets owner to app;
		alter table secrets enable row level security; alter table secrets force row level security`
	source.Exec(t, tables)
	source.Exec(t, `grant select on items to stranger`)
	for _, db := range []*pgtest.DB{source, shard} {
		db.Exec(t, fmt.Sprintf(`grant create on database %q to mover`, db.Name))
	}
	if cluster.Version >= 15 {
		source.Exec(t, `grant set on parameter session_replication_role to mover`)
	}
	s := smallMoveOf(t, source, []*pgtest.DB{shard}, "id")
	s.config.Source.Shards[0], s.config.Destination.Shards[0] = as("mover", 0, source), as("mover", 0, shard)

	check := func(what, node string, want ...string) {
		t.Helper()
		got := hints(t, s.move(), node)
		got = slices.DeleteFunc(got, func(h string) bool { // cannot be given before 15
			return cluster.Version < 15 && strings.Contains(h, "session_replication_role")
		})
		if !slices.Equal(got, want) {
			t.Errorf("%s: %s asks for %q, want %q", what, node, got, want)
		}
	}
	bypass := `alter role "mover" bypassrls`
	create := []string{}
	if cluster.Version >= 15 { // before, everybody may
		create = append(create, `grant create, usage on schema "public" to "app"`)
	}
	check("tables to be made", "source shard 0", bypass)
	check("tables to be made", "destination shard 0", append([]string{bypass}, create...)...)

	shard.Exec(t, tables)
	shard.Exec(t, `alter table items owner to stranger`)
	s.config.CreateSchema = false
	check("tables that are there", "destination shard 0", bypass, `grant "stranger" to "mover"`)
	source.Exec(t, `alter role mover bypassrls; grant stranger to mover`)
	check("with what was asked for", "source shard 0")
	check("with what was asked for", "destination shard 0")
	source.Exec(t, `revoke pg_read_all_stats from mover`)
	check("without statistics", "source shard 0", `grant pg_monitor to "mover"`)
}

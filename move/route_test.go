package move_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestAKeyOfTwoColumnsIsRoutedAsPostgresPartitions(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table measures (tenant_id bigint, region text, value int, primary key (tenant_id, region));
		create table places (tenant_id bigint, region text) partition by hash (tenant_id, region);
		create table readings (id bigint primary key)`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)}, "id")
	s.config.Exclude = []string{"public.places"}
	s.config.Destination.Spec.Tables = append(s.config.Destination.Spec.Tables,
		layout.ShardedTable{Database: "app_sharded", Name: "measures", Columns: []string{"tenant_id", "region"}})
	m, used := s.move(), map[layout.Shard]bool{}
	for tenant := range 12 {
		key := []string{fmt.Sprint(tenant), "eu-" + fmt.Sprint(tenant%5)}
		r, err := m.Route(t.Context(), "measures", key)
		if err != nil || len(r.Shards) != 1 {
			t.Fatalf("%v: %+v, %v", key, r, err)
		}
		used[r.Shards[0]] = true
		ok := source.Query(t, `select satisfies_hash_partition('public.places'::regclass, 3, $1::int, $2::bigint, $3::text)`, int(r.Shards[0]), tenant, key[1])
		if ok[0][0] != "t" && ok[0][0] != "true" {
			t.Errorf("%v is not on shard %d: %v", key, r.Shards[0], ok)
		}
	}
	if len(used) < 2 {
		t.Errorf("all keys are on %v", used)
	}
	for _, key := range [][]string{{"1"}, {"1", "eu", "x"}} {
		if _, err := m.Route(t.Context(), "measures", key); err == nil || !strings.Contains(err.Error(), "hint: give one for each of tenant_id, region") {
			t.Errorf("%v: %v", key, err)
		}
	}
	var none *move.NoRouteError
	if _, err := m.Route(t.Context(), "readings", []string{"x"}); !errors.As(err, &none) || strings.Contains(err.Error(), "copy") {
		t.Errorf("a key of another type: %v", err)
	}
}

func TestARouteThatCannotBeToldSaysWhy(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table tenants (id bigint primary key, home bigint); create table users (id bigint primary key)`)
	shard := pgtest.SharedDestination(t).Database(t)
	s := smallMoveOf(t, source, []*pgtest.DB{shard}, "id")
	s.config.Destination.Spec.Tables = []layout.ShardedTable{
		{Database: "app_sharded", Name: "users", Columns: []string{"id"}, LookupQuery: "select home from tenants where id = $1"},
		{Database: "app_sharded", Name: "tenants", Columns: []string{"id"}}}
	m := s.move()
	for _, c := range []struct{ what, table, key, want string }{
		{"before the move", "users", "1", "hint: ask again once `pgreshard migrate` has copied it"},
		{"a key of another type", "tenants", "abc", "not a value of the type"},
	} {
		if _, err := m.Route(t.Context(), c.table, []string{c.key}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	shard.Exec(t, `create table tenants (id bigint primary key, home bigint)`)
	if _, err := m.Route(t.Context(), "users", []string{"abc"}); err == nil || !strings.Contains(err.Error(), "hint: give a value of the type of id") {
		t.Errorf("a key the lookup does not take: %v", err)
	}
	var none *move.NoRouteError
	if _, err := m.Route(t.Context(), "tenants", []string{"abc"}); !errors.As(err, &none) || none.Hint() != "give a value of the column's type" {
		t.Errorf("a key of another type: %v", err)
	}
}

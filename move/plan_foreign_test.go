package move_test

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// What a plan says will not work any more on several shards: foreign keys the rules do not keep together, and statements
// that name no key.
func TestAPlanTellsWhatStopsWorkingOnSeveralShards(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{Settings: map[string]string{"shared_preload_libraries": "pg_stat_statements"}})
	source := cluster.Database(t)
	source.Exec(t, `create extension pg_stat_statements;
		create table tenants (id bigint primary key);
		create table orders (id bigint primary key, tenant_id bigint constraint to_tenants references tenants, unique (tenant_id, id));
		create table payments (id bigint primary key, tenant_id bigint, order_id bigint constraint by_id references orders,
			constraint by_both foreign key (tenant_id, order_id) references orders (tenant_id, id));
		create table items (id bigint primary key, order_id bigint constraint looked_up references orders);
		create table countries (code text primary key, capital bigint constraint everywhere references orders);
		insert into tenants values (1); insert into orders values (1, 1), (2, 1)`)
	for range 3 {
		source.Exec(t, "select * from orders where id = 4711")
	}
	for _, sql := range []string{"select count(*) from orders where tenant_id = 1", "select count(*) from countries where code = 'secret'",
		"delete from orders", "insert into orders values (9, 1)", "select 1 from payments p join orders o on o.tenant_id = p.tenant_id where o.id = 1"} {
		source.Exec(t, sql)
	}
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}, "tenant_id")
	s.config.Destination.Spec.Tables = append(s.config.Destination.Spec.Tables,
		layout.ShardedTable{Database: "app_sharded", Name: "tenants", Columns: []string{"id"}},
		layout.ShardedTable{Database: "app_sharded", Name: "items", Columns: []string{"order_id"}, LookupQuery: "select tenant_id from orders where id = $1"})
	s.config.Destination.Spec.Omni = []layout.OmniTables{{Database: "app_sharded", Tables: []string{"countries"}}}
	var plan *move.Plan
	var err error
	for range 2 { // what the first one reads is no statement of the application
		if plan, err = s.move().PlanWith(t.Context(), move.PlanOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for _, note := range plan.Notes {
		if rest, ok := strings.CutPrefix(note, "foreign key "); ok {
			name, what, _ := strings.Cut(rest, " ")
			keys = append(keys, name+fmt.Sprint(strings.Contains(what, "cannot hold")))
		}
	}
	if got := strings.Join(keys, " "); got != "everywheretrue by_idfalse" {
		t.Errorf("foreign keys that may not hold: %s\n%s\n%v", got, strings.Join(plan.Notes, "\n"), plan.Problems)
	}
	var found []string
	for _, st := range plan.Statements {
		found = append(found, fmt.Sprintf("%s %s: %s %d", st.Table, st.Key, st.Query, st.Calls))
		if st.Seconds <= 0 || strings.Contains(st.Query, "4711") {
			t.Errorf("%+v", st)
		}
	}
	text := strings.Join(found, "\n")
	if len(found) != 2 || !strings.Contains(text, "public.orders tenant_id: select * from orders where id = $1 3") || !strings.Contains(text, "public.orders tenant_id: delete from orders 1") {
		t.Errorf("statements that lose their shard:\n%s", text)
	}
}

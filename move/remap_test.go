package move_test

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/pgtest"
)

// remapped are tables that go by mappings of every kind, and the SQL of the key each row is placed by.
var remapped = map[string]string{
	"users":  `(select coalesce(parent, id) from tenants where id = r.tenant)`,
	"orders": `r.tenant`,
	"items":  `(select tenant from orders where id = r.order_id)`,
	"visits": `(select t.region from orders o join tenants t on t.id = o.tenant where o.id = r.order_id)`,
}

const remappedSchema = `create table tenants (id bigint primary key, parent bigint, region bigint not null, note text);
	create table users (id int primary key, tenant bigint, a int, big text); alter table users alter big set storage external;
	create table orders (id bigint primary key, tenant bigint, note text);
	create table items (id int primary key, order_id bigint, a int); create table visits (order_id bigint, a int, pad text); alter table visits replica identity full;
	insert into tenants select g, nullif(g / 3, 0), g % 5 + 1 from generate_series(1, 30) g;
	insert into users select g, g % 30 + 1, 0, repeat(md5(g::text), 200) from generate_series(1, 300) g;
	insert into orders select g, g % 30 + 1 from generate_series(1, 60) g;
	insert into items select g, g % 60 + 1, 0 from generate_series(1, 300) g; insert into visits select g % 60 + 1, g % 7, 'x' from generate_series(1, 200) g;`

// whileMapped changes mappings among changes of the rows that go by them; %d makes the ids of a round its own.
const whileMapped = `update tenants set parent = 7 where id = 4; update users set a = a + 1 where tenant = 4;
	begin; update tenants set region = region %% 5 + 1, note = 'moved' where id < 9; update visits set a = 9 where order_id = 5; insert into visits values (6, 1, 'new'); commit;
	update orders set tenant = tenant %% 30 + 1 where id %% 3 = 0; update items set a = a + 1 where order_id %% 5 = 0;
	begin; insert into items values (%[1]d, 12); update orders set tenant = 3 where id = 12; update items set order_id = 13 where id = 12; delete from items where id = 11; commit;
	delete from items where order_id = 20; delete from visits where order_id = 20; delete from orders where id = 20; insert into orders values (20, 9); insert into items values (%[1]d + 1, 20);
	update tenants set parent = (id * 7) %% 29 + 1 where id > 10; update users set tenant = tenant %% 30 + 1 where id %% 4 = 0;
	begin; update tenants set parent = null where id = 15; update users set id = id + %[1]d where tenant = 15; update tenants set parent = 16 where id = 15; commit;
	update orders set id = id + %[1]d, tenant = 5 where id = 30; update items set order_id = order_id + %[1]d where order_id = 30; update visits set order_id = order_id + %[1]d where order_id = 30`

// Rows move with their mappings: those of an omnisharded table, of a sharded one, and of two that are joined; while the move
// streams, and between the runs of a copy that was interrupted.
func TestRowsMoveWithTheirMappings(t *testing.T) {
	t.Parallel()
	for _, interrupted := range []bool{false, true} {
		t.Run(fmt.Sprintf("copy interrupted: %t", interrupted), func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 3, "tenant", remappedSchema)
			d := &s.config.Destination
			lookups := map[string]string{"users": `select coalesce(parent, id) from tenants where id = $1`, "items": `SELECT tenant FROM orders WHERE id = $1`,
				"visits": `select t.region from orders o join tenants t on t.id = o.tenant where o.id = $1`}
			for table, query := range lookups {
				column := "order_id"
				if table == "users" {
					column = "tenant"
				}
				d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: table, Columns: []string{column}, LookupQuery: query, DataType: "bigint"})
			}
			d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants"}}}
			round := func(n int) {
				for _, one := range strings.Split(fmt.Sprintf(whileMapped, n*1000), ";\n") {
					runOn(t, s.sources[0].Conn(t), one)
				}
			}
			if interrupted {
				s.sources[0].Exec(t, `alter table users alter big set storage plain; insert into users select g, g % 30 + 1, 0, repeat('x', 1500) from generate_series(301, 6000) g; insert into users values (6001, 1, 0, 'stop here')`)
				s.interruptCopy("stop here")
				round(10)
			}
			s.run(func() { round(20); round(30) })
			s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
			places := newPlaces(t)
			for table, key := range remapped {
				s.sameRows(pgtest.RowsOptions{}, table)
				want := map[string]int{} // rows by column and shard
				column := "order_id"
				if table == "users" || table == "orders" {
					column = "tenant"
				}
				for _, row := range s.sources[0].Query(t, fmt.Sprintf(`select %s, %s, count(*) from %s r group by 1, 2`, column, key, table)) {
					shard, err := places.of(t.Context(), "bigint", row[1], 3)
					if err != nil {
						t.Fatal(err)
					}
					want[fmt.Sprint(row[0], " on ", shard, ": ", row[2])]++
				}
				for shard, db := range s.shards {
					for _, row := range db.Query(t, fmt.Sprintf(`select %s, count(*) from %s group by 1`, column, table)) {
						want[fmt.Sprint(row[0], " on ", shard, ": ", row[1])]--
					}
				}
				for what, n := range want {
					if n > 0 {
						t.Errorf("%s: missing %s %s", table, column, what)
					} else if n < 0 {
						t.Errorf("%s: there is %s %s, and should not be", table, column, what)
					}
				}
			}
		})
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/sink"
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
			s.places = newPlaces(t)
			for table, key := range remapped {
				column := "order_id"
				if table == "users" || table == "orders" {
					column = "tenant"
				}
				s.sameRows(pgtest.RowsOptions{}, table)
				s.placedBy(table, column, key)
			}
		})
	}
}

// A lookup joins tables that themselves move with the mapping that is changed, or that are looked at, by their names, after it: they come
// together first.
func TestRowsMoveThroughAChainOfMappings(t *testing.T) {
	t.Parallel()
	for _, omni := range []bool{true, false} {
		t.Run(fmt.Sprintf("tenants omnisharded: %t", omni), func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 3, "grp", `create table tenants (id int primary key, grp int not null); create table orders (id int primary key, tenant_id int not null);
				create table items (id int primary key, order_id int not null); create table lines (id int primary key, item_id int not null, note text);
				insert into tenants select g, g from generate_series(1, 12) g; insert into orders select g * 10, g from generate_series(1, 12) g;
				insert into items select g * 100, g * 10 from generate_series(1, 12) g; insert into lines select g * 1000, g * 100, 'n' from generate_series(1, 12) g`)
			s.places = newPlaces(t)
			d := &s.config.Destination
			for table, c := range map[string][2]string{"orders": {"tenant_id", `SELECT grp FROM tenants WHERE id = $1`},
				"items": {"order_id", `SELECT t.grp FROM orders o JOIN tenants t ON t.id = o.tenant_id WHERE o.id = $1`},
				"lines": {"item_id", `SELECT t.grp FROM items i JOIN orders o ON o.id = i.order_id JOIN tenants t ON t.id = o.tenant_id WHERE i.id = $1`}} {
				d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: table, Columns: []string{c[0]}, LookupQuery: c[1], DataType: "bigint"})
			}
			if omni {
				d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants"}}}
			} else {
				d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "tenants", Columns: []string{"grp"}, DataType: "bigint"})
			}
			s.run(func() {
				for _, sql := range []string{`update tenants set grp = grp % 12 + 1 where id < 7`, `update orders set tenant_id = tenant_id % 12 + 1 where id % 30 = 0`,
					`begin; delete from tenants where id = 8; insert into tenants values (8, 3); commit`, `update tenants set grp = 13 - grp where id > 4`} {
					runOn(t, s.sources[0].Conn(t), sql)
				}
			})
			s.sameRows(pgtest.RowsOptions{Omni: omni}, "tenants")
			s.sameRows(pgtest.RowsOptions{}, "orders", "items", "lines")
			s.placedBy("orders", "tenant_id", `(select grp from tenants where id = r.tenant_id)::bigint`)
			s.placedBy("items", "order_id", `(select t.grp from orders o join tenants t on t.id = o.tenant_id where o.id = r.order_id)::bigint`)
			s.placedBy("lines", "item_id", `(select t.grp from items i join orders o on o.id = i.order_id join tenants t on t.id = o.tenant_id where i.id = r.item_id)::bigint`)
		})
	}
}

// placedBy compares on which shards rows stand, counted by a column, with where a key of each puts them that the sources
// compute (as SQL, of r) by joining the mapping as it is.
func (s *smallMove) placedBy(table, column, key string) {
	s.t.Helper()
	want := map[string]int{}
	for _, db := range s.sources {
		for _, row := range db.Query(s.t, fmt.Sprintf(`select %s, %s, count(*) from %s r group by 1, 2`, column, key, table)) {
			shard, err := s.places.of(s.t.Context(), "bigint", row[1], len(s.shards))
			if err != nil {
				s.t.Fatal(err)
			}
			n, _ := strconv.Atoi(row[2])
			want[fmt.Sprint(row[0], " on ", shard)] += n
		}
	}
	for shard, db := range s.shards {
		for _, row := range db.Query(s.t, fmt.Sprintf(`select %s, count(*) from %s group by 1`, column, table)) {
			n, _ := strconv.Atoi(row[1])
			want[fmt.Sprint(row[0], " on ", shard)] -= n
		}
	}
	for what, n := range want {
		if n != 0 {
			s.t.Errorf("%s: rows of %s %s: %d are missing", table, column, what, n)
		}
	}
}

// usersOfTwoSources is a move of users, who live with their tenant's parent, from two sources; tenants are omnisharded.
func usersOfTwoSources(t *testing.T, shards int) (s *smallMove, tenants [2][][]int) {
	s, tenants = twoSources(t, shards, `create table tenants (id bigint primary key, parent bigint); create table users (id int primary key, tenant bigint, a int);
		create table parcels (id int primary key, tenant bigint not null, note text);
		create table orders (id bigint primary key, tenant bigint not null); create table items (id int primary key, tenant bigint not null, order_id bigint)`)
	s.places = newPlaces(t)
	for _, side := range []*move.Side{&s.config.Source, &s.config.Destination} {
		side.Spec.Omni = []layout.OmniTables{{Database: side.Database, Tables: []string{"tenants"}}}
	}
	d := &s.config.Destination
	d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "users", Columns: []string{"tenant"}, LookupQuery: `select coalesce(parent, id) from tenants where id = $1`},
		layout.ShardedTable{Database: d.Database, Name: "items", Columns: []string{"order_id"}, LookupQuery: `select tenant from orders where id = $1`})
	return s, tenants
}

// usersWithTheirParent is such a move with the second source's users of one key on shard 0, where their parent is. b, another parent,
// and there, a tenant of the second source, are on shard 1.
func usersWithTheirParent(t *testing.T) (s *smallMove, key, b, there int) {
	s, tenants := usersOfTwoSources(t, 3)
	key, a := tenants[1][0][0], tenants[0][0][0]
	for n, db := range s.sources {
		db.Exec(t, `insert into tenants values ($1, $2), ($2, null)`, key, a)
		db.Exec(t, `insert into parcels values ($1, $2)`, n, tenants[n][0][0])
	}
	s.sources[0].Exec(t, `insert into users values (0, $1, 0)`, a)
	s.sources[1].Exec(t, `insert into users select g, $1, 0 from generate_series(1, 20) g`, key)
	return s, key, tenants[0][1][0], tenants[1][1][0]
}

// A row of each source comes before its mapping row, and so does one whose mapping row is the other source's; the first source's
// stream is far behind the second's. The move stops; the mapping rows are given to the sources alone, and the same command goes on.
func TestTheStreamsOfTwoSourcesGoOnWhenAMissingMappingIsThere(t *testing.T) {
	t.Parallel()
	s, tenants := usersOfTwoSources(t, 3)
	k := [2]int{tenants[0][0][0], tenants[1][1][0]}
	for n, db := range s.sources {
		db.Exec(t, `insert into parcels select g * 2 + $1::int, $2, 'p' from generate_series(1, 300) g`, n, k[n])
	}
	missing := func(when string, ready func()) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var place *sink.PlaceError
		err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) { ready(); <-ctx.Done(); return false, ctx.Err() }})
		if !errors.As(err, &place) || lookup.Missing(err) == nil {
			t.Fatalf("%s it ended with %v", when, err)
		}
		if hint := move.Hint(err); !strings.Contains(hint, "give the key exactly one mapping row on the source") || strings.Contains(hint, "start over") {
			t.Errorf("the hint is %q", hint)
		}
	}
	missing("at first", func() {
		s.sources[0].Exec(t, `insert into parcels select g * 2, $1, repeat('x', 500) from generate_series(1000, 9000) g`, k[0])
		for n, db := range s.sources {
			db.Exec(t, `insert into users values ($1, $2, 1)`, 2+n, k[n])
			db.Exec(t, `insert into items values ($1, $2, $3)`, 2+n, k[n], 101+n) // the order is the other source's
		}
	})
	missing("again", func() {})
	for n, db := range s.sources {
		db.Exec(t, `insert into tenants values ($1, $2), ($2, null)`, k[0], k[1])
		db.Exec(t, `insert into orders values ($1, $2)`, 102-n, k[n])
	}
	s.run(func() {
		for _, db := range s.sources { // one after the other, as an application writes what every shard has
			db.Exec(t, `update tenants set parent = null`)
		}
		s.sources[1].Exec(t, `update users set a = 2`)
		s.sources[1].Exec(t, `update orders set tenant = $1 where id = 101`, tenants[1][2][0])
	})
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
	s.sameRows(pgtest.RowsOptions{}, "users", "parcels", "orders", "items")
	s.placedBy("users", "tenant", `(select coalesce(parent, id) from tenants where id = r.tenant)`)
	order := map[string]string{}
	for _, db := range s.sources {
		for _, row := range db.Query(t, `select id, tenant from orders`) {
			order[row[0]] = row[1]
		}
	}
	for shard, db := range s.shards {
		for _, row := range db.Query(t, `select order_id from items`) {
			if want, err := s.places.of(t.Context(), "bigint", order[row[0]], len(s.shards)); err != nil || want != shard {
				t.Errorf("the item of order %s is on shard %d, not on %d: %v", row[0], shard, want, err)
			}
		}
	}
}

// The second source's row is on its way to a shard by the translation its key had, and waits there for a lock, when the first
// source's stream comes to the change of the mapping. It must not stand there afterwards.
func TestNoStreamCommitsARowByATranslationThatWasChanged(t *testing.T) {
	t.Parallel()
	s, key, b, _ := usersWithTheirParent(t)
	var once sync.Once
	s.run(func() {
		once.Do(func() {
			holder := s.shards[0].Conn(t)
			runOn(t, holder, `set session_replication_role = replica; begin; insert into users values (500, 0, 0)`)
			s.sources[1].Exec(t, `insert into users values (500, $1, 1)`, key)
			waiting := `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and application_name like '%stream'`
			var pid string
			for pid == "" {
				if rows := s.shards[0].Query(t, waiting); len(rows) > 0 {
					pid = rows[0][0]
				}
				time.Sleep(5 * time.Millisecond)
			}
			for _, db := range s.sources {
				db.Exec(t, `update tenants set parent = $1 where id = $2`, b, key)
			}
			ended := func() bool { return len(s.shards[0].Query(t, `select 1 from pg_stat_activity where pid = `+pid)) == 0 }
			moved := func() bool { return len(s.shards[0].Query(t, `select 1 from tenants where parent = $1`, b)) > 0 }
			for !ended() && !moved() {
				time.Sleep(5 * time.Millisecond)
			}
			runOn(t, holder, `rollback`)
		})
	})
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
	s.sameRows(pgtest.RowsOptions{}, "users", "parcels")
	s.placedBy("users", "tenant", `(select coalesce(parent, id) from tenants where id = r.tenant)`)
	if rows := s.shards[1].Query(t, `select count(*) from users`); rows[0][0] != "21" {
		t.Errorf("%s users are with their parent", rows[0][0])
	}
}

// A translation that the second source's stream learnt while shards were brought to one position is another one after the first
// source's turn: rows of the second's turn go by that.
func TestATurnGoesByTheMappingsThatTheTurnsBeforeItChanged(t *testing.T) {
	t.Parallel()
	s, key, b, there := usersWithTheirParent(t)
	var once sync.Once
	s.run(func() {
		once.Do(func() {
			until := func(shard int, sql string, args ...any) (rows [][]string) {
				for len(rows) == 0 {
					time.Sleep(5 * time.Millisecond)
					rows = s.shards[shard].Query(t, sql, args...)
				}
				return rows
			}
			holder := s.shards[0].Conn(t)
			runOn(t, holder, `set session_replication_role = replica; begin; insert into users values (500, 0, 0)`)
			s.sources[1].Exec(t, `insert into users values (500, $1, 1)`, key)
			const waiting = `select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and application_name like '%stream' and pid <> $1`
			pid := until(0, waiting, 0)[0][0]
			s.sources[1].Exec(t, `insert into parcels values (501, $1)`, there)
			until(1, `select 1 from parcels where id = 501`) // this shard is ahead of the one that waits
			for _, db := range s.sources {
				db.Exec(t, `update tenants set parent = $1 where id = $2`, b, key)
			}
			until(0, waiting, pid) // brought to one position, it waits for the same lock again
			s.sources[1].Exec(t, `insert into users values (502, $1, 1)`, key)
			runOn(t, holder, `rollback`)
		})
	})
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
	s.sameRows(pgtest.RowsOptions{}, "users", "parcels")
	s.placedBy("users", "tenant", `(select coalesce(parent, id) from tenants where id = r.tenant)`)
	if rows := s.shards[1].Query(t, `select count(*) from users`); rows[0][0] != "22" {
		t.Errorf("%s users are with their parent", rows[0][0])
	}
}

// Few keys are asked for where one of many mappings changes, whether the query asks the table itself or joins it to the one it asks.
func TestOneChangeOfManyMappingsAsksForItsKeysAlone(t *testing.T) {
	t.Parallel()
	const mappings = 100_000
	s := newSmallMove(t, 3, "tenant", fmt.Sprintf(`create table tenants (id bigint primary key, parent bigint, region bigint not null);
		create table orders (id bigint primary key, tenant bigint); create table users (id int primary key, tenant bigint); create table visits (id int primary key, order_id bigint);
		insert into tenants select g, null, g %% 7 from generate_series(1, %[1]d) g; insert into orders select g + 1000000, g from generate_series(1, %[1]d, 10) g;
		insert into users select g, g from generate_series(1, %[1]d, 10) g; insert into visits select g, g + 1000000 from generate_series(1, %[1]d, 10) g`, mappings))
	d := &s.config.Destination
	d.Spec.Tables = append(d.Spec.Tables,
		layout.ShardedTable{Database: d.Database, Name: "users", Columns: []string{"tenant"}, LookupQuery: `select coalesce(parent, id) from tenants where id = $1`},
		layout.ShardedTable{Database: d.Database, Name: "visits", Columns: []string{"order_id"}, LookupQuery: `select t.region from orders o join tenants t on t.id = o.tenant where o.id = $1`})
	d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants", "orders"}}}
	s.config.LookupBytes = 256 << 20
	s.places = newPlaces(t)
	worker := s.move()
	defer worker.Close()
	var before, after move.LookupStatus
	ready := func(ctx context.Context) (bool, error) {
		before = worker.Snapshot().Lookup
		s.sources[0].Exec(t, `update tenants set parent = 4, region = 3 where id = 50001`)
		moved := func() bool {
			for _, db := range s.shards {
				if db.Query(t, `select count(*) from tenants where parent = 4`)[0][0] == "0" {
					return false
				}
			}
			return true
		}
		for !moved() {
			time.Sleep(5 * time.Millisecond)
		}
		after = worker.Snapshot().Lookup
		return true, nil
	}
	if err := worker.Migrate(t.Context(), move.MigrateOptions{Ready: ready}); err != nil {
		t.Fatal(err)
	}
	if n := after.Queries - before.Queries; n == 0 || n >= 100 {
		t.Errorf("%d keys were asked for", n)
	}
	if n := before.Entries - after.Entries; n > 100 {
		t.Errorf("%d translations were forgotten", n)
	}
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants", "orders")
	s.sameRows(pgtest.RowsOptions{}, "users", "visits")
	for shard, db := range s.shards {
		for table, row := range map[string]string{"users": `select coalesce(t.parent, t.id) from tenants t where t.id = 50001`, "visits": `select t.region from tenants t where t.id = 50001`} {
			key := s.sources[0].Query(t, row)[0][0]
			want, err := s.places.of(t.Context(), "bigint", key, len(s.shards))
			if err != nil {
				t.Fatal(err)
			}
			if got := db.Query(t, `select count(*) from `+table+` where id = 50001`)[0][0]; got == "1" != (shard == want) {
				t.Errorf("%s: shard %d has %s of the row, which is shard %d's", table, shard, got, want)
			}
		}
	}
}

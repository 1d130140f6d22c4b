package sink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
	"pgreshard/sink"
)

const tenantsSchema = `
create table tenants (id bigint primary key, parent bigint, name text);
create table users (id int primary key, tenant bigint references tenants on delete cascade deferrable initially deferred, a int, big text);
alter table users alter big set storage external;
create table notes (tenant bigint references tenants on delete cascade deferrable initially deferred, a numeric, big text);
alter table notes replica identity full;`

const parentOf = "SELECT coalesce(parent, id) FROM tenants WHERE id = $1"

// tenants is a rig whose users and notes live with their tenant's parent; fill puts rows into the source before the
// stream begins.
func tenants(t *testing.T, n int, also string, fill ...string) *following {
	f := follow(t, n, tenantsSchema+also+strings.Join(fill, ";"), tenantsSchema+also, rules{
		sharded: map[string]string{"users": "tenant", "notes": "tenant"}, lookups: map[string]string{"users": parentOf, "notes": parentOf}, omni: []string{"tenants"}})
	for _, table := range []string{"users", "notes"} {
		f.keys[table] = `(select coalesce(parent, id) from tenants where id = r.tenant)`
	}
	return f
}

var tenantSteps = []string{
	`insert into tenants select g, nullif(g / 2, 0) from generate_series(1, 20) g`,
	// the row before its mapping row
	`begin; insert into users values (1, 101, 1); insert into notes values (101, 1); update users set a = 2 where id = 1; insert into tenants values (101, 7); insert into users values (2, 101); commit`,
	`begin; insert into users values (3, 102); delete from users where id = 3; insert into tenants values (102); insert into users values (3, 102); commit`,
	`insert into users select 10 + g, g, 0, (select string_agg(md5(s::text), '') from generate_series(1, 100) s) from generate_series(1, 20) g`,
	`insert into notes select g % 4 + 1, 1.0, 'x' from generate_series(1, 20) g`,
	// equal rows, and ones that move, in a table without key
	`delete from notes where ctid = (select min(ctid) from notes where tenant = 2)`,
	`update notes set a = 1.00 where ctid = (select min(ctid) from notes where tenant = 2)`,
	`update notes set tenant = 5 where ctid = (select min(ctid) from notes where tenant = 3)`,
	`update notes set a = 2 where tenant = 3`,
	// rows that move, with an unchanged wide column
	`update users set tenant = tenant % 20 + 1 where id > 10`,
	`begin; update users set tenant = 3 where id = 11; update users set tenant = 4 where id = 11; update users set a = 5 where id = 11; commit`,
	`update users set id = id + 100 where id < 20`,
	`update users set id = id + 100, tenant = 7 where id = 111`,
	// a column no lookup reads
	`update tenants set name = 'n'`,
	// the mapping row goes first
	`delete from tenants where id = 4`,
	`begin; delete from tenants where id = 6; insert into tenants values (6, 3); insert into users values (400, 6); commit`,
	`begin; delete from users where tenant = 8; delete from tenants where id = 8; commit`,
	`begin; insert into users values (500, 900); truncate notes; insert into tenants values (900, 2); insert into notes values (900, 1); commit`,
	// a row comes before its mapping row, and goes with it in the same transaction
	`begin; insert into users values (600, 901); insert into notes values (901, 1); insert into tenants values (901, 2); delete from tenants where id = 901; commit`,
	`truncate tenants cascade`,
}

func TestRowsGoWhereTheirLookupSays(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"", "alter table users replica identity full;"} {
		t.Run("one by one "+identity, func(t *testing.T) {
			t.Parallel()
			f := tenants(t, 3, identity)
			f.run()
			for _, step := range tenantSteps {
				f.exec(step)
				f.catchUp()
				f.compare()
			}
		})
		t.Run("gathered "+identity, func(t *testing.T) {
			t.Parallel()
			f := tenants(t, 3, identity)
			for _, step := range tenantSteps[:len(tenantSteps)-1] {
				f.exec(step)
			}
			f.run()
			f.catchUp()
			f.compare()
		})
	}
}

// Rows whose old keys the log tells are not looked for when their keys change: what many transactions did goes to a shard in
// few statements, as do rows that stay on it.
func TestRowsWhoseKeysChangeAreMovedInBatches(t *testing.T) {
	t.Parallel()
	f := tenants(t, 3, "alter table users replica identity full;", `insert into tenants select g, nullif(g / 2, 0) from generate_series(1, 20) g`)
	for _, db := range f.shards {
		db.Exec(t, `insert into tenants select g, nullif(g / 2, 0) from generate_series(1, 20) g`)
	}
	const moves = 300
	f.exec(`insert into users select g, g % 20 + 1, 0, (select string_agg(md5(s::text), '') from generate_series(1, 100) s) from generate_series(1, 300) g`)
	f.exec(`do $$ begin for i in 1..300 loop update users set tenant = (i * 7) % 20 + 1, a = i where id = i; commit; end loop; end $$`)
	f.run()
	f.catchUp()
	f.compare()
	var batches int64
	for _, s := range f.stream.Stats() {
		batches += s.Batches
	}
	if batches >= moves { // each row that is asked for ends a batch; how many there are else is the machine's
		t.Errorf("%d batches for %d rows that move", batches, moves)
	}
}

// remappings change translations of keys that rows carry. Each leaves rows of the tenants it changes.
var remappings = []string{
	`insert into tenants select g, nullif(g / 2, 0) from generate_series(1, 20) g; insert into users select g, g % 20 + 1, 0, (select string_agg(md5(s::text), '') from generate_series(1, 100) s) from generate_series(1, 60) g;
		insert into notes select g % 20 + 1, g, 'x' from generate_series(1, 60) g`,
	`update tenants set parent = 3 where id = 4`,
	`update tenants set name = repeat('x', 5000), parent = parent + 1 where id in (5, 6)`,
	`update tenants set parent = null`,
	// back and forth, and with rows of the tenant before and after
	`begin; update tenants set parent = 3 where id = 4; update tenants set parent = null where id = 4; commit`,
	`begin; update users set a = 1 where tenant = 7; insert into users values (100, 7); update tenants set parent = 2 where id = 7; update users set a = 2 where tenant = 7; insert into users values (101, 7); delete from users where id = 100;
		update tenants set parent = 11 where id = 7; update users set id = 102 where id = 101; delete from notes where ctid = (select min(ctid) from notes where tenant = 7); update notes set a = 5 where tenant = 7; commit`,
	// rows that come to the tenant and leave it, in the transaction
	`begin; update users set tenant = 8 where id < 4; update tenants set parent = 13 where id = 8; update users set tenant = 9 where id = 2; update tenants set parent = 17 where id = 9; commit`,
	// the mapping row goes and comes, in one transaction and in two
	`begin; set constraints all deferred; delete from tenants where id = 10; insert into tenants values (10, 19); update users set a = 10 where tenant = 10; commit`,
	`delete from tenants where id = 12`,
	`insert into tenants values (12, 5); update users set a = 12 where tenant = 12; delete from users where id = 11`,
	// its key is another's, with nothing and with rows behind it
	`update tenants set id = 44, parent = 3 where id = 14`,
	`insert into tenants values (14, 16); update users set a = 14 where tenant = 14`,
	`insert into users values (200, 44); update tenants set id = 45 where id = 44`,
	`update users set tenant = 45 where tenant = 44`,
	// all of them, and many times
	`update tenants set parent = (id * 7) % 20 + 1`,
	`do $$ begin for i in 1..30 loop update tenants set parent = i % 20 + 1 where id = i % 5 + 1; update users set a = i where tenant = i % 5 + 1; end loop; end $$`,
	`truncate tenants, users, notes`,
	`insert into tenants values (1, 5); insert into users values (1, 1); update tenants set parent = 9`,
}

// The rows that carry a key move when its translation changes: in place, with whatever identity the mapping has, once and
// many times, with changes of the rows before and after it in the transaction.
func TestRowsMoveWithTheirMapping(t *testing.T) {
	t.Parallel()
	for name, also := range map[string]string{
		"DEFAULT":          `alter table tenants alter name set storage external; alter table users drop constraint users_tenant_fkey; alter table notes drop constraint notes_tenant_fkey;`,
		"FULL":             `alter table tenants replica identity full; alter table users replica identity full; alter table users drop constraint users_tenant_fkey; alter table notes drop constraint notes_tenant_fkey;`,
		"keys not told":    `alter table users drop constraint users_tenant_fkey; alter table notes drop constraint notes_tenant_fkey; --`,
		"cascade keeps it": ``,
	} {
		steps := remappings
		if name == "cascade keeps it" { // a foreign key does not let rows stay behind
			steps = append(slices.Clone(remappings[:8]), remappings[14:]...)
		}
		rig := func(t *testing.T) *following {
			f := tenants(t, 3, also)
			if name == "keys not told" {
				f.unkeyed = true
			}
			return f
		}
		t.Run(name+", one by one", func(t *testing.T) {
			t.Parallel()
			f := rig(t)
			f.run()
			for i, step := range steps {
				f.exec(step)
				f.catchUp()
				if !strings.HasPrefix(step, "delete from tenants") && !strings.HasPrefix(step, "update tenants set id") && !strings.Contains(step, "set id = 45") { // orphans stay where they are
					f.compare()
				}
				if t.Failed() {
					t.Fatalf("after step %d: %.100s", i, step)
				}
			}
		})
		t.Run(name+", gathered", func(t *testing.T) {
			t.Parallel()
			f := rig(t)
			for _, step := range steps {
				f.exec(step)
			}
			f.run()
			f.catchUp()
			f.compare()
		})
	}
}

// A lookup on a table that is itself sharded asks every shard; only one knows.
func TestALookupMayReadAShardedTable(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"", "alter table orders replica identity full;"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			f := follow(t, 3, `create table orders (id bigint primary key, tenant bigint, note text);
				create table items (id int primary key, order_id bigint, a int);`+identity, "",
				rules{sharded: map[string]string{"orders": "tenant", "items": "order_id"}, lookups: map[string]string{"items": "SELECT tenant FROM orders WHERE id = $1"}})
			f.run()
			f.exec(`insert into orders select g, g % 5 from generate_series(1, 20) g; insert into items select g, g % 20 + 1, 0 from generate_series(1, 60) g`)
			f.exec(`begin; insert into items values (100, 50); insert into orders values (50, 3); commit`)
			f.exec(`update items set order_id = order_id % 20 + 1 where id < 30; update orders set note = 'x'; update items set a = 1`)
			f.exec(`begin; delete from orders where id = 7; delete from items where order_id = 7; commit`)
			f.exec(`begin; delete from items where order_id = 8; delete from orders where id = 8; commit`)
			f.catchUp()
			f.compare("orders")
			if got, want := f.itemsWithTheirOrder(), f.source.Query(t, `select count(*) from items`)[0][0]; got != want {
				t.Errorf("%s items are with their order, of %s", got, want)
			}
			f.exec(`update orders set tenant = 4 where id = 1; update orders set tenant = tenant + 1 where id % 3 = 0; update items set a = 2`)
			f.exec(`begin; update items set order_id = 9 where id in (41, 42); update orders set tenant = 2, id = 60 where id = 9; insert into items values (101, 60), (102, 9); insert into orders values (9, 1); commit`)
			f.catchUp()
			f.compare("orders")
			if got, want := f.itemsWithTheirOrder(), f.source.Query(t, `select count(*) from items`)[0][0]; got != want {
				t.Errorf("after the orders have moved %s items are with their order, of %s", got, want)
			}
		})
	}
}

func (f *following) itemsWithTheirOrder() string {
	n := 0
	for _, db := range f.shards {
		n += len(db.Query(f.t, `select 1 from items i join orders o on o.id = i.order_id`))
	}
	return fmt.Sprint(n)
}

func TestAKeyWithoutMappingStopsTheStreamBeforeItsTransaction(t *testing.T) {
	t.Parallel()
	f := tenants(t, 2, `alter table users drop constraint users_tenant_fkey;`)
	stop := f.run()
	f.exec(`insert into tenants values (1)`)
	f.exec(`begin; insert into tenants values (2); insert into users values (1, 1), (2, 77); commit`)
	var place *sink.PlaceError
	if err := f.failure(); !errors.As(err, &place) || place.Key != "77" || place.At == 0 || place.Table.Table != "users" {
		t.Fatalf("it ended with %v", err)
	}
	stop()
	for _, db := range f.shards {
		if rows := db.Query(t, `select count(*) from tenants where id = 2 union all select count(*) from users`); rows[0][0] != "0" || rows[1][0] != "0" {
			t.Error("a part of the transaction is there")
		}
	}
}

// A row whose mapping row went and came again is found where it stands, although its key is now translated otherwise.
func TestARowPlacedByAnOlderMappingIsFound(t *testing.T) {
	t.Parallel()
	f := tenants(t, 3, `alter table users drop constraint users_tenant_fkey; alter table users replica identity full;`)
	f.run()
	a, b := f.keyOn(0, 0), f.keyOn(1, 0)
	f.exec(fmt.Sprintf(`insert into tenants values (1000, %d); insert into users values (1, 1000), (2, 1000), (3, 1000)`, a))
	f.exec(fmt.Sprintf(`begin; delete from tenants where id = 1000; insert into tenants values (1000, %d); commit; insert into users values (4, 1000)`, b))
	f.exec(`delete from users where id = 1`)
	f.exec(`update users set a = 1 where id = 2`)
	f.exec(`update users set a = 1 where id = 4; delete from users where id = 4`)
	f.catchUp()
	f.compare()
	if rows := f.shards[0].Query(t, `select id from users`); len(rows) != 0 {
		t.Errorf("the shard of the old mapping holds %v", rows)
	}
}

func TestARowWhoseMappingIsGoneStaysWhereItIs(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"", "alter table users replica identity full;"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			f := tenants(t, 3, `alter table users drop constraint users_tenant_fkey; `+identity)
			f.run()
			f.exec(`insert into tenants values (1), (2); insert into users values (1, 1), (2, 1), (3, 2)`)
			f.exec(`begin; delete from tenants where id = 1; update users set a = 1 where id = 1; commit`)
			f.exec(`update users set a = 2 where tenant = 1; update users set id = 20 where id = 2`)
			f.catchUp()
			delete(f.keys, "users")
			for shard, db := range f.shards {
				want := 0
				if shard == f.shardOf(1) {
					want = 2
				}
				if rows := db.Query(t, `select id, a from users where tenant = 1`); len(rows) != want {
					t.Errorf("shard %d holds %v", shard, rows)
				}
			}
			f.exec(`delete from users where id = 20`)
			f.exec(`update users set tenant = 1 where id = 3`)
			var place *sink.PlaceError
			if err := f.failure(); !errors.As(err, &place) || place.Key != "1" {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// The empty text is a key like any other, and NULL is none.
func TestAnEmptyKeyIsTranslatedAsAnyOther(t *testing.T) {
	t.Parallel()
	f := follow(t, 3, `create table codes (code text primary key, tenant bigint); create table uses (id int primary key, code text, a int);
		create table pairs (code text, a int); alter table pairs replica identity full`, "",
		rules{sharded: map[string]string{"uses": "code", "pairs": "code"}, omni: []string{"codes"},
			lookups: map[string]string{"uses": "SELECT tenant FROM codes WHERE code = $1", "pairs": "SELECT tenant FROM codes WHERE code = $1"}})
	for _, table := range []string{"uses", "pairs"} {
		f.keys[table] = `(select tenant from codes where code = r.code)`
	}
	f.run()
	for _, step := range []string{
		`insert into codes values ('', 7), (' ', 8), ('x', 9)`,
		`insert into uses select g, (array['', ' ', 'x'])[g % 3 + 1] from generate_series(1, 30) g; insert into pairs select code, id % 2 from uses`,
		`update uses set a = 1; update uses set code = '' where id < 5; update uses set code = 'x' where code = '' and id > 20; update pairs set a = 3 where code = ''`,
		`begin; insert into uses values (100, 'late'); insert into uses values (101, ''); insert into codes values ('late', 3); commit`,
		`delete from uses where code = '' and id > 10; delete from pairs where ctid = (select min(ctid) from pairs where code = '')`,
		`begin; delete from codes where code = ''; insert into codes values ('', 7); insert into uses values (200, ''); commit`,
		`update uses set a = 4 where code = ''; delete from pairs where code = ''`,
	} {
		f.exec(step)
		f.catchUp()
		f.compare()
	}
}

// A resumed copy is read after a mapping row has gone with its rows: what the stream still brings of those has no
// translation any more, and is not there to be placed.
func TestARowThatWentWithItsMappingBeforeAResumedCopyIsLeftOut(t *testing.T) {
	t.Parallel()
	f := tenants(t, 3, "", `insert into tenants values (950, 7), (951, 7)`)
	for _, table := range []string{"users", "tenants"} {
		f.tables[table].Forgive = ^pg.LSN(0)
	}
	f.exec(`insert into users values (1, 950, 1)`)
	f.exec(`update users set a = 2 where id = 1`)
	f.exec(`delete from tenants where id = 950`)
	for _, db := range f.shards { // as the copy found it
		db.Exec(t, `insert into tenants values (951, 7)`)
	}
	f.exec(`insert into users values (2, 951, 1)`)
	f.stream.Forgive = func(context.Context, *sink.Table, pg.LSN) error { return nil }
	f.run()
	f.catchUp()
	f.compare("users", "tenants")
}

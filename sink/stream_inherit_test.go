package sink_test

import (
	"fmt"
	"math"
	"testing"
)

// inheritSchema has parents whose rows and their children's have the same keys.
const inheritSchema = `
create table people (id int primary key, tenant bigint, note text, big text);
alter table people alter big set storage external;
create table staff (grade int, primary key (id)) inherits (people);
alter table staff alter big set storage external;
create table bosses (primary key (id)) inherits (staff);
create table logs (tenant bigint, note text); alter table logs replica identity full;
create table audit (who text) inherits (logs); alter table audit replica identity full;
create table always (id bigint generated always as identity primary key, tenant bigint, note text);
create table always_more (primary key (id)) inherits (always)`

var inheritSteps = []string{
	`insert into people select g, g, 'parent', repeat('p' || g, 1000) from generate_series(1, 20) g; insert into staff select g, g % 5, 'child', repeat('c' || g, 1000), g from generate_series(1, 30) g;
		insert into bosses select g, g % 3, 'grandchild' from generate_series(1, 10) g`,
	`insert into logs select g % 3, 'l' from generate_series(1, 9) g; insert into audit select g % 3, 'l', 'a' from generate_series(1, 9) g`,
	`insert into always (tenant, note) select g, 'x' from generate_series(1, 9) g; insert into always_more (id, tenant, note) select g, g, 'y' from generate_series(1, 9) g`,
	`update only people set note = 'one' where id < 5; update only staff set note = 'two' where id < 5; update people set note = note || '!'`,
	`update only people set tenant = tenant + 1 where id % 2 = 0; update only people set id = id + 100 where id % 3 = 0; update only staff set id = id + 200, tenant = 4 where id % 3 = 0`,
	`update only logs set note = 'n' where ctid in (select ctid from only logs where tenant = 1 limit 1); delete from only logs where ctid in (select ctid from only logs where tenant = 2 limit 1); delete from only audit where tenant = 2`,
	`update only always set id = default where id < 3; update only always set note = 'z' where id = 4; update only always_more set note = 'w'; delete from only always where id = 5`,
	`delete from only people where id in (1, 2); delete from only staff where id in (2, 4); delete from people where id = 7`,
	`truncate only people; insert into people values (5, 5, 'again')`,
	`truncate only staff, only logs`, `insert into staff values (5, 6, 'again', null, 1); insert into logs values (1, 'again')`,
	`truncate people, logs; insert into people values (1, 1, 'new'); insert into staff values (1, 2, 'new'); insert into bosses values (1, 3, 'new'); insert into audit values (1, 'new', 'x')`,
	`truncate only always; insert into always_more values (1000, 1, 'last')`,
}

// compareOnly compares each table's own rows, by plain SQL.
func (f *following) compareOnly() {
	f.t.Helper()
	for name, t := range f.tables {
		list := fmt.Sprintf(`select r::text from only %s r order by 1`, name)
		want := f.source.Query(f.t, list)
		got := map[string]int{}
		n := 0
		for _, db := range f.shards {
			for _, row := range db.Query(f.t, list) {
				got[row[0]]++
				n++
			}
		}
		for _, row := range want {
			got[row[0]]--
		}
		for _, count := range got {
			if count != 0 || n != len(want) {
				f.t.Errorf("%s: %d rows became %d, or others", t.Source, len(want), n)
				break
			}
		}
	}
}

func inheritance(t *testing.T) *following {
	return follow(t, 2, inheritSchema, "", rules{sharded: map[string]string{"people": "tenant", "staff": "tenant", "bosses": "tenant", "logs": "tenant",
		"audit": "tenant", "always": "tenant", "always_more": "tenant"}})
}

func TestTheRowsOfATableAreNotThoseOfItsChildren(t *testing.T) {
	t.Parallel()
	for name, identity := range map[string]string{"default": "", "full": `; alter table people replica identity full; alter table staff replica identity full; alter table always replica identity full`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := inheritance(t)
			f.source.Exec(t, "select 1"+identity)
			f.takeOver()
			f.run()
			for _, step := range inheritSteps {
				f.exec(step)
				f.catchUp()
				f.compareOnly()
			}
		})
	}
}

// As after a resumed copy: rows are put, taken and, where the log lacks columns, read again from the source.
func TestTheRowsOfATableAreNotThoseOfItsChildrenWhereTheStreamForgives(t *testing.T) {
	t.Parallel()
	f := inheritance(t)
	f.ready = func() {
		for _, table := range f.tables {
			if len(table.Key) > 0 {
				table.Forgive = math.MaxInt64
			}
		}
	}
	f.takeOver()
	f.run()
	for i, step := range inheritSteps {
		f.exec(step)
		f.catchUp()
		f.compareOnly()
		if i == 4 { // rows that are not on their shards, and come back by the next change
			for _, db := range f.shards {
				db.Exec(t, `delete from only people where id % 4 = 0`)
			}
			f.exec(`update only people set note = 'back' where id % 4 = 0`)
			f.catchUp()
			f.compareOnly()
		}
	}
}

package sink_test

import (
	"strings"
	"testing"

	"pgreshard/pg"
	"pgreshard/sink"
)

// partitionedSchema is a root with leaves on two levels, one of another column order, and defaults.
const partitionedSchema = `
create table events (id int, day int, tenant bigint, big text, primary key (id, day)) partition by range (day);
create table events_1 partition of events for values from (0) to (10);
create table events_2 partition of events for values from (10) to (20) partition by list (id);
create table events_2a (big text, tenant bigint, day int not null, id int not null);
alter table events_2 attach partition events_2a for values in (1, 2, 3);
create table events_2b partition of events_2 default;
create table events_x partition of events default;`

const plainEvents = `create table events (id int, day int, tenant bigint, big text, primary key (id, day))`

// otherEvents is partitioned otherwise, and has its columns in another order.
const otherEvents = `
create table events (big text, tenant bigint, day int, id int, primary key (id, day)) partition by hash (id);
create table events_h0 partition of events for values with (modulus 2, remainder 0);
create table events_h1 partition of events for values with (modulus 2, remainder 1)`

var partitionSteps = []string{
	`insert into events select g, g, g, ` + `(select string_agg(md5(s::text), '') from generate_series(1, 100) s)` + ` from generate_series(1, 25) g; insert into events values (1, 15, 1, 'x'), (2, 16, 2, 'y'), (3, 17, 3, null)`,
	`update events set big = big || 'x' where id % 3 = 0; update events set tenant = tenant + 1 where id % 2 = 0`,
	`update events set day = day + 10 where id < 8`,
	`begin; update events set day = 5 where id = 12; update events set day = 30 where id = 12; update events set tenant = 9 where id = 12; commit`,
	`delete from events where id % 5 = 0`,
	`insert into events select g, g % 20, g, 'z' from generate_series(100, 140) g`,
	`begin; insert into events values (1000, 3, 1); truncate only events_1; insert into events values (1001, 3, 1); commit`,
	`truncate events_2a`, `insert into events values (3, 12, 4), (2, 13, 5), (77, 12, 6)`, `truncate events_2`,
	`insert into events values (3, 12, 4), (77, 12, 6), (78, 500, 6); truncate events_x, events_2b`,
	`insert into events values (3, 1, 4), (77, 12, 6), (78, 500, 6)`,
}

func TestPartitionsArriveWhateverTheDestinationsAre(t *testing.T) {
	t.Parallel()
	for name, shardSchema := range map[string]string{"the same": "", "none": plainEvents, "others": otherEvents} {
		for _, identity := range []string{"default", "full"} {
			t.Run(name+", identity "+identity, func(t *testing.T) {
				t.Parallel()
				schema := partitionedSchema
				if identity == "full" {
					for _, leaf := range []string{"events_1", "events_2a", "events_2b", "events_x", "events_2", "events"} {
						schema += "alter table " + leaf + " replica identity full;"
					}
				}
				f := follow(t, 2, schema, shardSchema, rules{sharded: map[string]string{"events": "tenant"}})
				f.run()
				for _, step := range partitionSteps {
					f.exec(step)
					f.catchUp()
					f.compare()
				}
				for _, step := range partitionSteps {
					f.exec("truncate events")
					f.exec(step)
				}
				f.catchUp()
				f.compare()
			})
		}
	}
}

// Which rows a hash partition had is asked of a table that is partitioned likewise.
func TestATruncateOfAHashPartitionThatTheShardsDoNotHave(t *testing.T) {
	t.Parallel()
	const columns = `id int not null, name text, day date`
	f := follow(t, 2, `create table h (`+columns+`, primary key (id)) partition by hash (id);
		create table h0 partition of h for values with (modulus 2, remainder 0); create table h1 partition of h for values with (modulus 2, remainder 1);
		create table deep (`+columns+`) partition by range (day); create table deep_1 partition of deep for values from ('2026-01-01') to ('2027-01-01') partition by hash (lower(name), id);
		create table deep_1a partition of deep_1 for values with (modulus 3, remainder 0) partition by hash (name text_pattern_ops); create table deep_1b partition of deep_1 for values with (modulus 3, remainder 1);
		create table deep_1c partition of deep_1 for values with (modulus 3, remainder 2); create table deep_1a0 partition of deep_1a for values with (modulus 2, remainder 0);
		create table deep_1a1 partition of deep_1a for values with (modulus 2, remainder 1); create table deep_2 partition of deep default;
		alter table deep_1a0 replica identity full; alter table deep_1a1 replica identity full; alter table deep_1b replica identity full; alter table deep_1c replica identity full; alter table deep_2 replica identity full`,
		`create table h (`+columns+`, primary key (id)); create table deep (`+columns+`)`, rules{sharded: map[string]string{"h": "id", "deep": "id"}})
	f.run()
	for _, leaf := range []string{"h0", "h1", "deep_1a0", "deep_1a1", "deep_1b, deep_2", "h1, deep_1c"} {
		f.exec(`begin; truncate h, deep; insert into h select g, 'n' || g from generate_series(1, 60) g;
			insert into deep select g % 30, case when g % 7 > 0 then 'N' || g end, date '2026-06-01' + g * 10 from generate_series(1, 90) g; truncate ` + leaf + `;
			insert into h select 100 + g from generate_series(1, 9) g; commit`)
		f.catchUp()
		f.compare()
		if got := f.source.Query(t, `select count(*) from deep`)[0][0]; got == "90" && strings.HasPrefix(leaf, "deep") {
			t.Errorf("nothing was in %s", leaf)
		}
	}
}

// With several sources a TRUNCATE takes away what the source layout places on that source.
func TestATruncateOnOneOfSeveralSourcesLeavesTheRowsOfTheOthers(t *testing.T) {
	t.Parallel()
	for name, shardSchema := range map[string]string{"the same partitions": "", "no partitions": plainEvents} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := partitionedSchema
			for _, leaf := range []string{"events_1", "events_2a", "events_2b", "events_x", "events_2", "events"} {
				schema += "alter table " + leaf + " replica identity full;"
			}
			f := follow(t, 2, schema, shardSchema, rules{sharded: map[string]string{"events": "tenant"}})
			f.stream.Mine = func(_ *sink.Table, key []pg.Datum) (bool, error) {
				return key[0].Kind == pg.Text && len(key[0].Bytes) == 1, nil // tenants of one digit are the source's
			}
			for shard, db := range f.shards { // rows of another source
				db.Exec(t, `insert into events select 500 + g, g, $1 from generate_series(1, 30) g`, f.keyOn(shard, 20))
			}
			others := func() (n string) {
				for _, db := range f.shards {
					n += db.Query(t, `select count(*) from events where tenant > 9 or tenant is null`)[0][0] + " "
				}
				return n
			}
			mine := func() {
				t.Helper()
				want := f.source.Query(t, `select id, day, tenant from events order by 1, 2`)
				n := 0
				for _, db := range f.shards {
					n += len(db.Query(t, `select id from events where tenant <= 9`))
				}
				if n != len(want) {
					t.Errorf("the shards hold %d rows of the source, which has %d", n, len(want))
				}
			}
			was := others()
			f.run()
			for _, step := range []string{`insert into events select g, g, g % 9 from generate_series(1, 30) g`, `truncate events_1`, `truncate events_2b`,
				`truncate events_2a, events_x`, `insert into events select g, g, g % 9 from generate_series(1, 30) g on conflict do nothing`, `truncate events`} {
				f.exec(step)
				f.catchUp()
				mine()
			}
			if now := others(); now != was {
				t.Errorf("the shards held %s rows of another source, now %s", was, now)
			}
		})
	}
}

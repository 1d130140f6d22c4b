package sink_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/pgtest"
)

// While a shard is lost the others get all that is theirs, far more than any queue holds, in the same run; then all that
// waited for it comes to it.
func TestTheOthersGoOnWhileAShardIsLost(t *testing.T) {
	t.Parallel()
	const schema = `create table notes (id bigint primary key, tenant bigint, note text);
		create table loose (id bigint primary key, tenant bigint, note text);
		create table places (id bigint primary key, name text);
		create table tenants (id bigint primary key, parent bigint);
		create table users (id bigint primary key, tenant bigint, name text)`
	f := follow(t, 3, schema+`; alter table notes replica identity full`, schema, rules{
		sharded: map[string]string{"notes": "tenant", "loose": "tenant", "users": "tenant"},
		lookups: map[string]string{"users": "SELECT COALESCE(parent, id) FROM tenants WHERE id = $1"},
		omni:    []string{"places", "tenants"},
	})
	f.keys["users"] = "(select coalesce(m.parent, m.id) from tenants m where m.id = r.tenant)"
	f.queue = 1 << 20
	relay := pgtest.NewRelay(t, pgtest.Shared(t).Addr())
	f.via[1] = f.shards[1].Via(relay)
	var told atomic.Int32
	f.ready = func() {
		f.stream.Away = func(shard layout.Shard, err error) { told.Add(1); t.Logf("%s is lost: %v", shard, err) }
	}
	f.takeOver()
	f.run()
	f.exec(`insert into tenants select g, nullif(g % 5, 0) + 100 from generate_series(1, 200) g;
		insert into notes select g, g % 50, 'old' from generate_series(1, 2000) g;
		insert into loose select g, g % 50, repeat(md5(g::text), 100) from generate_series(1, 500) g`)
	f.catchUp()
	relay.Refuse(true)
	relay.Cut()

	for n := range 30 { // 30 MB
		f.exec(fmt.Sprintf(`insert into notes select 10000 + %[1]d * 100 + g, g, (select string_agg(md5((g * h + %[1]d)::text), '') from generate_series(1, 320) h) from generate_series(1, 100) g;
			insert into places values (%[1]d, 'place');
			update notes set tenant = tenant + 1, note = 'moved' where id %% 100 = %[1]d and id <= 2000;
			delete from notes where id %% 100 = 99 - %[1]d and id <= 2000;
			insert into tenants values (1000 + %[1]d, %[1]d);
			insert into users values (%[1]d, 1000 + %[1]d, 'user')`, n))
	}
	applied := f.stream.Applied()
	f.exec(`create table spots (k bigint) partition by hash (k)`)
	for shard, db := range f.shards {
		if shard == 1 {
			continue
		}
		want := f.source.Query(t, fmt.Sprintf(`
			select (select count(*) from notes where satisfies_hash_partition('spots'::regclass, 3, %[1]d, tenant)),
				(select sum(hashtextextended(note, id)) from notes where satisfies_hash_partition('spots'::regclass, 3, %[1]d, tenant)),
				(select count(*) from places), (select count(*) from tenants),
				(select count(*) from users u join tenants m on m.id = u.tenant where satisfies_hash_partition('spots'::regclass, 3, %[1]d, coalesce(m.parent, m.id)))`, shard))[0]
		var have []string
		for end := time.Now().Add(streamPatience); fmt.Sprint(have) != fmt.Sprint(want); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("shard %d has %v, not %v", shard, have, want)
			}
			have = db.Query(t, `select (select count(*) from notes), (select sum(hashtextextended(note, id)) from notes), (select count(*) from places), (select count(*) from tenants), (select count(*) from users)`)[0]
		}
	}
	f.mu.Lock()
	runs := f.runs
	f.mu.Unlock()
	if runs != 1 || told.Load() != 1 {
		t.Errorf("the others went on in run %d, %d losses were told", runs, told.Load())
	}
	if f.stream.Applied() != applied {
		t.Errorf("the lowest checkpoint went from %s to %s without a shard", applied, f.stream.Applied())
	}
	// What the lost shard has a say in waits for it: a column that is only there.
	f.exec(`update loose set tenant = tenant + 1; insert into places values (1000, 'late')`)
	relay.Refuse(false)
	f.catchUp()
	f.compare()
}

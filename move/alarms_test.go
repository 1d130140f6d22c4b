package move_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/pgtest"
)

// The tables that are hammered: a0 to a4 go by a mapping whose rows change, a5 to a9 by their own key, and zoo, whose columns are of every kind.
// Rows from 9,000,000 on are nobody's.
const (
	alarmTable = `create table a%[1]d (id bigint primary key, tenant bigint not null, n int not null, small text, big text);
		alter table a%[1]d alter big set storage external;
		insert into a%[1]d select g, g %% 60 + 1, 0, '', repeat(md5(g::text), 90) from generate_series(1, 400) g;
		insert into a%[1]d select 9000000 + g, 900000 + g, 7, 'x', repeat(md5(g::text), 90) from generate_series(1, 30) g;`
	alarmSchema = `create table parents (id bigint primary key, parent bigint not null);
		insert into parents select g, g from generate_series(1, 60) g union all select 900000 + g, 900000 + g from generate_series(1, 30) g;
		create table zoo (id bigint primary key, tenant bigint not null, n int not null, f float8, num numeric, i8 int8, ts timestamptz, tm time, iv interval, js jsonb, by bytea,
			ar int[], ma int[], txt text, small text, big text);
		insert into zoo select g, 900000 + g - 9000000, g - 9000000, 0, 1.0, 1, '2020-01-01', '12:00', '1 month', '{"a": 1, "b": null}', '\x00ff', '{1,2}', '{1,2}', '', 'x', repeat(md5(g::text), 90)
			from generate_series(9000001, 9000030) g;
		insert into zoo select g, g % 60 + 1, 0 from generate_series(1, 400) g;
		insert into countries values ('ZA', 'of nobody', 1), ('ZB', 'of nobody', 1), ('ZC', 'of nobody', 1);`
	// alarmWriter makes one transaction of a writer, who has rows of his own, and says which kind.
	alarmWriter = `create function write_one(writer int, writers int) returns int language plpgsql as $$
declare
  t text := 'a' || floor(random() * 10)::int; dice float := random(); own int := floor(random() * 400 / writers)::int * writers + writer + 1;
begin
  if dice < 0.005 then
    update parents set parent = floor(random() * 60)::int + 1 where id = own % 60 + 1; return 1;
  elsif dice < 0.15 then
    execute format('update %I set tenant = $2 where id = $1', t) using own, floor(random() * 60)::int + 1; return 2;
  elsif dice < 0.3 then
    execute format('update %I set big = repeat(md5(random()::text), 90) where id = $1', t) using own; return 3;
  elsif dice < 0.6 then
    execute format('update %I set n = n + 1 where id = $1', t) using own; return 4;
  elsif dice < 0.7 then
    update zoo set f = random(), num = random(), js = jsonb_build_object('at', random()), ar = array[own], big = repeat(md5(random()::text), 90) where id = own; return 5;
  elsif dice < 0.8 then
    execute format('delete from %I where id = $1', t) using own; return 6;
  end if;
  execute format('insert into %I values ($1, $2, 0, null, repeat(md5(random()::text), 90)) on conflict do nothing', t) using own, floor(random() * 60)::int + 1; return 7;
end $$;`
	alarmKinds = 7
)

// hammer is writers who keep a rate as long as their server can; where they are gentle, as long as the stream can.
type hammer struct {
	stop  context.CancelFunc
	all   sync.WaitGroup
	wrote [alarmKinds + 1]atomic.Int64
}

func (h *hammer) commits() (n int64) {
	for i := range h.wrote {
		n += h.wrote[i].Load()
	}
	return n
}

func newHammer(t *testing.T, db *pgtest.DB, rate float64, keepsUp func() bool) *hammer {
	const writers = 8
	ctx, stop := context.WithCancel(t.Context())
	h := &hammer{stop: stop}
	for w := range writers {
		conn := db.Conn(t)
		h.all.Go(func() {
			for due := time.Now(); ctx.Err() == nil; due = due.Add(time.Duration(writers / rate * float64(time.Second))) {
				select {
				case <-time.After(time.Until(due)):
				case <-ctx.Done():
					return
				}
				if !keepsUp() {
					continue
				}
				kind := 0
				if err := conn.QueryRow(t.Context(), `select write_one($1, $2)`, w, writers).Scan(&kind); err != nil {
					t.Error(err)
					return
				}
				h.wrote[kind].Add(1)
			}
		})
	}
	return h
}

// alarmsRig is a move of 19 tables that is held before its cutover, under a hammer.
func alarmsRig(t *testing.T, rate float64, gentle bool) (*rig, *held, *hammer) {
	r := newRig(t, 1, 3, pgtest.WorkloadOptions{Lookups: true})
	db, d := r.sources[0], &r.config.Destination
	db.Exec(t, alarmSchema+alarmWriter)
	d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "zoo", Columns: []string{"tenant"}})
	d.Spec.Omni[0].Tables = append(d.Spec.Omni[0].Tables, "parents")
	for n := range 10 {
		db.Exec(t, fmt.Sprintf(alarmTable, n))
		table := layout.ShardedTable{Database: d.Database, Name: fmt.Sprintf("a%d", n), Columns: []string{"tenant"}}
		if n < 5 {
			table.LookupQuery = `select parent from parents where id = $1`
		}
		if n > 0 { // of the other an identity without the sharding key is searched for
			db.Exec(t, fmt.Sprintf(`alter table a%d replica identity full`, n))
		}
		d.Spec.Tables = append(d.Spec.Tables, table)
	}
	m := r.hold(t.Context(), r.move())
	return r, m, newHammer(t, db, rate, func() bool {
		s := m.Snapshot().Streams
		return !gentle || len(s) == 1 && s[0].LagSeconds != nil && *s[0].LagSeconds < 1
	})
}

// Comparisons under writers who change keys, mappings and large values of more than ten tables find nothing where nothing is, and then exactly what
// was done to rows of nobody, of every kind. ALARM_RUNS makes it long: then the rate is to be kept, too.
func TestNoComparisonFindsWhatIsNotThere(t *testing.T) {
	t.Parallel()
	runs, rate, long := 2, 100.0, os.Getenv("ALARM_RUNS") != ""
	if long {
		rate = 500
		n, err := strconv.Atoi(os.Getenv("ALARM_RUNS"))
		if err != nil || n < 1 {
			t.Fatalf("ALARM_RUNS is %q, not a number above 0", os.Getenv("ALARM_RUNS"))
		}
		runs = n
	}
	r, m, h := alarmsRig(t, rate, !long)
	var took time.Duration
	var wrote int64
	for run := range runs {
		began, before := time.Now(), h.commits()
		report, err := m.VerifyNow(t.Context())
		if err != nil || !report.Clean() {
			t.Fatalf("run %d: %v\n%+v", run+1, err, report)
		}
		for _, table := range report.Tables {
			if table.Rows == 0 || table.ReadAt != nil {
				t.Errorf("run %d did not read all of %s: %+v", run+1, table.Table, table)
			}
		}
		took, wrote = took+time.Since(began), wrote+h.commits()-before
	}
	speed := float64(wrote) / took.Seconds()
	t.Logf("%d comparisons in %s, none with a false alarm; meanwhile %.0f transactions a second", runs, took.Round(time.Millisecond), speed)
	if wrote == 0 || long && speed < 0.98*rate {
		t.Errorf("writers made %.0f transactions a second while it was compared, not %.0f", speed, rate)
	}
	for kind := 1; kind <= alarmKinds; kind++ { // the rarest is one of 200
		if h.wrote[kind].Load() == 0 && (kind > 1 || h.commits() > 2000) {
			t.Errorf("no transaction of kind %d was made", kind)
		}
	}
	r.harmsOfEveryKind(m, h)
	h.stop()
	h.all.Wait()
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	r.compare()
	places := newPlaces(t)
	for n, table := range []string{"zoo", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"} {
		if err := pgtest.SameRows(t.Context(), r.conns(r.sources), r.conns(r.shards), table, pgtest.RowsOptions{}); err != nil {
			t.Error(err)
		}
		key := `tenant`
		if n > 0 && n < 6 {
			key = `(select parent from parents where id = tenant)`
		}
		for shard, db := range r.shards {
			for _, row := range db.Query(t, fmt.Sprintf(`select distinct %s from %s`, key, table)) {
				if at, err := places.of(t.Context(), "bigint", row[0], len(r.shards)); err != nil || at != shard {
					t.Errorf("%s has rows of key %s on shard %d, not %d: %v", table, row[0], shard, at, err)
				}
			}
		}
	}
	if err := pgtest.SameRows(t.Context(), r.conns(r.sources), r.conns(r.shards), "parents", pgtest.RowsOptions{Omni: true}); err != nil {
		t.Error(err)
	}
}

// harmsOfEveryKind does harm of every kind to rows of nobody, each a row of its own, and looks that a comparison beside the writers names exactly those,
// and that a repair mends them.
func (r *rig) harmsOfEveryKind(m *held, h *hammer) {
	r.t.Helper()
	t := r.t
	want := map[string][]string{}
	finds := func(table, what string) { want["public."+table] = append(want["public."+table], what) }
	at := func(table string, id int) (home, other *pgtest.DB) {
		return r.with(fmt.Sprintf(`select from %s where id = %d`, table, id))
	}
	const first = 9000000
	for i, column := range []struct{ name, harm string }{
		{"f", `'-0'::float8`}, {"num", `1.00`}, {"i8", `4294967297`}, {"ts", `ts + interval '1 microsecond'`}, {"tm", `tm + interval '1 microsecond'`},
		{"iv", `'30 days'`}, {"js", `'{"a": 1}'`}, {"by", `'\x00fe'`}, {"ar", `'{2,1}'`}, {"ma", `'{{1,2}}'`}, {"txt", `null`}, {"small", `'x '`},
		{"big", `overlay(big placing 'z' from 2000)`}, {"n", `n # 1`},
	} {
		id := first + 1 + i
		home, _ := at("zoo", id)
		behindItsBack(t, home, fmt.Sprintf(`update zoo set %s = %s where id = %d`, column.name, column.harm, id))
		finds("zoo", fmt.Sprintf("different id=%d [%s]", id, column.name))
	}
	for id, n := range map[int]int{first + 21: 22, first + 22: 21} { // two rows that swap a value
		home, _ := at("zoo", id)
		behindItsBack(t, home, fmt.Sprintf(`update zoo set n = %d where id = %d`, n, id))
		finds("zoo", fmt.Sprintf("different id=%d [n]", id))
	}
	home, _ := at("a5", first+1)
	behindItsBack(t, home, `delete from a5 where id = 9000001`)
	finds("a5", "missing id=9000001 []")
	home, _ = at("a5", first+2)
	behindItsBack(t, home, `insert into a5 select 9500000, tenant, n, small, big from a5 where id = 9000002`)
	finds("a5", "extra id=9500000 []")
	home, _ = at("a5", first+3)
	behindItsBack(t, home, `update a5 set id = 9500001 where id = 9000003`)
	finds("a5", "missing id=9000003 []")
	finds("a5", "extra id=9500001 []")
	for _, table := range []string{"a6", "a0"} { // on a shard that its key, or what its key is translated into, does not name
		home, other := at(table, first+4)
		behindItsBack(t, other, fmt.Sprintf(`insert into %s select 9000004, 900004, n, small, repeat(md5('4'), 90) from %[1]s where id between 9000001 and 9000030 limit 1`, table))
		behindItsBack(t, home, fmt.Sprintf(`delete from %s where id = 9000004`, table))
		finds(table, "misplaced tenant=900004 []")
	}
	_, other := at("a7", first+5)
	behindItsBack(t, other, `insert into a7 select 9000005, 900005, n, small, repeat(md5('5'), 90) from a7 where id between 9000001 and 9000030 limit 1`)
	finds("a7", "doubled id=9000005 []")
	finds("a7", "misplaced tenant=900005 []")
	behindItsBack(t, r.shards[0], `update countries set name = 'of Nobody' where code = 'ZA'`)
	finds("countries", "different code=ZA [name]")
	behindItsBack(t, r.shards[1], `delete from countries where code = 'ZB'`)
	finds("countries", "missing code=ZB []")
	behindItsBack(t, r.shards[2], `insert into countries values ('ZZ', 'of nobody', 1)`)
	finds("countries", "extra code=ZZ []")
	behindItsBack(t, r.shards[2], `update parents set parent = parent + 1 where id = 900030`)
	finds("parents", "different id=900030 [parent]")
	event := r.shards[0].Query(t, `select tenant_id, id, kind, payload, version from events order by id limit 1`)[0]
	behindItsBack(t, r.shards[0], `delete from events where ctid = (select ctid from events where id = $1 limit 1)`, event[1])
	finds("events", "missing # []")
	behindItsBack(t, r.shards[1], `insert into events select * from events order by id limit 1`)
	finds("events", "doubled # []")

	r.sources[0].Exec(t, `delete from parents where id = 900029`) // rows whose key has no mapping row any more
	for n := range 5 {
		finds(fmt.Sprintf("a%d", n), "misplaced tenant=900029 []")
	}
	before := h.commits()
	report, err := m.VerifyNow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.commits() == before {
		t.Error("nobody wrote while it was compared")
	}
	for _, table := range report.Tables {
		var found []string
		for _, f := range table.Keys {
			key := f.Key
			if strings.HasPrefix(key, "#") {
				key = "#"
			}
			found = append(found, fmt.Sprintf("%s %s %v", f.What, key, f.Columns))
		}
		slices.Sort(found)
		slices.Sort(want[table.Table])
		if !slices.Equal(found, want[table.Table]) || int(table.Differences()) != len(found) {
			t.Errorf("%s: found %d, named\n%s\nand not\n%s", table.Table, table.Differences(), strings.Join(found, "\n"), strings.Join(want[table.Table], "\n"))
		}
	}
	r.sources[0].Exec(t, `insert into parents values (900029, 900029)`)
	behindItsBack(t, r.shards[0], `insert into events values ($1::text::uuid, $2::text::bigint, $3, $4::text::jsonb, $5::text::bigint)`, event[0], event[1], event[2], event[3], event[4])
	behindItsBack(t, r.shards[1], `delete from events where ctid = (select max(ctid) from events where id = (select min(id) from events))`)
	done, err := m.Repair(t.Context())
	if err != nil || done.Before.Clean() || !done.After.Clean() {
		t.Errorf("repair: %v\n%+v", err, done)
	}
}

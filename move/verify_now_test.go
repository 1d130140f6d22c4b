package move_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/verify"
	"pgreshard/verify/fanout"
)

// Beside writers who never pause, a comparison names exactly the rows that were changed behind the stream's back, and nothing
// where there are none; what it finds keeps the cutover away until a later one finds nothing.
func TestAComparisonBesideWritersIsExact(t *testing.T) {
	t.Parallel()
	const from = 2
	r := newRig(t, from, 3, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true})
	// Rows of no writer, 30 of each kind, which any shard may hold.
	for n, db := range r.sources {
		db.Exec(t, fmt.Sprintf(`insert into orders (id, tenant_id, status, version) select 5000000 + %[1]d * 100 + g, t.id, 'of no writer', 1 from generate_series(1, 30) g join lateral
				(select id from tenants order by id offset g %% (select count(*) from tenants) limit 1) t on true;
			insert into order_items select id, 1, 10, 1 from orders where id > 5000000`, n))
	}
	r.config.Checks = besideWriters()
	stop := r.write()
	m := r.hold(t.Context(), r.move())
	compare := func() *verify.Report {
		t.Helper()
		report, err := m.VerifyNow(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.checkedAlike(report)
		if len(report.At) != from {
			t.Errorf("it is as of %q", report.At)
		}
		return report
	}
	for range 3 {
		if report := compare(); !report.Clean() {
			t.Fatalf("found where nothing is: %+v", report.Tables)
		}
	}
	for n, kind := range []struct {
		what  verify.What
		table string
		harm  string // one row of a shard
		mend  string
		finds int64
	}{
		{verify.Different, "public.orders", `update orders set status = 'harmed' where id = $1`, `update orders set status = 'of no writer' where id = $1`, 1},
		{verify.Missing, "public.order_items", `delete from order_items where order_id = $1`, `insert into order_items values ($1, 1, 10, 1)`, 1},
		{verify.Extra, "public.order_items", `insert into order_items values ($1, 2, 10, 1)`, `delete from order_items where order_id = $1 and line = 2`, 1},
		{verify.Different, "public.countries", `update countries set name = name || '!' where code = 'ZZ' and $1::bigint > 0`, `update countries set name = rtrim(name, '!') where code = 'ZZ' and $1::bigint > 0`, 1},
	} {
		if kind.table == "public.countries" {
			r.sources[0].Exec(t, `insert into countries values ('ZZ', 'of no writer', 1)`)
			for _, db := range r.sources[1:] {
				db.Exec(t, `insert into countries values ('ZZ', 'of no writer', 1)`)
			}
			compare() // and it has come
		}
		id := ""
		shard := slices.IndexFunc(r.shards, func(db *pgtest.DB) bool {
			rows := db.Query(t, `select id from orders where id > 5000000 order by id limit 1`)
			if len(rows) > 0 {
				id = rows[0][0]
			}
			return len(rows) > 0
		})
		behindItsBack(t, r.shards[shard], kind.harm, id)
		report := compare()
		for _, table := range report.Tables {
			if table.Table != kind.table {
				if table.State != verify.Clean {
					t.Errorf("%s of %s: also %+v", kind.what, kind.table, table)
				}
				continue
			}
			if table.State != verify.Differs || table.Differences() != kind.finds || len(table.Keys) != 1 || table.Keys[0].What != kind.what ||
				table.Keys[0].Key != "code=ZZ" && !strings.Contains(table.Keys[0].Key, "id="+id) {
				t.Errorf("%s of %s, id %s: %+v", kind.what, kind.table, id, table)
			}
		}
		if s := m.Snapshot(); s.SafeToCutOver.OK || !strings.Contains(strings.Join(s.SafeToCutOver.Because, "; "), "the last comparison found 1 differences, in "+kind.table) || s.Verify.State != "different" {
			t.Errorf("after a difference: %+v, %+v", s.SafeToCutOver, s.Verify)
		}
		var not *move.NotReadyError
		if _, err := m.Cutover(t.Context(), move.CutoverOptions{}); !errors.As(err, &not) {
			t.Fatalf("a cutover after a difference: %v", err)
		}
		if n%2 == 1 {
			r.repairs(m, kind.table, 1)
		} else {
			behindItsBack(t, r.shards[shard], kind.mend, id)
		}
		if report := compare(); !report.Clean() {
			t.Errorf("mended: %+v", report.Tables)
		}
	}
	r.mendsManyAtOnce(m)
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	stop()
	if e := r.proven(m.Move); len(e.Repairs) < 5 || e.Repairs[0].Written != 1 {
		t.Errorf("repairs in the report: %+v", e.Repairs)
	}
	for _, db := range r.shards {
		db.Exec(t, `delete from orders where id > 5000000; delete from countries where code = 'ZZ'`)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

// besideWriters are checks of tables that are written all the time, of every kind of rule.
func besideWriters() []move.Check {
	return []move.Check{
		{Table: "orders", Aggregates: []string{"count", "sum(version)", "avg(version)", "max(placed_at)"}, GroupBy: []string{"status"}},
		{Table: "public.order_items", Aggregates: []string{"count", "sum(amount)", "avg(amount)", "min(amount)"}},
		{Table: "events", Aggregates: []string{"count", "max(id)", "count(payload)"}, GroupBy: []string{"kind"}, Where: "id % 2 = 0"},
		{Table: "countries", Aggregates: []string{"count"}, GroupBy: []string{"name"}, Where: "code = 'ZZ'"},
		{Table: "users", Aggregates: []string{"count", "min(email)"}, Keys: [][]string{{"6"}}},
	}
}

// checkedAlike looks whether the checks of a comparison differ where its rows do, and nowhere else, and whom they asked.
func (r *rig) checkedAlike(report *verify.Report) {
	r.t.Helper()
	seen := 0
	for _, table := range report.Tables {
		differ := 0
		for _, c := range table.Checks {
			seen++
			if c.State == fanout.Differs {
				differ++
			}
			if c.State == fanout.Partial || len(c.Lines) == 0 && table.Table != "public.countries" {
				r.t.Errorf("check of %s: %+v", table.Table, c)
			}
			sources, shards := len(r.sources), len(r.shards)
			switch table.Table {
			case "public.countries":
				sources, shards = 1, 1
			case "public.users": // of one key
				sources, shards = 1, 1
				if rows := r.shards[c.Destination.Asked[0].Shard].Query(r.t, `select 1 from users where tenant_id = 6 limit 1`); len(rows) != 1 {
					r.t.Errorf("the rows of the key are not on shard %d", c.Destination.Asked[0].Shard)
				}
			}
			if len(c.Source.Asked) != sources || len(c.Destination.Asked) != shards {
				r.t.Errorf("check of %s asked %+v and %+v", table.Table, c.Source.Asked, c.Destination.Asked)
			}
		}
		rows := table.Missing+table.Extra+table.Different > 0
		if len(table.Checks) > 0 && (differ > 0) != rows || differ > 1 {
			r.t.Errorf("%d checks of %s differ: %+v", differ, table.Table, table)
		}
	}
	if want := len(besideWriters()) - 1 + len(r.shards); seen != want { // one of countries for each copy
		r.t.Errorf("%d checks, want %d", seen, want)
	}
}

// repairs has the worker mend what was done to rows of one table.
func (r *rig) repairs(m *held, table string, rows int64) *move.RepairReport {
	r.t.Helper()
	done, err := m.Repair(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	touched := int64(0)
	for _, d := range done.Mended {
		touched += max(d.Written, d.Removed)
		if table != "" && d.Table != table {
			r.t.Errorf("rows of %s were mended, not of %s alone: %+v", d.Table, table, done.Mended)
		}
	}
	if done.Before.Clean() || !done.After.Clean() || touched != rows {
		r.t.Errorf("before %+v\nmended %+v\nafter %+v", done.Before.Tables, done.Mended, done.After.Tables)
	}
	return done
}

// mendsManyAtOnce does harm of every kind to several tables and shards and has all of it mended in one go.
func (r *rig) mendsManyAtOnce(m *held) {
	r.t.Helper()
	t := r.t
	var ids [][]string // by shard, orders of no writer
	for _, db := range r.shards {
		var list []string
		for _, row := range db.Query(t, `select id from orders where id > 5000000 order by id limit 3`) {
			list = append(list, row[0])
		}
		ids = append(ids, list)
	}
	from := slices.IndexFunc(ids, func(list []string) bool { return len(list) == 3 })
	to := (from + 1) % len(r.shards)
	for _, db := range r.sources { // what is to be known of rows to put them elsewhere
		db.Exec(t, `update orders set placed_at = '2020-01-01', note = 'a''b\' where id in ($1, $2)`, ids[from][0], ids[from][1])
	}
	if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() { // and it has come
		t.Fatalf("%+v, %v", report, err)
	}
	// A row on the wrong shard, one on two, one with another value; a row of a copy gone; rows there are not on the source.
	for _, id := range ids[from][:2] {
		tenant := r.shards[from].Query(t, `select tenant_id from orders where id = $1`, id)[0][0]
		behindItsBack(t, r.shards[to], `insert into orders values ($1, $2, 'of no writer', '2020-01-01', 'a''b\', 1)`, id, tenant)
	}
	behindItsBack(t, r.shards[from], `delete from orders where id = $1`, ids[from][0])
	behindItsBack(t, r.shards[from], `update orders set version = -1, note = 'x' where id = $1`, ids[from][2])
	behindItsBack(t, r.shards[to], `delete from countries where code = 'ZZ'`)
	behindItsBack(t, r.shards[from], `insert into users values (1, 999999, 'nobody', null, 1)`)
	done := r.repairs(m, "", 6)
	if found := done.Before.Unclean(); !slices.Equal(found, []string{"public.countries", "public.order_items", "public.orders", "public.users"}) {
		t.Errorf("differences were found in %v", found)
	}
	var e *move.RepairError
	behindItsBack(t, r.shards[to], `update events set kind = kind || '!' where ctid = (select min(ctid) from events where id % 1000 = 0)`)
	if _, err := m.Repair(t.Context()); !errors.As(err, &e) || !strings.Contains(err.Error(), "public.events has no key") {
		t.Errorf("a table without key: %v", err)
	}
	behindItsBack(t, r.shards[to], `update events set kind = rtrim(kind, '!') where kind like '%!'`)
	if report, err := m.VerifyNow(t.Context()); err != nil || !report.Clean() {
		t.Errorf("after all: %+v, %v", report, err)
	}
}

// behindItsBack writes to a shard as nobody is stopped from.
func behindItsBack(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	conn := db.Conn(t)
	_, err := conn.Exec(t.Context(), `set session_replication_role = replica`)
	if err != nil {
		t.Fatal(err)
	}
	if tag, err := conn.Exec(t.Context(), sql, args...); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%v rows, %v", tag.RowsAffected(), err)
	}
}

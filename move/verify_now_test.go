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
)

// Beside writers who never pause, a comparison names exactly the rows that were changed behind the stream's back, and nothing
// where there are none; what it finds keeps the cutover away until a later one finds nothing.
func TestAComparisonBesideWritersIsExact(t *testing.T) {
	t.Parallel()
	for _, from := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d to 3", from), func(t *testing.T) {
			r := newRig(t, from, 3, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true})
			// Rows of no writer, 30 of each kind, which any shard may hold.
			for n, db := range r.sources {
				db.Exec(t, fmt.Sprintf(`insert into orders (id, tenant_id, status, version) select 5000000 + %[1]d * 100 + g, t.id, 'of no writer', 1 from generate_series(1, 30) g join lateral
						(select id from tenants order by id offset g %% (select count(*) from tenants) limit 1) t on true;
					insert into order_items select id, 1, 10, 1 from orders where id > 5000000`, n))
			}
			stop := r.write()
			m := r.hold(t.Context(), r.move())
			compare := func() *verify.Report {
				t.Helper()
				report, err := m.VerifyNow(t.Context())
				if err != nil {
					t.Fatal(err)
				}
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
			for _, kind := range []struct {
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
				}
				id := ""
				shard := slices.IndexFunc(r.shards, func(db *pgtest.DB) bool {
					rows := db.Query(t, `select id from orders where id > 5000000 order by id limit 1`)
					if len(rows) > 0 {
						id = rows[0][0]
					}
					return len(rows) > 0
				})
				compare() // what was just written has come
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
				behindItsBack(t, r.shards[shard], kind.mend, id)
				if report := compare(); !report.Clean() {
					t.Errorf("mended: %+v", report.Tables)
				}
			}
			if err := m.goOn(); err != nil {
				t.Fatal(err)
			}
			stop()
			for _, db := range r.shards {
				db.Exec(t, `delete from orders where id > 5000000; delete from countries where code = 'ZZ'`)
			}
			if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
				t.Error(err)
			}
			r.placed()
		})
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

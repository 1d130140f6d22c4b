package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/verify"
)

// heldAtThird holds who notes that a third table was found equal, until the lock is free.
const heldAtThird = `
create schema gates;
create function gates.third() returns trigger language plpgsql as $$
begin
  if (select count(*) from jsonb_object_keys(new.detail -> 'proving' -> 'tables')) = 3 then
    perform pg_advisory_lock_shared(7312);
  end if;
  return new;
end $$;
create trigger third before update on pgreshard.move for each row execute function gates.third();
alter table pgreshard.move enable always trigger third`

// rowOf changes a row of a table that no writer has, or has no more, behind everybody's back.
var rowOf = map[string]string{
	"public.users": "email", "public.orders": "status", "public.order_items": "version", "public.documents": "title",
	"public.events": "kind", "public.tenants": "name", "public.countries": "name",
}

// A comparison whose worker is killed is gone on with by the next: tables that were found equal are not read again, and what was changed
// in them since, while no worker ran too, is found all the same, exactly it.
func TestAVerificationThatWasKilledGoesOnTableByTable(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 150, Lookups: true, KeyChanges: true, NewTenants: true}, "[cutover]\nreverse = false\n")
	stop := r.write()
	first := r.start("migrate", "--hold")
	r.awaitSafe(first)
	home := r.shards[0]
	home.Exec(t, heldAtThird)
	gate := home.Conn(t)
	if _, err := gate.Exec(t.Context(), `select pg_advisory_lock(7312)`); err != nil {
		t.Fatal(err)
	}
	asking := r.start("verify")
	for len(home.Query(t, `select from pg_locks where locktype = 'advisory' and objid = 7312 and not granted and database = (select oid from pg_database where datname = current_database())`)) == 0 {
		select {
		case <-asking.ended:
			t.Fatalf("it was not held: %s", asking.both.String())
		default:
			pause(t.Context())
		}
	}
	if err := r.load.Committed(t.Context(), 100); err != nil { // changes that the tables found equal already do not have
		t.Fatal(err)
	}
	first.kill()
	asking.wait(t)
	stop()
	// What waits is ended, as the next worker would end it.
	home.Exec(t, `select pg_terminate_backend(pid, 60000) from pg_locks where locktype = 'advisory' and objid = 7312 and not granted and database = (select oid from pg_database where datname = current_database())`)
	if _, err := gate.Exec(t.Context(), `select pg_advisory_unlock(7312)`); err != nil {
		t.Fatal(err)
	}
	home.Exec(t, `drop schema gates cascade`)

	var s move.Status
	r.json(&s, "status")
	var equal []string
	for _, table := range s.Verify.Verified {
		equal = append(equal, table.Table)
		if len(table.At) != 1 || !strings.Contains(table.At[0], "/") {
			t.Errorf("found equal: %+v", table)
		}
	}
	if len(equal) != 2 || s.Verify.TablesTotal != 7 || !s.Verify.Interrupted {
		t.Fatalf("after the kill: %+v", s.Verify)
	}
	if _, out, _ := r.run("status"); !strings.Contains(out, "verify: was interrupted when 2 of 7 tables were found equal; pgreshard verify goes on\n") || !strings.Contains(out, "verify: "+equal[0]+" at ") {
		t.Errorf("status: %s", out)
	}
	others := slices.DeleteFunc(pgtest.WorkloadTables(), func(table string) bool { return slices.Contains(equal, "public."+table) })
	harmed := map[string]bool{"public." + others[0]: true}
	for _, table := range equal {
		harmed[table] = true
	}
	for table := range harmed { // while no worker runs
		r.harm(table)
	}
	scans := func() map[string]string {
		all := map[string]string{}
		for len(r.sources[0].Query(t, `select from pg_stat_activity where application_name like 'pgreshard %' and datname = current_database()`)) > 0 {
			pause(t.Context())
		}
		for _, row := range r.sources[0].Query(t, `select 'public.' || relname, seq_scan from pg_stat_user_tables where schemaname = 'public'`) {
			all[row[0]] = row[1]
		}
		return all
	}
	before := scans()
	t.Logf("found equal before the kill: %v; harmed: %v", equal, slices.Sorted(maps.Keys(harmed)))

	second := r.start("migrate", "--hold")
	r.awaitSafe(second)
	code, out, said := r.run("verify", "--json")
	var tables []verify.TableReport
	if err := json.Unmarshal([]byte(out), &tables); err != nil || code != exitCheck || len(tables) != 7 {
		t.Fatalf("%d, %v\n%s", code, err, said)
	}
	for _, table := range tables {
		if slices.Contains(equal, table.Table) != (table.ReadAt != nil) && table.Table != "public.events" { // it has no key: any change has all of it read
			t.Errorf("%s was read whole as of %v", table.Table, table.ReadAt)
		}
		if table.State == verify.Clean == harmed[table.Table] || harmed[table.Table] && table.Differences() > 2 || table.Rows < 10 {
			t.Errorf("of %v harmed: %+v", harmed, table)
		}
	}
	s = move.Status{}
	r.json(&s, "status")
	if s.SafeToCutOver.OK || s.Verify.State != "different" || s.Verify.Interrupted {
		t.Errorf("after differences: %+v, %+v", s.SafeToCutOver, s.Verify)
	}
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	second.wait(t)
	after := scans()
	for _, table := range equal {
		if before[table] != after[table] && table != "public.events" {
			t.Errorf("%s was read whole: %s scans before, %s after", table, before[table], after[table])
		}
	}
	if before["public."+others[0]] == after["public."+others[0]] {
		t.Errorf("%s was not read whole: %v", others[0], after)
	}
	s = move.Status{}
	r.json(&s, "status")
	if s.SafeToCutOver.OK || s.Verify.State != "different" || !slices.Equal(s.Verify.Tables, slices.Sorted(maps.Keys(harmed))) {
		t.Errorf("differences are forgotten with the worker: %+v", s.Verify)
	}
	for table := range harmed {
		r.mendHarm(table)
	}
	last := r.start("migrate", "--yes")
	if code, said := last.wait(t); code != exitDone {
		t.Fatalf("the last run ended with %d:\n%s", code, said)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.compare()
	r.placed()
	for _, db := range append(slices.Clone(r.shards), r.sources...) {
		if left := db.Query(t, `select slot_name from pg_replication_slots where database = current_database() union select pubname from pg_publication`); len(left) > 0 {
			t.Errorf("left on %s: %v", db.Name, left)
		}
	}
}

// harm changes one row of a table on the first shard that has one, as the stream does, and mendHarm changes it back.
func (r *rig) harm(table string)     { r.t.Helper(); r.behind(table, true) }
func (r *rig) mendHarm(table string) { r.t.Helper(); r.behind(table, false) }

func (r *rig) behind(table string, harm bool) {
	r.t.Helper()
	column := rowOf[table]
	set, where := column+" || '!'", fmt.Sprintf("ctid = (select min(ctid) from %s)", table)
	if !harm {
		set, where = "rtrim("+column+", '!')", column+" like '%!'"
	}
	if column == "version" {
		set, where = "-version", where+" and version > 0"
		if !harm {
			where = "version < 0"
		}
	}
	db := r.shards[0]
	conn := db.Conn(r.t)
	if _, err := conn.Exec(r.t.Context(), `set session_replication_role = replica`); err != nil {
		r.t.Fatal(err)
	}
	if tag, err := conn.Exec(r.t.Context(), fmt.Sprintf("update %s set %s = %s where %s", table, column, set, where)); err != nil || tag.RowsAffected() != 1 {
		r.t.Fatalf("%s: %v rows, %v", table, tag.RowsAffected(), err)
	}
}

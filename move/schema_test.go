package move

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// everything is a schema with one of each kind that pg_dump has an entry for.
const everything = `
create schema "my data";
create type public.mood as enum ('a', 'b');
create domain public.positive as int check (value > 0);
create table public.tenants (id bigserial primary key, name text unique, parent bigint references public.tenants, m public.mood);
create table public.orders (id bigint generated always as identity, tenant_id bigint not null references public.tenants, at date not null, note text,
  primary key (id, at)) partition by range (at);
create table public.orders_1 partition of public.orders (unique (note)) for values from ('2020-01-01') to ('2021-01-01');
create table public.orders_2 partition of public.orders for values from ('2021-01-01') to ('2022-01-01') partition by range (at);
create table public.orders_2a partition of public.orders_2 default;
create index orders_tenant on public.orders (tenant_id);
create statistics public.st on tenant_id, at from public.orders_1;
create table "my data"."x y
z" (a int primary key, "b ""c" text, c int unique deferrable, exclude using btree (a with =));
comment on table "my data"."x y
z" is 'odd; name';
comment on constraint tenants_pkey on public.tenants is 'pk';
comment on constraint tenants_name_key on public.tenants is 'unique';
create table public.nokey (a int not null, b public.positive not null, c text);
create unique index nk on public.nokey (a);
alter table public.nokey replica identity using index nk;
alter table public.nokey add constraint ck check (a > 0) not valid;
comment on index public.nk is 'identity';
create table public.full_identity (a int);
alter table public.full_identity replica identity full;
create table public.refs (order_id bigint, order_at date, foreign key (order_id, order_at) references public.orders deferrable initially deferred);
create table public.unchecked (t bigint);
alter table public.unchecked add constraint unchecked_fk foreign key (t) references public.tenants not valid;
comment on constraint unchecked_fk on public.unchecked is E'it''s \\ unchecked';
create view public.grouped as select t.*, count(*) from public.tenants t group by t.id;
create view public.over_grouped as select id from public.grouped;
create materialized view public.mv as select * from public.tenants;
create unique index mv_id on public.mv (id);
create function public.f() returns trigger language plpgsql as 'begin new.note := ''touched''; return new; end';
create function public.counts() returns bigint begin atomic select count(*) from public.orders; end;
create function public.ev() returns event_trigger language plpgsql as 'begin end';
create event trigger et on ddl_command_end execute function public.ev();
create trigger tr before insert on public.orders for each row execute function public.f();
create trigger always before insert on public.orders_1 for each row execute function public.f();
alter table public.orders_1 enable always trigger always;
alter table public.orders_2a disable trigger tr;
create rule r as on delete to public.nokey do nothing;
alter table public.tenants enable row level security;
create policy p on public.tenants using (true);
create table public.audit (id bigserial primary key, t bigint references public.tenants);
create index audit_t on public.audit (t);
create view public.audited as select * from public.audit;
create table public.par (a int primary key);
create table public.chi (b int) inherits (public.par);
grant select on public.tenants to public;
alter default privileges grant select on tables to public;
create extension if not exists hstore;
create publication pub for table public.tenants`

var everythingMoved = append(names("tenants", "orders", "orders_1", "orders_2", "orders_2a", "nokey", "full_identity", "refs", "unchecked", "par", "chi"),
	pg.Name{Schema: "my data", Table: "x y\nz"})

func dumpOf(t *testing.T, db *pgtest.DB, o SchemaOptions) (*Dump, error) {
	t.Helper()
	o.Dir, o.Bin = t.TempDir(), filepath.Dir(db.Cluster.Bin("pg_dump"))
	return DumpSchema(t.Context(), db.Shard(0), adminTo(t, db, pg.Reader), o)
}

// described is what pg_dump says of a database, without what is not moved.
func described(t *testing.T, db *pgtest.DB) []string {
	t.Helper()
	out, err := exec.Command(db.Cluster.Bin("pg_dump"), "--schema-only", "--no-publications", "-N", "pgreshard", "-d", db.URL()).Output()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for statement := range strings.SplitSeq(string(out), ";\n") {
		var kept []string
		for line := range strings.Lines(statement) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") && !strings.HasPrefix(line, `\`) {
				kept = append(kept, line)
			}
		}
		s := strings.Join(kept, " ")
		if s != "" && !strings.Contains(s, "audit") && !strings.Contains(s, "EVENT TRIGGER") {
			lines = append(lines, s)
		}
	}
	slices.Sort(lines)
	return lines
}

// Settings of a database decide how a script's literals and comparisons are read; the programs' sessions have their own.
func TestASchemaArrivesWholeWhateverTheDatabasesSettings(t *testing.T) {
	t.Parallel()
	source, dest := pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)
	source.Exec(t, `create type public.mood as enum ('a,b"c''d\ e{}', '\\', 'ok');
create table public.notes (id bigint primary key, m public.mood default '\\', tags text[] default '{NULL,a\\\\b}', check (tags = null))`)
	want := described(t, source)
	for _, db := range []*pgtest.DB{source, dest} {
		for _, s := range []string{"standard_conforming_strings = off", "array_nulls = off", "transform_null_equals = on", "idle_session_timeout = '1s'"} {
			db.Exec(t, "alter database "+db.Name+" set "+s)
		}
	}
	d, err := dumpOf(t, source, SchemaOptions{Tables: names("notes"), App: "pgreshard schema test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Phase{PhaseTables, PhaseIndexes, PhaseUnique, PhaseTriggers} {
		if err := d.Restore(t.Context(), dest.Shard(0), adminTo(t, dest, pg.Admin), p, false); err != nil {
			t.Fatal(err)
		}
	}
	dest.Exec(t, "alter database "+dest.Name+" reset all")
	if got := described(t, dest); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestASchemaArrivesWholeInItsPhases(t *testing.T) {
	t.Parallel()
	source, dest := pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)
	source.Exec(t, everything)
	d, err := dumpOf(t, source, SchemaOptions{Tables: everythingMoved, Owners: true, Grants: true, App: "pgreshard schema test"})
	if err != nil {
		t.Fatal(err)
	}
	conn := adminTo(t, dest, pg.Admin)
	restore := func(p Phase, again bool) {
		t.Helper()
		if err := d.Restore(t.Context(), dest.Shard(0), conn, p, again); err != nil {
			t.Fatal(err)
		}
	}

	restore(PhaseTables, false)
	var indexes []string
	for _, r := range dest.Query(t, `select indexname from pg_indexes where schemaname in ('public', 'my data') order by 1`) {
		indexes = append(indexes, r[0])
	}
	want := []string{"nk", "orders_1_pkey", "orders_2_pkey", "orders_2a_pkey", "orders_pkey", "par_pkey", "tenants_pkey", "x y\nz_pkey"}
	if !slices.Equal(indexes, want) {
		t.Errorf("indexes while copying: %q, want %q", indexes, want)
	}
	if got := dest.Query(t, `select indisvalid from pg_index where indexrelid = 'public.orders_pkey'::regclass`); got[0][0] != "t" {
		t.Error("the partitioned table's primary key is not valid")
	}
	if err := d.Restore(t.Context(), dest.Shard(0), conn, PhaseTables, false); err == nil || !strings.Contains(err.Error(), "exist already") {
		t.Errorf("tables that exist: %v", err)
	}
	restore(PhaseTables, true)

	// One index is there already, as after a kill.
	dest.Exec(t, `create index orders_tenant on only public.orders (tenant_id)`)
	restore(PhaseIndexes, false)
	restore(PhaseIndexes, true)
	if got := dest.Query(t, `select indexrelid::regclass from pg_index where (indisunique or indisexclusion) and not indisprimary
		and indrelid::regclass::text ~ 'tenants|orders|z'`); len(got) > 0 {
		t.Errorf("unique already: %v", got)
	}
	restore(PhaseUnique, false)
	restore(PhaseUnique, true)
	restore(PhaseTriggers, false)
	restore(PhaseTriggers, true)

	if err := DisableTriggers(t.Context(), conn, everythingMoved); err != nil {
		t.Fatal(err)
	}
	dest.Exec(t, `set session_replication_role = replica; insert into public.orders (tenant_id, at, note) overriding system value values (1, '2020-02-02', 'moved')`)
	if got := dest.Query(t, `select note from public.orders`); got[0][0] != "moved" {
		t.Errorf("a trigger fired for the worker: %v", got)
	}
	dest.Exec(t, `truncate public.orders cascade`)

	sourceConn := adminTo(t, source, pg.Reader)
	keys, err := ForeignKeys(t.Context(), sourceConn, everythingMoved, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := AddForeignKeys(t.Context(), conn, keys); err != nil {
			t.Fatal(err)
		}
	}
	if got := dest.Query(t, `select count(*), count(*) filter (where convalidated) from pg_constraint where contype = 'f' and conparentid = 0`); got[0][0] != "5" || got[0][1] != "0" {
		t.Errorf("foreign keys made, validated: %v", got)
	}
	if err := try(t, dest, `insert into public.tenants (parent) values (99)`); pg.Code(err) != "23503" {
		t.Errorf("a key that is not validated yet holds for new rows: %v", err)
	}
	if err := try(t, dest, `insert into public.orders (tenant_id, at) values (99, '2020-02-02')`); pg.Code(err) != "23503" {
		t.Errorf("a partitioned table's key holds for new rows: %v", err)
	}
	for range 2 {
		if broken, err := ValidateForeignKeys(t.Context(), conn, keys); err != nil || len(broken) > 0 {
			t.Fatal(err, broken)
		}
	}
	states, err := TriggerStates(t.Context(), sourceConn, everythingMoved)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := SetTriggerStates(t.Context(), conn, states); err != nil {
			t.Fatal(err)
		}
	}

	here, there := described(t, source), described(t, dest)
	for _, s := range here {
		if !slices.Contains(there, s) {
			t.Errorf("the destination lacks: %s", s)
		}
	}
	for _, s := range there {
		if !slices.Contains(here, s) {
			t.Errorf("only the destination has: %s", s)
		}
	}
	left := strings.Join(d.Left, "\n")
	for _, want := range []string{"TABLE public audit", "VIEW public audited", "EVENT TRIGGER - et"} {
		if !strings.Contains(left, want) {
			t.Errorf("%q is not among what was left out:\n%s", want, left)
		}
	}
	if got := dest.Query(t, `select count(*) from pg_class where relname like 'audit%'`); got[0][0] != "0" {
		t.Error("a table that is not moved was made")
	}
	compareAll(t, source, dest)
}

// compareAll is what plan does where the destination's tables exist.
func compareAll(t *testing.T, source, dest *pgtest.DB) {
	t.Helper()
	here, err1 := pg.ReadCatalog(t.Context(), adminTo(t, source, pg.Reader))
	there, err2 := pg.ReadCatalog(t.Context(), adminTo(t, dest, pg.Reader))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, n := range everythingMoved {
		if why := CompareTables(here.Table(n), there.Table(n)); len(why) > 0 {
			t.Errorf("%s: %q", n, why)
		}
	}
	dest.Exec(t, `alter table public.nokey alter c set not null, drop constraint ck, alter a type bigint; drop table public.unchecked;
		alter table public.tenants drop column m cascade, add extra int not null; drop index public.nk; alter table public.par add fine int default 1`)
	if there, err2 = pg.ReadCatalog(t.Context(), adminTo(t, dest, pg.Reader)); err2 != nil {
		t.Fatal(err2)
	}
	for n, want := range map[string]int{"nokey": 3, "unchecked": 1, "tenants": 2, "par": 0, "orders": 0} {
		name := pg.Name{Schema: "public", Table: n}
		if why := CompareTables(here.Table(name), there.Table(name)); len(why) != want {
			t.Errorf("%s: %q, want %d differences", n, why, want)
		}
	}
}

func TestConstraintsNamedInSkipAreNotCarried(t *testing.T) {
	t.Parallel()
	source, dest := pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)
	source.Exec(t, `create table public.t (id int primary key, a int unique, b int, p int references public.t);
		create unique index t_b on public.t (b);
		create table public.p (id int, a int) partition by list (id);
		create table public.p1 partition of public.p default;
		create unique index p_both on public.p (id, a);
		alter table public.p1 add constraint other_name foreign key (a) references public.t;
		alter table public.p add constraint p_fk foreign key (a) references public.t`)
	moved := names("t", "p", "p1")
	d, err := dumpOf(t, source, SchemaOptions{Tables: moved, Skip: []string{"unique:t_a_key", "unique:t_b", "unique:p_both"}})
	if err != nil {
		t.Fatal(err)
	}
	conn := adminTo(t, dest, pg.Admin)
	for _, p := range []Phase{PhaseTables, PhaseIndexes, PhaseUnique, PhaseTriggers} {
		if err := d.Restore(t.Context(), dest.Shard(0), conn, p, false); err != nil {
			t.Fatal(err)
		}
	}
	if got := dest.Query(t, `select indexname from pg_indexes where schemaname = 'public'`); len(got) != 1 || got[0][0] != "t_pkey" {
		t.Errorf("indexes: %v", got)
	}
	keys, err := ForeignKeys(t.Context(), adminTo(t, source, pg.Reader), moved, []string{"fk:t_p_fkey", "fk:p_fk"})
	if err != nil || len(keys) != 0 {
		t.Errorf("foreign keys: %v, %v", keys, err)
	}
	if _, err := dumpOf(t, source, SchemaOptions{Tables: moved, Skip: []string{"unique:t_pkey"}}); err == nil {
		t.Error("the key that tells rows apart was left out")
	}
}

func TestWhatAMovedTableNeedsCannotBeLeftOut(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table public.par (a int); create table public.chi (b int) inherits (public.par);
		create table public.ids (id bigserial); create table public.uses (id bigint default nextval('public.ids_id_seq'))`)
	for table, want := range map[string]string{"chi": "public chi", "uses": "public uses"} {
		_, err := dumpOf(t, source, SchemaOptions{Tables: names(table)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%s: %v", table, err)
		}
	}
}

func TestTheFenceIsNotCarried(t *testing.T) {
	t.Parallel()
	source, f := fencedDatabase(t, false)
	_ = f
	dest := pgtest.Shared(t).Database(t)
	d, err := dumpOf(t, source, SchemaOptions{Tables: append(slices.Clone(fenceMoved), names("parent")...)})
	if err != nil {
		t.Fatal(err)
	}
	conn := adminTo(t, dest, pg.Admin)
	for _, p := range []Phase{PhaseTables, PhaseIndexes, PhaseUnique, PhaseTriggers} {
		if err := d.Restore(t.Context(), dest.Shard(0), conn, p, false); err != nil {
			t.Fatal(err)
		}
	}
	if got := dest.Query(t, `select count(*) from pg_trigger where not tgisinternal`); got[0][0] != "0" {
		t.Error("a trigger was carried")
	}
	if got := dest.Query(t, `select count(*) from pg_namespace where nspname = 'pgreshard'`); got[0][0] != "0" {
		t.Error("schema pgreshard was carried")
	}
}

func TestADumpReadsAnExportedSnapshot(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table public.a (id int primary key)`)
	holder := source.Conn(t)
	var snapshot string
	if _, err := holder.Exec(t.Context(), `begin isolation level repeatable read`); err != nil {
		t.Fatal(err)
	}
	if err := holder.QueryRow(t.Context(), `select pg_export_snapshot()`).Scan(&snapshot); err != nil {
		t.Fatal(err)
	}
	d, err := dumpOf(t, source, SchemaOptions{Tables: names("a"), Snapshot: snapshot})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := dumpOf(t, source, SchemaOptions{Tables: names("a"), Snapshot: "00000000-00000000-1"}); err == nil || !strings.Contains(err.Error(), "snapshot") {
		t.Errorf("a snapshot that is gone: %v", err)
	}
}

func TestAnErrorOfTheProgramsIsShownAndLeavesNothing(t *testing.T) {
	t.Parallel()
	source, dest := pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)
	source.Exec(t, `create table public.a (id int primary key); create table public.b (id int primary key); create view public.v as select * from public.a`)
	d, err := dumpOf(t, source, SchemaOptions{Tables: names("a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	dest.Exec(t, `create view public.v as select 1 as x`)
	conn := adminTo(t, dest, pg.Admin)
	err = d.Restore(t.Context(), dest.Shard(3), conn, PhaseTables, false)
	var tool *ToolError
	if !errors.As(err, &tool) || !strings.Contains(err.Error(), `"v" already exists`) || !strings.Contains(err.Error(), "shard 3") {
		t.Errorf("a view in the way: %v", err)
	}
	if got := dest.Query(t, `select count(*) from pg_tables where schemaname = 'public'`); got[0][0] != "0" {
		t.Error("a restore that failed left tables")
	}
	dest.Exec(t, `create table public.a (id int)`)
	if err := d.Restore(t.Context(), dest.Shard(3), conn, PhaseTables, true); err == nil || !strings.Contains(err.Error(), "public.a exist already") {
		t.Errorf("one of two tables exists: %v", err)
	}
}

func TestAnEndedContextLeavesNoProgramAndNoSession(t *testing.T) {
	t.Parallel()
	source, dest := pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)
	source.Exec(t, `create table public.a (id int primary key, v int); create index a_v on public.a (v)`)
	d, err := dumpOf(t, source, SchemaOptions{Tables: names("a"), App: "pgreshard stuck"})
	if err != nil {
		t.Fatal(err)
	}
	conn := adminTo(t, dest, pg.Admin)
	if err := d.Restore(t.Context(), dest.Shard(0), conn, PhaseTables, false); err != nil {
		t.Fatal(err)
	}
	holder := dest.Conn(t)
	if _, err := holder.Exec(t.Context(), `begin; lock table public.a in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Restore(ctx, dest.Shard(0), conn, PhaseIndexes, false) }()
	sessions := `select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'`
	for dest.Query(t, sessions, d.opts.App)[0][0] == "0" {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the error: %v", err)
	}
	files, _ := filepath.Glob(filepath.Join(d.opts.Dir, "*"))
	if len(files) != 1 {
		t.Errorf("files left beside the archive: %v", files)
	}

	// Another worker goes on while a session of the first is still there.
	orphan := dest.Conn(t)
	if _, err := orphan.Exec(t.Context(), `set application_name = '`+d.opts.App+`'`); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	if _, err := orphan.Exec(t.Context(), `begin; create index a_v on public.a (v)`); err != nil {
		t.Fatal(err)
	}
	if err := d.Restore(t.Context(), dest.Shard(0), adminTo(t, dest, pg.Admin), PhaseIndexes, true); err != nil {
		t.Fatal(err)
	}
	if got := dest.Query(t, `select count(*) from pg_indexes where indexname = 'a_v'`); got[0][0] != "1" {
		t.Error("the index is missing")
	}
}

func TestToolsOfTheRightVersionAreFound(t *testing.T) {
	t.Parallel()
	bin := func(version string) string {
		dir := t.TempDir()
		for _, name := range []string{"pg_dump", "pg_restore"} {
			script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	if got, err := findTools(t.Context(), bin("17.2 (Debian 17.2-1)"), 17); err != nil || filepath.Base(got.dump) != "pg_dump" {
		t.Errorf("17 for 17: %v, %v", got, err)
	}
	for dir, want := range map[string]string{bin("14.1"): "version 14 and the newest server is 17", t.TempDir(): "not found"} {
		if _, err := findTools(t.Context(), dir, 17); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := findTools(t.Context(), "", 1); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}

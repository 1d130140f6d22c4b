package move_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// schemaFacts are what both sides must have alike after a completed move, each as a statement whose rows are compared.
// What the move has left on the retired source is its own schema and triggers.
var schemaFacts = map[string]string{
	"owners": `select 'relation ' || c.oid::regclass::text, pg_get_userbyid(c.relowner) from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid >= 16384 and c.relkind in ('r', 'p', 'v', 'm', 'S') and nspname in ('public', 'app')
		union all select 'function ' || p.oid::regprocedure::text, pg_get_userbyid(proowner) from pg_proc p join pg_namespace n on n.oid = pronamespace where p.oid >= 16384 and nspname in ('public', 'app')
		union all select 'type ' || t.oid::regtype::text, pg_get_userbyid(typowner) from pg_type t join pg_namespace n on n.oid = typnamespace where t.oid >= 16384 and typtype in ('e', 'd', 'c', 'r') and nspname in ('public', 'app')
		union all select 'schema ' || nspname, pg_get_userbyid(nspowner) from pg_namespace where nspname in ('app')`,
	"grants": `select what, coalesce(nullif(grantee, 0)::regrole::text, 'public'), privilege_type, is_grantable from (
		select 'relation ' || c.oid::regclass::text as what, x.* from pg_class c join pg_namespace n on n.oid = relnamespace, aclexplode(coalesce(relacl, acldefault(case relkind when 'S' then 's' else 'r' end::"char", relowner))) x
			where c.oid >= 16384 and relkind in ('r', 'p', 'v', 'm', 'S') and nspname in ('public', 'app')
		union all select 'column ' || attrelid::regclass::text || '.' || attname, x.* from pg_attribute, aclexplode(attacl) x where attrelid >= 16384
		union all select 'schema ' || nspname, x.* from pg_namespace, aclexplode(coalesce(nspacl, acldefault('n', nspowner))) x where nspname in ('app')
		union all select 'function ' || p.oid::regprocedure::text, x.* from pg_proc p join pg_namespace n on n.oid = pronamespace, aclexplode(coalesce(proacl, acldefault('f', proowner))) x where p.oid >= 16384 and nspname in ('public', 'app')
		union all select 'type ' || t.oid::regtype::text, x.* from pg_type t join pg_namespace n on n.oid = typnamespace, aclexplode(coalesce(typacl, acldefault('T', typowner))) x where t.oid >= 16384 and typtype in ('e', 'd') and nspname in ('public', 'app')
		union all select 'default ' || coalesce(nspname, '') || defaclobjtype::text || pg_get_userbyid(defaclrole), x.* from pg_default_acl left join pg_namespace n on n.oid = defaclnamespace, aclexplode(defaclacl) x) g where privilege_type <> 'MAINTAIN'`,
	"row security": `select c.oid::regclass::text, relrowsecurity, relforcerowsecurity from pg_class c join pg_namespace n on n.oid = relnamespace where c.oid >= 16384 and relkind in ('r', 'p') and nspname in ('public', 'app')`,
	"policies":     `select schemaname, tablename, policyname, permissive, roles::text, cmd, qual, with_check from pg_policies where schemaname in ('public', 'app')`,
	"triggers":     `select tgrelid::regclass::text, tgname, tgenabled, pg_get_triggerdef(oid) from pg_trigger where not exists (select from pg_constraint c where c.oid = tgconstraint and contype <> 't') and tgname !~ 'pgreshard' and tgfoid::regproc::text !~ 'pgreshard'`,
	"comments":     `select i.type, i.identity, description from pg_description d, pg_identify_object(classoid, objoid, objsubid) i where objoid >= 16384 and classoid <> 'pg_extension'::regclass and i.identity !~ 'pgreshard'`,
	"constraints":  `select conrelid::regclass::text, conname, pg_get_constraintdef(oid), convalidated from pg_constraint where oid >= 16384 and contype <> 'n' and conrelid::regclass::text !~ 'pgreshard'`,
	"indexes":      `select indrelid::regclass::text, pg_get_indexdef(indexrelid), indisvalid, indisclustered from pg_index where indexrelid >= 16384 and indrelid::regclass::text !~ 'pgreshard|toast'`,
	"identities":   `select oid::regclass::text, relreplident from pg_class where oid >= 16384 and relkind in ('r', 'p') and oid::regclass::text !~ 'pgreshard'`,
	"columns": `select attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attstorage, attidentity, attgenerated, attstattarget is not null and attstattarget = 77, coalesce(pg_get_expr(adbin, adrelid), ''), attoptions::text
		from pg_attribute left join pg_attrdef on (adrelid, adnum) = (attrelid, attnum) join pg_class c on c.oid = attrelid join pg_namespace n on n.oid = relnamespace where c.relkind in ('r', 'p') and attnum > 0 and not attisdropped and nspname in ('public', 'app')`,
	"options": `select c.oid::regclass::text, reloptions::text from pg_class c join pg_namespace n on n.oid = relnamespace where c.oid >= 16384 and relkind in ('r', 'p', 'i') and nspname in ('public', 'app')`,
	"others": `select 'view ' || viewname, replace(definition, 'enabled.', '') from pg_views where schemaname in ('public', 'app') union all select 'rule ' || rulename, definition from pg_rules where schemaname in ('public', 'app')
		union all select 'statistics ' || stxname, stxkind::text from pg_statistic_ext union all select 'function ' || p.oid::regprocedure::text, prosrc from pg_proc p join pg_namespace n on n.oid = pronamespace where p.oid >= 16384 and nspname in ('public', 'app')`,
}

func facts(t *testing.T, db *pgtest.DB, statement string) (out []string) {
	t.Helper()
	for _, row := range db.Query(t, statement) {
		out = append(out, strings.Join(row, " | "))
	}
	slices.Sort(out)
	return out
}

// roles makes roles of the names given on both sides' clusters; they go after the test's databases.
func roles(t *testing.T, names ...string) {
	t.Helper()
	clusters := []*pgtest.Cluster{pgtest.Shared(t)}
	if other := pgtest.SharedDestination(t); other != clusters[0] {
		clusters = append(clusters, other)
	}
	for _, c := range clusters {
		db, err := c.NewDatabase(t.Context(), "roles_of_"+names[0])
		if err != nil {
			t.Fatal(err)
		}
		db.Exec(t, "create role "+strings.Join(names, "; create role "))
		t.Cleanup(func() {
			ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
			defer stop()
			if conn, err := db.Connect(ctx); err == nil {
				_, _ = conn.Exec(ctx, "drop role "+strings.Join(names, "; drop role "))
				_ = conn.Close(ctx)
			}
			_ = db.Drop(ctx)
		})
	}
}

func TestASchemaIsTheSameAfterACompletedMove(t *testing.T) {
	t.Parallel()
	roles(t, "cases_owner", "cases_other", `"Cases reader"`)
	s := newSmallMove(t, 2, "tenant", `create schema app authorization cases_owner; grant usage on schema app to cases_other; grant cases_other to cases_owner;
		create type app.mood as enum ('a', 'b'); alter type app.mood owner to cases_other; revoke usage on type app.mood from public; create domain app.positive as int check (value > 0);
		create function app.touch() returns trigger language plpgsql as 'begin new.v := coalesce(new.v, '''') || ''!''; return new; end'; alter function app.touch() owner to cases_owner; revoke execute on function app.touch() from public; grant execute on function app.touch() to cases_other;
		create table app.notes (id bigint generated by default as identity primary key, tenant bigint, v text default 'it''s', m app.mood, p app.positive, big text) with (fillfactor = 70, autovacuum_enabled = off);
		alter table app.notes owner to cases_owner; alter table app.notes alter big set storage external, alter v set statistics 77, alter v set (n_distinct = 5), cluster on notes_pkey;
		grant select, insert on app.notes to cases_other with grant option; grant update (v), select (m) on app.notes to "Cases reader"; grant select on app.notes to public; grant usage on sequence app.notes_id_seq to cases_other;
		alter table app.notes enable row level security, force row level security;
		create policy own on app.notes using (tenant = 1) with check (tenant > 0); create policy of_other on app.notes as restrictive for update to cases_other, "Cases reader" using (v <> ''); create policy reads on app.notes for select using (true);
		create table enabled (id int primary key, tenant bigint, v text, unique (tenant, v)); alter table enabled enable row level security; alter table enabled owner to cases_other; create policy p on enabled to cases_owner using (id > 0);
		create table forced (id int primary key, tenant bigint, v text, check (id > 0), constraint not_valid check (v <> '') not valid, exclude (id with =)); alter table forced force row level security;
		create table parts (id int, tenant bigint, v text, primary key (id)) partition by range (id); create table parts_0 partition of parts for values from (0) to (100); create table parts_1 partition of parts for values from (100) to (1000);
		alter table parts_1 owner to cases_other; grant select on parts_1 to cases_other; revoke all on parts_0 from postgres; create index on parts (tenant);
		create table child (id int primary key, tenant bigint, note bigint references app.notes on delete cascade, e int references enabled deferrable initially deferred); create index child_v on child (note) where note > 5; create statistics st on tenant, note from child;
		create view seen with (security_barrier) as select * from enabled where id > 0; grant select on seen to cases_other; alter view seen owner to cases_owner; create rule nothing as on delete to forced do nothing;
		alter default privileges for role cases_owner in schema app grant select on tables to cases_other; alter default privileges for role cases_other revoke execute on functions from public;`+
		strings.Join(stepsOf([]string{"app.notes", "enabled", "forced", "parts"}, `create trigger plain before insert or update on %T for each row when (new.id > 5) execute function app.touch()`,
			`create trigger off before insert on %T for each row execute function app.touch()`, `alter table %T disable trigger off`, `create trigger only_replica before insert on %T for each row execute function app.touch()`, `alter table %T enable replica trigger only_replica`,
			`create trigger always before insert on %T for each row execute function app.touch()`, `alter table %T enable always trigger always`), ";")+`;
		alter table parts_1 disable trigger plain; alter table parts_0 enable always trigger off; create constraint trigger later after insert on enabled deferrable initially deferred for each row execute function app.touch();
		comment on schema app is 'a schema'; comment on table app.notes is 'it''s \ a "table"'; comment on column app.notes.v is E'a\ncolumn'; comment on constraint notes_pkey on app.notes is 'a key'; comment on type app.mood is 'a type'; comment on domain app.positive is 'a domain';
		comment on function app.touch() is 'a function'; comment on trigger plain on app.notes is 'a trigger'; comment on policy own on app.notes is 'a policy'; comment on index child_v is 'an index'; comment on view seen is 'a view'; comment on sequence app.notes_id_seq is 'a sequence';
		comment on rule nothing on forced is 'a rule'; comment on statistics st is 'statistics'; comment on constraint child_e_fkey on child is 'a foreign key'; comment on table parts_0 is 'a leaf'; comment on constraint not_valid on forced is 'a check';
		insert into enabled values (1, 1, 'x')`)
	for _, db := range append(slices.Clone(s.shards), s.sources...) { // since 15 nobody may create anything there
		db.Exec(t, `grant create, usage on schema public to cases_owner, cases_other`)
	}
	conn := s.sources[0].Conn(t)
	runOn(t, conn, `set session_replication_role = replica; insert into app.notes (id, tenant, v) select g, g % 5, 'v' from generate_series(1, 40) g; insert into forced select g, g % 5, 'v' from generate_series(1, 40) g; insert into parts select g, g % 5, 'v' from generate_series(80, 120) g;
		insert into enabled select g, g % 5, 'v' || g from generate_series(2, 40) g; insert into child select g, g % 5, g, g from generate_series(1, 40) g`)
	s.run(s.steps(`insert into app.notes (id, tenant, v) values (200, 1, 'fired')`, `insert into enabled values (100, 2, 'fired'); insert into forced values (100, 2, 'fired')`, `insert into parts values (70, 2, 'fired'), (150, 3, 'fired')`, `update app.notes set v = 'u', tenant = tenant + 1 where id < 9; update child set tenant = tenant + 1 where id < 9; update enabled set tenant = tenant + 1 where id < 9`))
	for _, table := range []string{"app.notes", "enabled", "forced", "parts", "child"} {
		s.sameRows(pgtest.RowsOptions{}, table)
		s.onItsShard(table, "tenant", "bigint")
	}
	for what, statement := range schemaFacts {
		want := facts(t, s.sources[0], statement)
		if len(want) == 0 {
			t.Errorf("%s: the source has none", what)
		}
		for n, db := range s.shards {
			got := facts(t, db, statement)
			for _, w := range want {
				if !slices.Contains(got, w) {
					t.Errorf("shard %d lacks of the %s: %s", n, what, w)
				}
			}
			for _, g := range got {
				if !slices.Contains(want, g) {
					t.Errorf("only shard %d has of the %s: %s", n, what, g)
				}
			}
		}
	}
}

// What cannot be moved stays behind; what only depends on moved tables is made. The move goes on.
func TestUnloggedForeignAndMaterializedTablesAndLargeObjectsAreNotMoved(t *testing.T) {
	t.Parallel()
	schema := `create table kept (id int primary key, tenant bigint, v text, lo oid); insert into kept select g, g % 5, 'v' from generate_series(1, 40) g; create unlogged table fast (id int primary key, tenant bigint); insert into fast values (1, 1);
		create materialized view summed as select tenant, count(*) from kept group by tenant; create index on summed (tenant); create view seen as select * from kept; update kept set lo = lo_from_bytea(0, 'large') where id = 1;`
	foreign := has(t, "postgres_fdw")
	if foreign {
		schema += `create extension postgres_fdw; create server elsewhere foreign data wrapper postgres_fdw; create foreign table far (id int, tenant bigint) server elsewhere;`
	}
	s := newSmallMove(t, 2, "tenant", schema)
	plan, err := s.move().Plan(t.Context())
	if err != nil || len(plan.Problems) > 0 {
		t.Fatal(err, plan)
	}
	if !containing(plan.Notes, "not moved, because their changes are not in the log: unlogged public.fast") {
		t.Errorf("plan does not note the unlogged table: %q", plan.Notes)
	}
	there := "[[seen v t] [summed m f]]"
	if foreign { // its definition is made, with its server
		there = "[[far f t] [seen v t] [summed m f]]"
	}
	s.run(s.steps(`update kept set v = 'u', tenant = tenant + 1 where id % 2 = 0; insert into fast values (2, 2); delete from kept where id = 9`, `refresh materialized view summed`, `truncate fast`))
	s.same("kept", "id")
	s.onItsShard("kept", "tenant", "bigint")
	for n, db := range s.shards {
		if got := db.Query(t, `select relname::text, relkind, relispopulated from pg_class where relname in ('fast', 'far', 'summed', 'seen') order by 1`); fmt.Sprint(got) != there {
			t.Errorf("shard %d: %v", n, got)
		}
		if got := db.Query(t, `select count(*) from pg_largeobject_metadata`); got[0][0] != "0" {
			t.Errorf("shard %d has large objects", n)
		}
	}
}

// Children of inheritance are tables of their own: each one's rows are compared without its children's.
func TestInheritanceChildrenAreMovedAsTablesOfTheirOwn(t *testing.T) {
	t.Parallel()
	tables := []string{"people", "staff", "bosses", "logs", "audit"}
	s := newSmallMove(t, 2, "tenant", `create table people (id int primary key, tenant bigint, note text); create table staff (grade int, primary key (id)) inherits (people); create table bosses (primary key (id)) inherits (staff);
		create table logs (tenant bigint, note text); alter table logs replica identity full; create table audit (who text) inherits (logs); alter table audit replica identity full;
		insert into people select g, g, 'parent' from generate_series(1, 20) g; insert into staff select g, g % 5, 'child', g from generate_series(1, 30) g; insert into bosses select g, g % 3, 'grandchild' from generate_series(1, 10) g;
		insert into logs select g % 3, 'l' from generate_series(1, 9) g; insert into audit select g % 3, 'l', 'a' from generate_series(1, 9) g`)
	s.run(s.steps(`update only people set note = 'one' where id < 5; update people set note = note || '!'`, `update only people set tenant = tenant + 1 where id % 2 = 0; update only staff set id = id + 200, tenant = 4 where id % 3 = 0`,
		`delete from only people where id in (1, 2); delete from people where id = 7; delete from only audit where tenant = 2`, `truncate only people; insert into people values (5, 5, 'again')`, `insert into bosses values (100, 6, 'new')`))
	for _, table := range tables {
		list := `select r::text from only ` + table + ` r`
		var got []string
		for n, db := range s.shards {
			got = append(got, facts(t, db, list)...)
			db.Exec(t, `create table placed (k bigint) partition by hash (k)`)
			if bad := db.Query(t, fmt.Sprintf(`select count(*) from %s where not satisfies_hash_partition('placed'::regclass, 2, %d, tenant)`, table, n)); bad[0][0] != "0" {
				t.Errorf("shard %d holds %s rows of %s that are not its own", n, bad[0][0], table)
			}
			db.Exec(t, `drop table placed`)
		}
		slices.Sort(got)
		if want := facts(t, s.sources[0], list); !slices.Equal(got, want) {
			t.Errorf("%s: %d rows became %d, or others: %q, want %q", table, len(want), len(got), got, want)
		}
	}
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// A gate is a place in the worker's own statements, inside the server, where a test can hold it. Every write to the
// bookkeeping tables and every table or index made passes one, named as in gatesDDL, and waits there while the test has
// it shut: what the worker is doing at that moment is known exactly, and a kill lands there. A gate stays shut while its
// server is down.
//
// The last gate of such a write is its COMMIT, which can also be made to fail.
//
// Triggers and event trigger fire always, because the worker writes in replica role. They live in a schema of their own
// and make no table, which a plan would find: which gates are shut is the schema's comment, and what COMMIT is refused
// with is the function's.
const gatesDDL = `
create schema gates;
create function gates.wait(passing text) returns void language plpgsql as $$
begin
  while passing = any (pg_catalog.obj_description('gates'::regnamespace, 'pg_namespace')::text[]) loop
    perform pg_catalog.pg_advisory_lock_shared(7311, pg_catalog.hashtext(passing)), pg_catalog.pg_sleep(0.005);
    perform pg_catalog.pg_advisory_unlock_shared(7311, pg_catalog.hashtext(passing));
  end loop;
end $$;
create function gates.commit() returns trigger language plpgsql as $$
declare refused text := pg_catalog.obj_description('gates.commit'::regproc, 'pg_proc');
begin
  if refused is not null then
    raise exception 'refused at COMMIT' using errcode = refused;
  end if;
  perform gates.wait('commit of ' || tg_table_name);
  return null;
end $$;
create function gates.row() returns trigger language plpgsql as $$
declare r jsonb := to_jsonb(new);
begin
  perform gates.wait(case tg_table_name
    when 'move' then 'state ' || (r ->> 'state')
    when 'journal' then (r ->> 'step') || ' ' || (r ->> 'phase')
    when 'chunk' then case when (select count(*) from pgreshard.chunk) > 2 then 'chunk' else 'first chunks' end
    else tg_table_name::text end);
  return null;
end $$;
create function gates.build() returns void language plpgsql as $$
declare t text;
begin
  foreach t in array array['move', 'journal', 'chunk', 'checkpoint', 'serving'] loop
    if to_regclass('pgreshard.' || t) is not null and not exists (select from pg_trigger where tgname = 'gate' and tgrelid = to_regclass('pgreshard.' || t)) then
      execute format('create trigger gate after insert or update on pgreshard.%I for each row execute function gates.row()', t);
      execute format('alter table pgreshard.%I enable always trigger gate', t);
      execute format('create constraint trigger gate_of_commit after insert or update on pgreshard.%I deferrable initially deferred for each row execute function gates.commit()', t);
      execute format('alter table pgreshard.%I enable always trigger gate_of_commit', t);
    end if;
  end loop;
end $$;
create function gates.ddl() returns event_trigger language plpgsql as $$
declare made text;
begin
  perform gates.build();
  for made in select object_identity from pg_event_trigger_ddl_commands() where schema_name = 'public' loop
    perform gates.wait('made ' || made);
  end loop;
end $$;
create event trigger gate on ddl_command_end when tag in ('CREATE TABLE', 'CREATE INDEX') execute function gates.ddl();
alter event trigger gate enable always;
select gates.build() -- for tables that are there already`

// gates are those of one database.
type gates struct {
	db     *pgtest.DB
	conn   *pgx.Conn
	closed []string // points
}

func newGates(t *testing.T, db *pgtest.DB) *gates {
	t.Helper()
	db.Exec(t, gatesDDL)
	g := &gates{db: db}
	t.Cleanup(func() { pg.Close(g.conn) })
	return g
}

// shut makes whoever comes to a point wait there.
func (g *gates) shut(t *testing.T, point string) {
	t.Helper()
	g.closed = append(g.closed, point)
	g.tell(t)
}

// open lets everybody pass.
func (g *gates) open(t *testing.T, point string) {
	t.Helper()
	g.closed = slices.DeleteFunc(g.closed, func(p string) bool { return p == point })
	g.tell(t)
}

func (g *gates) tell(t *testing.T) {
	t.Helper()
	g.do(t, fmt.Sprintf(`comment on schema gates is '{"%s"}'`, strings.Join(g.closed, `","`)))
}

// refuse makes every COMMIT fail with a SQLSTATE; empty: none.
func (g *gates) refuse(t *testing.T, code string) {
	t.Helper()
	g.do(t, fmt.Sprintf(`comment on function gates.commit() is '%s'`, code)) // an empty one is none
}

func (g *gates) do(t *testing.T, sql string) {
	t.Helper()
	err := g.connect(t.Context())
	if err == nil {
		_, err = g.conn.Exec(t.Context(), sql)
	}
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// connect makes sure of a session that may write although the server's default is not to, and still lives.
func (g *gates) connect(ctx context.Context) error {
	if g.conn != nil && g.conn.Ping(ctx) == nil {
		return nil
	}
	pg.Close(g.conn)
	config, err := pgx.ParseConfig(g.db.URL())
	if err != nil {
		return err
	}
	config.RuntimeParams["default_transaction_read_only"] = "off"
	g.conn, err = pgx.ConnectConfig(ctx, config)
	return err
}

// reached says whether somebody waits at a point.
func (g *gates) reached(ctx context.Context, point string) (waits bool, err error) {
	if err := g.connect(ctx); err != nil {
		return false, err
	}
	err = g.conn.QueryRow(ctx, `select exists (select from pg_locks l where l.locktype = 'advisory'
		and l.classid = 7311 and l.objid = (hashtext($1)::bigint & 4294967295)::oid
		and l.database = (select oid from pg_database where datname = current_database()))`, point).Scan(&waits)
	return waits, err
}

// await waits until somebody waits at a point; it fails when p ends before.
func (g *gates) await(t *testing.T, p *process, point string) {
	t.Helper()
	for {
		waits, err := g.reached(t.Context(), point)
		if err != nil {
			t.Fatal(err)
		}
		if waits {
			return
		}
		select {
		case <-p.ended:
			t.Fatalf("the worker ended with %d before %q:\n%s", p.code, point, p.both.String())
		default:
			pause(t.Context())
		}
	}
}

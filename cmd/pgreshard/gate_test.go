package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pgtest"
)

// A gate is a place in the worker's own statements, inside the server, where a test can hold it. Every write to the
// bookkeeping tables and every table or index made passes one, named as in gatesDDL, and waits there while the test has
// it shut: what the worker is doing at that moment is known exactly, and a kill lands there.
//
// Triggers and event trigger fire always, because the worker writes in replica role. They live in a schema of their own
// and make no table.
const gatesDDL = `
create schema gates;
create function gates.wait(point text) returns void language plpgsql as $$
begin
  perform pg_catalog.pg_advisory_xact_lock_shared(7311, pg_catalog.hashtext(point));
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
create function gates.ddl() returns event_trigger language plpgsql as $$
declare t text; made text;
begin
  foreach t in array array['move', 'journal', 'chunk', 'checkpoint', 'serving'] loop
    if to_regclass('pgreshard.' || t) is not null and not exists (select from pg_trigger where tgname = 'gate' and tgrelid = to_regclass('pgreshard.' || t)) then
      execute format('create trigger gate after insert or update on pgreshard.%I for each row execute function gates.row()', t);
      execute format('alter table pgreshard.%I enable always trigger gate', t);
    end if;
  end loop;
  for made in select object_identity from pg_event_trigger_ddl_commands() where schema_name = 'public' loop
    perform gates.wait('made ' || made);
  end loop;
end $$;
create event trigger gate on ddl_command_end when tag in ('CREATE TABLE', 'CREATE INDEX') execute function gates.ddl();
alter event trigger gate enable always`

// gates are those of one database.
type gates struct{ conn *pgx.Conn }

func newGates(t *testing.T, db *pgtest.DB) *gates {
	t.Helper()
	db.Exec(t, gatesDDL)
	return &gates{db.Conn(t)}
}

// shut makes whoever comes to a point wait there.
func (g *gates) shut(t *testing.T, point string) { g.do(t, "pg_advisory_lock", point) }

// open lets everybody pass.
func (g *gates) open(t *testing.T, point string) { g.do(t, "pg_advisory_unlock", point) }

func (g *gates) do(t *testing.T, function, point string) {
	t.Helper()
	if _, err := g.conn.Exec(t.Context(), fmt.Sprintf("select %s(7311, hashtext($1))", function), point); err != nil {
		t.Fatal(err)
	}
}

// reached says whether somebody waits at a point.
func (g *gates) reached(ctx context.Context, point string) (waits bool, err error) {
	err = g.conn.QueryRow(ctx, `select exists (select from pg_locks l where l.locktype = 'advisory' and not l.granted
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

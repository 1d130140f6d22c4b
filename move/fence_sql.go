package move

// The trigger's name sorts before every name that does not begin with a blank or a '!', so that it fires first.
const fenceTrigger = "!pgreshard_fence"

// fenceSealed is fence_until's value for "refused until somebody opens it".
const fenceSealed = int64(1<<63 - 1)

// SQLSTATEs the fence's functions raise besides checkpoints' PR002 (another epoch).
const (
	codeFenceFlag = "PR011" // the flag does not hold what this step expects
	codeUnfenced  = "PR012" // a table in scope has no fence that fires always
)

// The flags are sequences read by last_value, because that is not under MVCC: a writer whose snapshot is older than a
// freeze sees it too. fence_until is 0 (writes pass), a time in microseconds since 1970 by this node's clock (refused
// until then), or fenceSealed. fence_layout is the layout this node belongs to and fence_serving the one that serves;
// they are for the message only, so that one setval decides.
//
// Writers *try* the advisory lock and are refused where they would wait: a writer that waited would hold row locks
// that a writer the freeze waits for may want.
//
// setval is not undone by a rollback. So every change of a flag goes through fence_hold first, which takes the
// advisory lock exclusively and then the node's epoch row, raises unless the epoch is the caller's, and only then the
// flag is checked and set. All of it is one statement, so that nothing can come in between.
const fenceDDL = `
create schema if not exists pgreshard;
create sequence if not exists pgreshard.fence_layout minvalue 0 start 0;
create sequence if not exists pgreshard.fence_serving minvalue 0 start 0;
create sequence if not exists pgreshard.fence_until minvalue 0 start 0;

create or replace function pgreshard.fence_now() returns bigint language sql volatile set search_path = pg_catalog, pg_temp as $$
  select (extract(epoch from clock_timestamp()) * 1000000)::bigint
$$;

create or replace function pgreshard.fence() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
  mine text := current_setting('pgreshard.epoch', true);
  until bigint;
  used bigint;
  serving bigint;
begin
  if mine <> '' and mine = (select e.epoch::text from pgreshard.epoch e) then
    return null;
  end if;
  if pg_try_advisory_xact_lock_shared(1885827699, 1) then
    until := (select last_value from pgreshard.fence_until);
    if until = 0 then
      return null;
    end if;
    if until <= pgreshard.fence_now() then
      -- Set before anything is written, so that a clock that steps back cannot hide this write from the seal.
      perform setval('pgreshard.fence_until', 0);
      return null;
    end if;
  end if;
  used := (select last_value from pgreshard.fence_layout);
  serving := (select last_value from pgreshard.fence_serving);
  if used = serving then
    raise exception using errcode = '25006',
      message = format('pgreshard: write to %I.%I refused: layout %s was used, which serves but takes no writes during a switch', tg_table_schema, tg_table_name, used),
      hint = 'Roll back, wait a moment, and retry the whole transaction.';
  end if;
  raise exception using errcode = '25006',
    message = format('pgreshard: write to %I.%I refused: layout %s was used, but layout %s serves', tg_table_schema, tg_table_name, used, serving),
    hint = format('Roll back, connect to the shards of layout %s, and retry the whole transaction.', serving);
end $$;

-- The moved tables, every table of their partition trees, and every table they inherit from: a statement trigger does
-- not fire for a table that is written through another.
create or replace function pgreshard.fence_scope(moved text[]) returns setof oid language sql stable set search_path = pg_catalog, pg_temp as $$
  with recursive
  up (oid) as (
    select t::regclass::oid from unnest(moved) t
    union select i.inhparent from up join pg_inherits i on i.inhrelid = up.oid),
  down (oid) as (
    select oid from up
    union select i.inhrelid from down join pg_inherits i on i.inhparent = down.oid join pg_class c on c.oid = i.inhrelid and c.relispartition)
  select oid from down
$$;

create or replace function pgreshard.fence_unfenced(moved text[], always boolean) returns setof oid language sql stable set search_path = pg_catalog, pg_temp as $$
  select s from pgreshard.fence_scope(moved) s
   where not exists (select from pg_trigger t where t.tgrelid = s and t.tgfoid = 'pgreshard.fence'::regproc
                      and t.tgenabled = case when always then 'A' else 'O' end)
$$;

create or replace function pgreshard.fence_hold(e bigint, wait_ms bigint) returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare current bigint;
begin
  perform set_config('lock_timeout', wait_ms::text, true), set_config('synchronous_commit', 'on', true);
  perform pg_advisory_xact_lock(1885827699, 1);
  select n.epoch into current from pgreshard.epoch n for update;
  if current is distinct from e then
    raise exception using errcode = 'PR002', message = format('epoch %s was raised to %s: another worker has taken over', e, current);
  end if;
  return (select last_value from pgreshard.fence_until);
end $$;

create or replace function pgreshard.fence_expect(moved text[]) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare missing text := (select string_agg(u::regclass::text, ', ' order by u::regclass::text) from pgreshard.fence_unfenced(moved, true) u);
begin
  if missing is not null then
    raise exception using errcode = 'PR012', message = 'no fence on ' || missing;
  end if;
end $$;

-- Who has written to a table in scope, or changed it, without asking the fence: a transaction that disabled its
-- triggers, or attaches a partition. Those that do ask hold the lock that is ours now, or are about to be refused; both
-- are waited for, each as it is found now.
create or replace function pgreshard.fence_alone(moved text[], wait_ms bigint) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  scope oid[] := array(select pgreshard.fence_scope(moved));
  mydb oid := (select d.oid from pg_database d where d.datname = current_database());
  found text[];
  over timestamptz := clock_timestamp() + make_interval(secs => wait_ms / 1000.0);
  who int;
begin
  loop
    select array_agg(l.virtualtransaction), min(l.pid) into found, who
      from pg_locks l left join pg_class c on c.oid = l.relation
     where l.locktype = 'relation' and l.database = mydb and l.granted and l.pid is distinct from pg_backend_pid() and l.relation = any (scope)
       and (found is null or l.virtualtransaction = any (found))
       and (l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') or l.mode = 'ShareUpdateExclusiveLock' and c.relkind = 'p');
    exit when found is null;
    if clock_timestamp() > over then
      raise exception using errcode = '55P03', message = format('pid %s has a table of the move locked for writing', coalesce(who::text, 'of a prepared transaction'));
    end if;
    perform pg_sleep(0.001);
  end loop;
end $$;

create or replace function pgreshard.fence_arrange(e bigint, wait_ms bigint, node_layout bigint, serving bigint, closed boolean) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
  was bigint := pgreshard.fence_hold(e, wait_ms);
  had bigint := (select last_value from pgreshard.fence_layout);
begin
  if had = node_layout then
    return;
  end if;
  if had <> 0 and not closed then
    raise exception using errcode = 'PR011', message = format('this node has the fence of layout %s, not %s', had, node_layout);
  end if;
  perform setval('pgreshard.fence_until', case when closed then 9223372036854775807 else 0 end);
  perform setval('pgreshard.fence_serving', serving);
  perform setval('pgreshard.fence_layout', node_layout);
end $$;

create or replace function pgreshard.fence_freeze(e bigint, wait_ms bigint, moved text[], for_us bigint, prefix text, content text, out until bigint, out barrier pg_lsn) language plpgsql set search_path = pg_catalog, pg_temp as $$
declare was bigint := pgreshard.fence_hold(e, wait_ms);
begin
  if was > pgreshard.fence_now() then
    raise exception using errcode = 'PR011', message = case was when 9223372036854775807 then 'this node is sealed' else 'this node is frozen already' end;
  end if;
  perform pgreshard.fence_alone(moved, wait_ms);
  perform pgreshard.fence_expect(moved);
  barrier := pg_logical_emit_message(true, prefix, content);
  until := pgreshard.fence_now() + for_us;
  perform setval('pgreshard.fence_until', until);
end $$;

create or replace function pgreshard.fence_seal(e bigint, wait_ms bigint, moved text[], value bigint) returns pg_lsn language plpgsql set search_path = pg_catalog, pg_temp as $$
declare was bigint := pgreshard.fence_hold(e, wait_ms);
begin
  if was <> value and was <> 9223372036854775807 then
    raise exception using errcode = 'PR011', message = 'the freeze ran out or was lifted before the seal';
  end if;
  perform pgreshard.fence_alone(moved, wait_ms);
  perform pgreshard.fence_expect(moved);
  perform setval('pgreshard.fence_until', 9223372036854775807);
  return pg_current_wal_insert_lsn();
end $$;

create or replace function pgreshard.fence_lift(e bigint, wait_ms bigint, value bigint) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare was bigint := pgreshard.fence_hold(e, wait_ms);
begin
  if was <> value and was <> 0 and value <> -1 then
    raise exception using errcode = 'PR011', message = 'the freeze to lift is not the one that stands';
  end if;
  perform setval('pgreshard.fence_until', 0);
end $$;

create or replace function pgreshard.fence_open(e bigint, wait_ms bigint, version bigint) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare was bigint := pgreshard.fence_hold(e, wait_ms);
begin
  if version <> (select last_value from pgreshard.fence_layout) then
    raise exception using errcode = 'PR011', message = format('this node does not belong to layout %s', version);
  end if;
  perform setval('pgreshard.fence_serving', version);
  perform setval('pgreshard.fence_until', 0);
end $$;

create or replace function pgreshard.fence_retire(e bigint, wait_ms bigint, version bigint) returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare was bigint := pgreshard.fence_hold(e, wait_ms);
begin
  if was <> 9223372036854775807 then
    raise exception using errcode = 'PR011', message = 'this node is not sealed';
  end if;
  perform setval('pgreshard.fence_serving', version);
end $$;`

const fenceDropDDL = `
drop function if exists pgreshard.fence_retire, pgreshard.fence_open, pgreshard.fence_lift, pgreshard.fence_seal, pgreshard.fence_freeze,
  pgreshard.fence_arrange, pgreshard.fence_alone, pgreshard.fence_expect, pgreshard.fence_hold, pgreshard.fence_unfenced, pgreshard.fence_scope,
  pgreshard.fence, pgreshard.fence_now;
drop sequence if exists pgreshard.fence_until, pgreshard.fence_serving, pgreshard.fence_layout;`

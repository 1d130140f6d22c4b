package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// SchemaVersion is the version of the tables below. A newer program takes an older schema over, an older program
// refuses a newer one.
const SchemaVersion = 2

// ErrNewerSchema means that a newer pgreshard made the bookkeeping of this database; run that version.
var ErrNewerSchema = errors.New("the bookkeeping in schema pgreshard was made by a newer pgreshard; hint: run that version")

// ErrForeignSchema means that a schema pgreshard is there without our bookkeeping: it is not ours to use or to drop.
var ErrForeignSchema = errors.New("a schema pgreshard is there that pgreshard has not made; hint: rename it, or drop it if nobody needs it")

const installLock = `select pg_advisory_xact_lock(hashtextextended('pgreshard.install', 0))`

// The functions raise in the server, because a row count read by the client comes too late when the commit is already
// in the pipeline. Their SQLSTATEs: PR001 another position than expected, PR002 another epoch,
// PR003 another number of rows changed than the stream says.
const schemaDDL = `
create schema if not exists pgreshard;
create table if not exists pgreshard.version (
  single boolean primary key default true check (single), version int not null);
create table if not exists pgreshard.epoch (
  single boolean primary key default true check (single), epoch bigint not null);
insert into pgreshard.epoch (epoch) values (0) on conflict do nothing;
create table if not exists pgreshard.checkpoint (
  move text, source int, lsn pg_lsn not null, moved_at timestamptz not null default now(), primary key (move, source));
create table if not exists pgreshard.chunk (
  move text, source int, tbl text, chunk int, filenode bigint not null, primary key (move, source, tbl, chunk));
create table if not exists pgreshard.resumed (
  move text, source int, tbl text, forgive_until pg_lsn, starts_at pg_lsn, primary key (move, source, tbl));
create table if not exists pgreshard.outbox (
  move text, source int, commit_lsn pg_lsn, n bigint, tbl text not null, image text[] not null,
  primary key (move, source, commit_lsn, n));
alter table pgreshard.outbox add column if not exists columns text[] not null default '{}';
create table if not exists pgreshard.unmapped (
  move text not null, source int not null, commit_lsn pg_lsn not null, tbl text not null, key text, placed boolean not null default false, value text,
  mapped_by int, mapped_lsn pg_lsn);
create index if not exists unmapped_at on pgreshard.unmapped (move, source, commit_lsn);
create table if not exists pgreshard.layout (
  database text, version int, record jsonb not null, primary key (database, version));
create table if not exists pgreshard.serving (
  single boolean primary key default true check (single), database text not null, version int not null, since timestamptz not null);
create table if not exists pgreshard.move (
  name text primary key, state text not null, error text, spec jsonb not null, detail jsonb not null default '{}',
  made_at timestamptz not null default now(), changed_at timestamptz not null default now());
create table if not exists pgreshard.lease (
  move text primary key, epoch bigint not null, host text not null, pid int not null, address text not null, beat timestamptz not null);
create table if not exists pgreshard.journal (
  id bigint generated always as identity primary key, move text not null, at timestamptz not null default clock_timestamp(),
  step text not null, phase text not null, note jsonb not null default '{}');
create or replace function pgreshard.check_epoch(e bigint) returns void language plpgsql set search_path = pg_catalog as $$
declare current bigint;
begin
  select epoch into current from pgreshard.epoch;
  if current is distinct from e then
    raise exception using errcode = 'PR002', message = format('epoch %s was raised to %s: another worker has taken over', e, current);
  end if;
end $$;
create or replace function pgreshard.advance(m text, s int, was pg_lsn, becomes pg_lsn, e bigint) returns void language plpgsql set search_path = pg_catalog as $$
begin
  update pgreshard.checkpoint set lsn = becomes, moved_at = now() where move = m and source = s and lsn = was;
  if not found then
    raise exception using errcode = 'PR001', message = format('checkpoint of source %s is not %s any more', s, was);
  end if;
  perform pgreshard.check_epoch(e);
end $$;
create or replace function pgreshard.mark(m text, s int, t text, c int, f bigint, e bigint) returns void language plpgsql set search_path = pg_catalog as $$
begin
  insert into pgreshard.chunk (move, source, tbl, chunk, filenode) values (m, s, t, c, f);
  perform pgreshard.check_epoch(e);
end $$;
create or replace function pgreshard.expect(got bigint, want bigint) returns void language plpgsql set search_path = pg_catalog as $$
begin
  if got <> want then
    raise exception using errcode = 'PR003', message = format('%s rows were there to change, not %s', got, want);
  end if;
end $$;`

// Installed says whether this database has the bookkeeping schema.
func Installed(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var there bool
	err := conn.QueryRow(ctx, `select to_regclass('pgreshard.version') is not null`).Scan(&there)
	return there, err
}

// Install makes the bookkeeping schema where it is missing. It may be called at every start and by several at once.
func Install(ctx context.Context, conn *pgx.Conn) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, installLock); err != nil {
			return err
		}
		if err := RefuseForeign(ctx, tx); err != nil {
			return err
		}
		version, err := installedVersion(ctx, tx)
		switch {
		case err != nil:
			return err
		case version > SchemaVersion:
			return ErrNewerSchema
		case version == SchemaVersion: // making it again would wait for who writes these tables: a worker that is suspended, and to be taken over from
			return nil
		}
		if _, err := tx.Exec(ctx, schemaDDL); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `insert into pgreshard.version (version) values ($1)
			on conflict (single) do update set version = excluded.version`, SchemaVersion)
		return err
	})
	if err != nil {
		return fmt.Errorf("make schema pgreshard: %w", err)
	}
	return nil
}

// RefuseForeign is ErrForeignSchema where this database has a schema of our name that is somebody else's.
func RefuseForeign(ctx context.Context, q pg.Querier) error {
	var foreign bool
	err := q.QueryRow(ctx, `select to_regnamespace('pgreshard') is not null and to_regclass('pgreshard.version') is null`).Scan(&foreign)
	if err == nil && foreign {
		return ErrForeignSchema
	}
	return err
}

// installedVersion is 0 where there is none.
func installedVersion(ctx context.Context, tx pgx.Tx) (version int, err error) {
	var there bool
	if err := tx.QueryRow(ctx, `select to_regclass('pgreshard.version') is not null`).Scan(&there); err != nil || !there {
		return 0, err
	}
	err = tx.QueryRow(ctx, `select version from pgreshard.version`).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return version, err
}

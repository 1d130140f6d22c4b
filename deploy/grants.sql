-- What the role that moves a database needs, and no more. With psql as a superuser (or a managed server's administrator), in
-- the database, once on every server of the move:
--
--   psql -d shop -v mover=mover -v owner=shop_owner -v side=source -f deploy/grants.sql
--
-- mover: the role pgreshard connects as; it is made where it is not there. Give it a password after that: \password mover
-- owner: who owns the moved tables; for several, once for each.
-- side:  source, destination, or both: with [cutover] reverse = true, the default, every server is both.
--
-- Roles are not moved: make every owner, and every role that has grants, on the destination first. pg_hba.conf must let mover
-- connect to the database, and on a source as a replication connection to it (type `host`, database its name).
\set ON_ERROR_STOP on
select :'side' in ('source', 'both') as source, :'side' in ('destination', 'both') as destination \gset

select format('create role %I login', :'mover') where not exists (select from pg_roles where rolname = :'mover') \gexec

-- Schema pgreshard: positions, the lease, which layout serves.
select format('grant create on database %I to %I', current_database(), :'mover') \gexec

-- Publishing a table, a trigger on it, making it: all want its owner.
grant :"owner" to :"mover";

-- Whose transactions are in a freeze's way, and what standbys have.
grant pg_monitor to :"mover";

\if :source
alter role :"mover" replication;
\endif

\if :destination
-- Rows come as they are: no user trigger fires for them. PostgreSQL 14 has no such grant: mover must be superuser there.
grant set on parameter session_replication_role to :"mover";
-- The tables are made for their owner, who needs a place for them.
grant create, usage on schema public to :"owner";
\endif

-- Only where the configuration asks for it:
--   [cutover] on_blockers = "terminate", end_old_sessions = true:  grant pg_signal_backend to mover;
--   tables with FORCE ROW LEVEL SECURITY:                          alter role mover bypassrls;
--   lookups that read other roles' tables:                         grant select on those tables to mover;

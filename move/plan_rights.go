package move

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// schemaRoles are the roles a source's schema names, which pg_restore needs on every destination.
type schemaRoles struct {
	owners  []string     // to be given objects: the worker's role must be able to become each
	creates []schemaRole // who owns something in which schema: it needs CREATE there
	named   []string     // in grants and policies: they must exist
	forced  bool         // a moved table has row security that even its owner is under
}

type schemaRole struct{ schema, role string }

// What of a schema belongs to whom: $1 are the moved tables. An extension's members come with the extension.
const (
	selectOwned = `
with owned (class, oid, schema, owner) as (
  select tableoid, oid, relnamespace, relowner from pg_class where oid = any($1)
  union all select tableoid, oid, pronamespace, proowner from pg_proc
  union all select tableoid, oid, typnamespace, typowner from pg_type where typrelid = 0 and typelem = 0 and typtype <> 'm'
)
select n.nspname, pg_get_userbyid(o.owner) from owned o join pg_namespace n on n.oid = o.schema
 where n.nspname not in ('information_schema', 'pgreshard') and n.nspname !~ '^pg_'
   and not exists (select from pg_depend d where d.classid = o.class and d.objid = o.oid and d.deptype = 'e')
 group by 1, 2 order by 1, 2`
	// Schema public belongs to whom a new database gives it to, unless somebody changed that.
	selectSchemaOwners = `
select pg_get_userbyid(nspowner) from pg_namespace
 where nspname = any($1) and not (nspname = 'public' and (nspowner = 10 or pg_get_userbyid(nspowner) = 'pg_database_owner'))
union select pg_get_userbyid(defaclrole) from pg_default_acl where $2`
	selectNamed = `
with granted (acl) as (
  select relacl from pg_class where oid = any($1)
  union all select attacl from pg_attribute where attrelid = any($1)
  union all select nspacl from pg_namespace where nspname = any($2)
  union all select proacl from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = any($2)
  union all select defaclacl from pg_default_acl
)
select pg_get_userbyid(a.grantee) from granted, aclexplode(acl) a where a.grantee <> 0
union select pg_get_userbyid(role) from pg_policy, unnest(polroles) role where polrelid = any($1) and role <> 0`
	selectForced = `select exists (select from pg_class where oid = any($1) and relrowsecurity and relforcerowsecurity)`
)

// readRoles reads them from the first source, whose schema is the one that is carried.
func (p *planner) readRoles(ctx context.Context, inv *inventory) (r schemaRoles, err error) {
	oids := p.movedOIDs(inv.sources[0])
	err = p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectOwned, oids)
		if err != nil {
			return err
		}
		var schemas []string
		var c schemaRole
		_, err = pgx.ForEachRow(rows, []any{&c.schema, &c.role}, func() error {
			schemas, r.owners, r.creates = append(schemas, c.schema), append(r.owners, c.role), append(r.creates, c)
			return nil
		})
		if err != nil {
			return err
		}
		more, err := collectStrings(ctx, conn, selectSchemaOwners, schemas, p.Grants)
		if err != nil {
			return err
		}
		r.owners = append(r.owners, more...)
		slices.Sort(r.owners)
		r.owners = slices.Compact(r.owners)
		if r.named, err = collectStrings(ctx, conn, selectNamed, oids, schemas); err != nil {
			return err
		}
		return conn.QueryRow(ctx, selectForced, oids).Scan(&r.forced)
	})
	return r, err
}

func collectStrings(ctx context.Context, q pg.Querier, sql string, args ...any) ([]string, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// checkRights looks on every destination for what pg_restore and the worker would be refused there.
func (p *planner) checkRights(ctx context.Context, inv *inventory) {
	roles, err := p.readRoles(ctx, inv)
	if err != nil {
		p.problem("source shard 0", "its roles cannot be read: "+oneLine(err), "")
		return
	}
	for n, shard := range p.Destination.Shards {
		where := fmt.Sprintf("destination shard %d", n)
		_ = p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error { // a shard that does not answer is a problem already
			d := &destinationRights{planner: p, where: where, conn: conn, user: conn.Config().User}
			if err := d.check(ctx, roles); err != nil {
				p.problem(where, "its roles cannot be read: "+oneLine(err), "")
			}
			return nil
		})
	}
}

// destinationRights are those of the worker's role on one destination.
type destinationRights struct {
	*planner
	where, user string
	conn        *pgx.Conn
}

func (d *destinationRights) check(ctx context.Context, roles schemaRoles) error {
	if err := d.conn.QueryRow(ctx, `select current_user::text`).Scan(&d.user); err != nil {
		return err
	}
	if !d.CreateSchema { // checkExisting looks at the tables themselves
		return nil
	}
	if roles.forced {
		if err := d.checkForced(ctx); err != nil {
			return err
		}
	}
	if !d.Owners {
		roles.owners = nil
		for i := range roles.creates {
			roles.creates[i].role = d.user
		}
		roles.creates = slices.Compact(slices.Clone(roles.creates))
	}
	if !d.Grants {
		roles.named = nil
	}
	if err := d.checkExist(ctx, slices.Concat(roles.owners, roles.named)); err != nil {
		return err
	}
	if err := d.checkMembership(ctx, roles.owners); err != nil {
		return err
	}
	return d.checkCreate(ctx, roles.creates)
}

const selectBypass = `select rolsuper or rolbypassrls from pg_roles where rolname = current_user`

func (d *destinationRights) checkForced(ctx context.Context) error {
	var bypass bool
	err := d.conn.QueryRow(ctx, selectBypass).Scan(&bypass)
	if err == nil && !bypass {
		d.problem(d.where, "a moved table has forced row security, and role "+d.user+" is under it", "alter role "+ident(d.user)+" bypassrls")
	}
	return err
}

const selectNoRole = `select distinct name from unnest($1::text[]) name where not exists (select from pg_roles where rolname = name) order by 1`

// checkExist: roles are not moved.
func (d *destinationRights) checkExist(ctx context.Context, names []string) error {
	missing, err := collectStrings(ctx, d.conn, selectNoRole, names)
	for _, name := range missing {
		d.problem(d.where, "role "+name+", which owns or is granted something on the source, does not exist", "create role "+ident(name)+", with the attributes it has on the source")
	}
	return err
}

// Becoming an owner takes the right to SET ROLE, from 16 on a part of membership of its own; acting on what it owns
// takes inheritance.
const selectNoMember = `select rolname, rolsuper from pg_roles
 where rolname = any($1) and not (pg_has_role(oid, 'usage') and pg_has_role(oid, $2)) order by 1`

func (d *destinationRights) checkMembership(ctx context.Context, owners []string) error {
	set, how := "member", ""
	if serverMajor(d.conn) >= 16 {
		set, how = "set", " with inherit true, set true"
	}
	rows, err := d.conn.Query(ctx, selectNoMember, owners, set)
	if err != nil {
		return err
	}
	var owner string
	var super bool
	_, err = pgx.ForEachRow(rows, []any{&owner, &super}, func() error {
		hint := "grant " + ident(owner) + " to " + ident(d.user) + how
		if super { // membership would hand out far more than the moved tables
			hint = "set [schema] owners = false: everything then belongs to " + d.user + "; or give the source's objects another owner"
		}
		d.problem(d.where, "role "+d.user+" cannot give anything to "+owner+", which owns a part of the source's schema", hint)
		return nil
	})
	return err
}

// A superuser gives anything to any role.
const selectNoCreate = `select n.nspname, r.rolname
  from unnest($1::text[], $2::text[]) p (schema, role) join pg_namespace n on n.nspname = p.schema join pg_roles r on r.rolname = p.role
 where not (has_schema_privilege(r.oid, n.oid, 'create') and has_schema_privilege(r.oid, n.oid, 'usage'))
   and not (select rolsuper from pg_roles where rolname = current_user) order by 1, 2`

// checkCreate looks at schemas that are there already; one that is not is made by the worker, who owns it then.
func (d *destinationRights) checkCreate(ctx context.Context, creates []schemaRole) error {
	schemas, roles := make([]string, len(creates)), make([]string, len(creates))
	for i, c := range creates {
		schemas[i], roles[i] = c.schema, c.role
	}
	rows, err := d.conn.Query(ctx, selectNoCreate, schemas, roles)
	if err != nil {
		return err
	}
	var schema, role string
	_, err = pgx.ForEachRow(rows, []any{&schema, &role}, func() error {
		d.problem(d.where, "role "+role+" may not create anything in schema "+schema, "grant create, usage on schema "+ident(schema)+" to "+ident(role))
		return nil
	})
	return err
}

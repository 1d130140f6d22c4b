package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// objectID is what tells an object from all others of its database: OID of its catalog, and its own OID.
type objectID struct{ class, oid uint32 }

// object is what a catalog says of something an archive has an entry for.
type object struct {
	id       objectID
	identity string  // pg_identify_object's: the same on every server
	kind     string  // table, relation, index, unique, exclusion, fk, default, trigger, other
	name     string  // unqualified
	table    pg.Name // the table (or other relation) it is or belongs to
	index    uint32  // the index behind a constraint
	parent   uint32  // the index an index is a partition of

	identityIndex bool // the index tells rows apart: primary key or replica identity, and every index above one
	ours          bool // made by pgreshard
	repeatable    bool // its entry may be restored where it exists already
}

// key is what makes objects of two servers the same.
func (o object) key() string { return fmt.Sprintf("%d %s", o.id.class, o.identity) }

// OIDs of the system catalogs, the same in every version.
const (
	classDefaultACL   = 826
	classRelation     = 1259
	classDefault      = 2604
	classConstraint   = 2606
	classNamespace    = 2615
	classRule         = 2618
	classTrigger      = 2620
	classExtension    = 3079
	classPolicy       = 3256
	classStatistics   = 3381
	classEventTrigger = 3466
)

// knownClass says that selectObjects lists a catalog's objects.
func knownClass(class uint32) bool {
	switch class {
	case classRelation, classDefault, classConstraint, classNamespace, classRule, classTrigger, classExtension, classPolicy,
		classStatistics, classEventTrigger:
		return true
	}
	return false
}

// classPhase is the phase of an archive's entry by its catalog alone. Row security's entry has its table's OID and no
// catalog.
func classPhase(o object, class, oid uint32) Phase {
	switch {
	case o.kind == "unique" || o.kind == "exclusion":
		return PhaseUnique
	case class == classRelation && o.kind == "index", class == classConstraint, class == classStatistics:
		return PhaseIndexes
	case class == classRule, class == classTrigger, class == classPolicy, class == classDefaultACL, class == 0 && oid != 0:
		return PhaseTriggers
	}
	return PhaseTables
}

// An identity index is the same as for pg.Table.Key. The indexes above it are of the kind too, because the archive
// attaches an index to the one above it.
const selectObjects = `
with recursive identity (oid) as (
  select i.indexrelid from pg_index i
   where (i.indisprimary or i.indisreplident) and i.indisunique and i.indimmediate and i.indpred is null
  union
  select h.inhparent from identity i join pg_inherits h on h.inhrelid = i.oid
), object as (
  select c.tableoid, c.oid,
         case when c.relkind in ('r', 'p') then 'table'
              when c.relkind in ('i', 'I') then case when i.indisunique and x.oid is null then 'unique' else 'index' end
              else 'relation' end as kind,
         c.relname as name, coalesce(i.indrelid, c.oid) as rel, 0::oid as index, coalesce(h.inhparent, 0) as parent,
         exists (select from identity where identity.oid = c.oid) as identity, false as ours, false as repeatable
    from pg_class c left join pg_index i on i.indexrelid = c.oid
    left join pg_inherits h on h.inhrelid = c.oid and c.relkind in ('i', 'I')
    left join pg_constraint x on x.conindid = c.oid and x.contype in ('p', 'u', 'x')
   where c.relkind not in ('t', 'c') and c.relpersistence <> 't'
  union all
  select tableoid, oid, case contype when 'f' then 'fk' when 'u' then 'unique' when 'p' then 'unique' when 'x' then 'exclusion' else 'other' end,
         conname, conrelid, case when contype in ('p', 'u', 'x') then conindid else 0 end, 0, false, false, false
    from pg_constraint
  union all
  select d.tableoid, d.oid, 'default', '', d.adrelid, 0, 0, false, false, false from pg_attrdef d
  union all
  select t.tableoid, t.oid, 'trigger', t.tgname, t.tgrelid, 0, 0, false, p.pronamespace = to_regnamespace('pgreshard'), false
    from pg_trigger t join pg_proc p on p.oid = t.tgfoid
   where not exists (select from pg_constraint c where c.oid = t.tgconstraint and c.contype <> 't')
  union all
  select tableoid, oid, 'other', rulename, ev_class, 0, 0, false, false, rulename = '_RETURN' from pg_rewrite
  union all
  select tableoid, oid, 'other', polname, polrelid, 0, 0, false, false, false from pg_policy
  union all
  select tableoid, oid, 'other', stxname, stxrelid, 0, 0, false, false, false from pg_statistic_ext
  union all
  select tableoid, oid, 'other', extname, 0, 0, 0, false, false, false from pg_extension
  union all
  select tableoid, oid, 'other', nspname, 0, 0, 0, false, false, nspname = 'public' from pg_namespace
  union all
  select tableoid, oid, 'other', evtname, 0, 0, 0, false, false, false from pg_event_trigger
)
select o.tableoid, o.oid, coalesce((pg_identify_object(o.tableoid, o.oid, 0)).identity, ''), o.kind, o.name,
       coalesce(n.nspname, ''), coalesce(c.relname, ''), o.index, o.parent, o.identity, coalesce(o.ours, false), o.repeatable
  from object o left join pg_class c on c.oid = o.rel left join pg_namespace n on n.oid = c.relnamespace
 where n.nspname is null or (n.nspname <> 'information_schema' and n.nspname <> 'pgreshard' and n.nspname !~ '^pg_')`

// readObjects lists what a database has of the kinds whose phase or existence matters.
func readObjects(ctx context.Context, q pg.Querier) (map[objectID]object, error) {
	rows, err := q.Query(ctx, selectObjects)
	if err != nil {
		return nil, fmt.Errorf("read what the database has: %w", err)
	}
	out := map[objectID]object{}
	var o object
	scan := []any{&o.id.class, &o.id.oid, &o.identity, &o.kind, &o.name, &o.table.Schema, &o.table.Table, &o.index, &o.parent,
		&o.identityIndex, &o.ours, &o.repeatable}
	if _, err := pgx.ForEachRow(rows, scan, func() error { out[o.id] = o; return nil }); err != nil {
		return nil, fmt.Errorf("read what the database has: %w", err)
	}
	return out, nil
}

package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// ObjectsError names what hangs on moved tables on one side only: it was made or dropped since the schema was carried.
// Nothing was refused for it.
type ObjectsError struct{ Differences []string }

func (e *ObjectsError) Error() string {
	return fmt.Sprintf("the source and the shards do not have the same on the moved tables: %s; hint: make each alike on both sides "+
		"(what is missing on a shard by the source's own definition), then run the same command again", strings.Join(e.Differences, "; "))
}

// attached is something that hangs on a table, told by its kind and name alone: servers of different versions write its
// definition differently.
type attached struct {
	table      pg.Name
	kind, name string
}

func (a attached) String() string {
	if a.name == "" {
		return fmt.Sprintf("%s of %s", a.kind, a.table)
	}
	return fmt.Sprintf("%s %s of %s", a.kind, a.name, a.table)
}

func (a attached) unique() bool {
	return strings.HasPrefix(a.kind, "unique ") || a.kind == "primary key"
}

// What a partition has because its table has it is not listed, since the server names it as it likes; nor are foreign
// keys, which are made later, NOT NULL constraints, which are the columns', and what is pgreshard's own. An index that
// is not valid does not count.
const selectAttached = `
with moved as (
  select c.oid, n.nspname, c.relname, c.relrowsecurity, c.relforcerowsecurity
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    join unnest($1::text[], $2::text[]) m (schema, name) on m.schema = n.nspname and m.name = c.relname
), attached as (
  select i.indrelid as rel, case when i.indisunique then 'unique index' else 'index' end as kind, c.relname as name, c.tableoid as class, c.oid
    from pg_index i join pg_class c on c.oid = i.indexrelid
   where not c.relispartition and (i.indisvalid or c.relkind = 'I')
     and not exists (select from pg_constraint x where x.conindid = c.oid and x.conrelid = i.indrelid and x.contype in ('p', 'u', 'x'))
  union all
  select conrelid, case contype when 'p' then 'primary key' when 'u' then 'unique constraint' when 'x' then 'exclusion constraint' else 'check constraint' end,
         conname, tableoid, oid
    from pg_constraint where contype in ('p', 'u', 'x', 'c') and conparentid = 0 and coninhcount = 0
  union all
  select t.tgrelid, 'trigger', t.tgname, t.tableoid, t.oid from pg_trigger t join pg_proc p on p.oid = t.tgfoid
   where t.tgparentid = 0 and p.pronamespace is distinct from to_regnamespace('pgreshard')
     and not exists (select from pg_constraint x where x.oid = t.tgconstraint and x.contype <> 't')
  union all
  select polrelid, 'policy', polname, tableoid, oid from pg_policy
  union all
  select ev_class, 'rule', rulename, tableoid, oid from pg_rewrite where rulename <> '_RETURN'
  union all
  select stxrelid, 'statistics', stxname, tableoid, oid from pg_statistic_ext
  union all
  select oid, 'row security', '', 0, oid from moved where relrowsecurity
  union all
  select oid, 'forced row security', '', 'pg_class'::regclass::oid, oid from moved where relforcerowsecurity
)
select m.nspname, m.relname, a.kind, a.name, a.class, a.oid from attached a join moved m on m.oid = a.rel`

func readAttached(ctx context.Context, q pg.Querier, tables []pg.Name) (map[attached]objectID, error) {
	schemas, names := splitNames(tables)
	rows, err := q.Query(ctx, selectAttached, schemas, names)
	if err != nil {
		return nil, fmt.Errorf("read what hangs on the moved tables: %w", err)
	}
	out := map[attached]objectID{}
	var a attached
	var id objectID
	_, err = pgx.ForEachRow(rows, []any{&a.table.Schema, &a.table.Table, &a.kind, &a.name, &id.class, &id.oid}, func() error { out[a] = id; return nil })
	if err != nil {
		return nil, fmt.Errorf("read what hangs on the moved tables: %w", err)
	}
	return out, nil
}

// sameObjects compares what hangs on the moved tables on the first source with what every shard has; the error is an
// *ObjectsError. Only where something is missing the schema is dumped again, to know what was left out on purpose.
func (m *Move) sameObjects(ctx context.Context, inv *inventory) error {
	var source map[attached]objectID
	err := m.source(ctx, 0, func(conn *pgx.Conn) (err error) {
		source, err = readAttached(ctx, conn, inv.tree(0))
		return err
	})
	if err != nil {
		return err
	}
	shards := make([]map[attached]objectID, len(m.Destination.Shards))
	err = m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (err error) {
		shards[n], err = readAttached(ctx, conn, inv.tree(0))
		return err
	})
	if err != nil {
		return err
	}
	missing := m.missingOn(source, shards)
	if len(missing) > 0 {
		dump, err := m.dumpSchema(ctx, inv)
		if err != nil {
			return err
		}
		defer dump.Close()
		left := dump.leftOut()
		for a := range missing {
			if left[source[a]] {
				delete(missing, a)
			}
		}
	}
	return differences(source, shards, missing)
}

// missingOn lists what of the source some shard lacks, but what [schema] skip names.
func (m *Move) missingOn(source map[attached]objectID, shards []map[attached]objectID) map[attached]bool {
	missing := map[attached]bool{}
	for a := range source {
		if a.unique() && slices.Contains(m.SkipConstraint, "unique:"+a.name) {
			continue
		}
		for _, there := range shards {
			if _, ok := there[a]; !ok {
				missing[a] = true
			}
		}
	}
	return missing
}

func differences(source map[attached]objectID, shards []map[attached]objectID, missing map[attached]bool) error {
	on := map[string][]string{} // by what differs, the shards
	for n, there := range shards {
		for a := range missing {
			if _, ok := there[a]; !ok {
				on[a.String()+" is missing"] = append(on[a.String()+" is missing"], fmt.Sprint(n))
			}
		}
		for a := range there {
			if _, ok := source[a]; !ok {
				on[a.String()+" is not on the source, and is"] = append(on[a.String()+" is not on the source, and is"], fmt.Sprint(n))
			}
		}
	}
	var all []string
	for what, shards := range on {
		noun := "shard "
		if len(shards) > 1 {
			noun = "shards "
		}
		all = append(all, what+" on "+noun+strings.Join(shards, ", "))
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return &ObjectsError{all}
}

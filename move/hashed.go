package move

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// A key of a type that layout does not hash itself is hashed by whichever server is asked (layout.Rule.HashQuery). That is
// the same hash everywhere only where nothing in the value is of one database alone.

// selectParts lists the types a column is made of, however deep, that stand in the way: those whose values are OIDs
// (enums, names of objects, grants), those of an extension that has the database's locale in its hash, and collations
// under which equal texts differ, whose sort keys are hashed.
const selectParts = `
with recursive part (type, coll) as (
  select a.atttypid, a.attcollation from pg_attribute a where a.attrelid = $1 and a.attname = $2
  union
  select n.type, n.coll
    from part p join pg_type t on t.oid = p.type cross join lateral (
      select t.typbasetype, p.coll where t.typtype = 'd'
      union all select t.typelem, p.coll where t.typsubscript = 'array_subscript_handler'::regproc
      union all select a.atttypid, a.attcollation from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
      union all select r.rngsubtype, r.rngcollation from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)
    ) n (type, coll)
)
select format_type(t.oid, -1),
       t.typtype = 'e' or t.typnamespace = 'pg_catalog'::regnamespace and (t.typname = 'aclitem' or t.typname like 'reg%'),
       t.typtype = 'b' and t.typcollation <> 0 and t.typsubscript <> 'array_subscript_handler'::regproc and t.typnamespace <> 'pg_catalog'::regnamespace,
       exists (select from pg_collation c where c.oid = p.coll and not c.collisdeterministic)
  from part p join pg_type t on t.oid = p.type order by 1`

// localParts are what makes a table's hash one of its databases' settings; empty where nothing does.
type localParts struct {
	locale    string // a type whose hash goes by the database's locale
	collation bool   // a non-deterministic collation, whose sort keys are those of the server's ICU
}

// readHashes finds out of every table whose key servers are to hash, by either layout, whether all hash it alike. Its error is
// a *PlanError where not.
func (inv *inventory) readHashes(ctx context.Context, m *Move) error {
	var problems layout.Problems
	for _, t := range inv.tables {
		for _, by := range []struct {
			rule  *layout.Rule
			query *lookup.Query
		}{{t.rule, t.query}, {t.sourceRule, t.sourceQuery}} {
			if by.query == nil || by.rule.HashQuery == "" {
				continue
			}
			err := m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
				found, err := inv.readHash(ctx, conn, t, by.rule, by.query)
				problems = append(problems, found...)
				return err
			})
			if err != nil {
				return fmt.Errorf("ask for the hash of the keys of %s: %w", t.name, err)
			}
		}
	}
	if len(problems) > 0 {
		return &PlanError{problems}
	}
	return nil
}

func (inv *inventory) readHash(ctx context.Context, conn *pgx.Conn, t *moved, rule *layout.Rule, q *lookup.Query) (layout.Problems, error) {
	root := inv.sources[0].Table(t.name)
	i, _ := root.Column(rule.Columns[0])
	column := root.Columns[i]
	refuse := func(what, hint string) (layout.Problems, error) {
		return layout.Problems{{Table: t.name.String(), What: fmt.Sprintf("column %s of type %s %s", column.Name, column.Type, what), Hint: hint}}, nil
	}
	_, err := lookup.Ask(ctx, conn.PgConn(), q, [][]byte{nil})
	if pg.Code(err) == "42883" { // undefined_function: no default hash operator class has a seeded hash of it
		return refuse("cannot be a sharding key: no server can hash it: "+oneLine(err),
			"shard by another column, or translate the key to a value that has a hash with lookup_query")
	}
	if err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, selectParts, root.OID, column.Name)
	if err != nil {
		return nil, err
	}
	var part string
	var byOID, byLocale, byCollation bool
	var oids []string
	_, err = pgx.ForEachRow(rows, []any{&part, &byOID, &byLocale, &byCollation}, func() error {
		if byOID {
			oids = append(oids, part)
		}
		if byLocale {
			t.local.locale = part
		}
		t.local.collation = t.local.collation || byCollation
		return nil
	})
	if err == nil && len(oids) > 0 {
		return refuse(fmt.Sprintf("cannot be a sharding key: the server's hash of %s is one of OIDs, which differ from database to database", slices.Compact(oids)[0]),
			`place by its text: lookup_query = "select $1::text" with data_type = "text"`)
	}
	return nil, err
}

// checkHashed compares what the hashes of keys that servers are asked for depend on beside the key, over all databases.
func (p *planner) checkHashed(ctx context.Context, inv *inventory) {
	var tables []*moved
	for _, t := range inv.tables {
		if t.byServer() != nil {
			tables = append(tables, t)
		}
	}
	if len(tables) == 0 {
		return
	}
	var first *databaseSettings
	for _, side := range []struct {
		name   string
		shards []pg.Shard
	}{{"source", p.Source.Shards}, {"destination", p.Destination.Shards}} {
		for n, shard := range side.shards {
			where := fmt.Sprintf("%s shard %d", side.name, n)
			here := &databaseSettings{}
			err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
				return conn.QueryRow(ctx, selectSettings).Scan(&here.encoding, &here.locale, &here.icu)
			})
			if err != nil {
				p.problem(where, "its locale cannot be read: "+oneLine(err), "")
				continue
			}
			first = cmp.Or(first, here)
			for _, t := range tables {
				p.compareSettings(t, where, first, here)
			}
		}
	}
}

// databaseSettings are what a database's hashes may depend on.
type databaseSettings struct{ encoding, locale, icu string }

// The columns of pg_database are not the same from 14 to 18, hence by name.
const selectSettings = `
select pg_encoding_to_char(d.encoding),
       case coalesce(j->>'datlocprovider', 'c')
         when 'c' then 'libc ' || replace(lower(d.datcollate), '-', '') || ' ' || replace(lower(d.datctype), '-', '')
         when 'i' then concat_ws(' ', 'icu', coalesce(j->>'datlocale', j->>'daticulocale'), j->>'daticurules', v.icu)
         else 'builtin ' || coalesce(j->>'datlocale', '') end,
       v.icu
  from pg_database d, to_jsonb(d) j,
       (select coalesce(pg_collation_actual_version(to_regcollation('pg_catalog."und-x-icu"')), 'none')) v (icu)
 where d.datname = current_database()`

func (p *planner) compareSettings(t *moved, where string, first, here *databaseSettings) {
	rule := t.byServer()
	key := fmt.Sprintf("column %s is hashed by the servers", rule.Columns[0])
	table := t.name.String()
	switch local := t.local; {
	case here.encoding != "UTF8":
		p.problem(table, fmt.Sprintf("%s, and %s has its text in %s", key, where, here.encoding),
			"shard by a column of a type that pgreshard hashes itself (docs/features.md), or translate the key to one with lookup_query")
	case local.locale != "" && here.locale != first.locale:
		p.problem(table, fmt.Sprintf("%s, that of %s goes by the database's locale, and %s has %s where the first source has %s", key, local.locale, where, here.locale, first.locale),
			"make the databases with one locale, or shard by another column")
	case local.collation && here.icu != first.icu:
		p.problem(table, fmt.Sprintf("%s under a non-deterministic collation, and %s has ICU collations of version %s where the first source has %s", key, where, here.icu, first.icu),
			"use servers with one version of ICU, or shard by another column")
	}
}

// byServer is the rule, of the destination's layout or else of the source's, whose key a server hashes; nil: neither's.
func (t *moved) byServer() *layout.Rule {
	for _, rule := range []*layout.Rule{t.rule, t.sourceRule} {
		if rule != nil && rule.HashQuery != "" {
			return rule
		}
	}
	return nil
}

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/lookup"
	"pgreshard/pg"
)

// checkTables compiles the rules and looks at every table that is to be moved. It hands them out where the rules hold.
func (p *planner) checkTables(ctx context.Context) (*inventory, error) {
	inv, err := p.takeInventory(ctx)
	var wrong *PlanError
	if err != nil && !errors.As(err, &wrong) {
		return nil, err
	}
	for n := range inv.sources {
		p.checkOwners(ctx, inv, n)
	}
	p.checkRights(ctx, inv)
	if wrong != nil {
		p.plan.Problems = append(p.plan.Problems, wrong.Problems...)
		return nil, nil
	}
	for _, t := range inv.tables {
		p.plan.Tables = append(p.plan.Tables, inv.planned(t))
		p.checkLookup(ctx, inv, t)
	}
	for n := range inv.sources {
		for _, leaf := range inv.leaves(n) {
			p.checkIdentity(inv, leaf, n)
		}
		if err := p.checkGenerated(ctx, inv, n); err != nil {
			return nil, err
		}
	}
	p.checkHashed(ctx, inv)
	p.checkHazards(ctx, inv)
	p.checkReverse(inv)
	if !p.CreateSchema {
		p.checkExisting(ctx, inv)
	}
	_, wrongChecks, err := p.prepareChecks(ctx, inv)
	if err != nil {
		return nil, err
	}
	p.plan.Problems = append(p.plan.Problems, wrongChecks...)
	for _, gap := range inv.layout.Gaps() {
		p.note("%s", gap)
	}
	for _, rule := range inv.layout.Unused() {
		p.note("no table of the move comes under %s", rule)
	}
	p.noteUnknown(inv)
	return inv, errors.Join(p.noteMappings(ctx, inv), p.noteUnused(ctx, inv), p.notMoved(ctx, inv), p.noteUniques(ctx, inv), p.noteForeignKeys(ctx, inv), p.noteSequences(ctx, inv))
}

// checkReverse: an omnisharded table is followed back from the first shard alone.
func (p *planner) checkReverse(inv *inventory) {
	sharded := slices.ContainsFunc(inv.tables, func(t *moved) bool { return !t.rule.Omni })
	if p.Reverse && !sharded && len(p.Destination.Shards) > 1 && len(inv.tables) > 0 {
		p.problem("", "every table is omnisharded, so that the old layout could follow the first shard alone ([cutover] reverse = true)",
			"write reverse = false in [cutover]; the move then cannot be rolled back after the switch")
	}
}

// checkFollowedBack looks whether a shard's log will tell which row an UPDATE or DELETE means after the switch.
func (p *planner) checkFollowedBack(where string, t *moved, leaf *pg.Table) {
	what := ""
	switch {
	case !p.Reverse:
	case len(leaf.Logged) == 0:
		what = "has no replica identity"
	case len(p.Source.Shards) > 1 && !t.tellsSource(leaf):
		what = "has a replica identity without the sharding key, and with several sources an old row must tell whose it is"
	}
	if what != "" {
		p.problem(where, fmt.Sprintf("%s %s, so that it cannot be followed back after the switch", leaf.Name, what),
			"alter table "+leaf.Name.SQL()+" replica identity full, or set [cutover] reverse = false")
	}
}

// noteUnknown names what [[omnisharded_tables]] lists and the source has not.
func (p *planner) noteUnknown(inv *inventory) {
	for _, entry := range p.Destination.spec().Omni {
		for _, name := range entry.Tables {
			known := slices.ContainsFunc(inv.tables, func(t *moved) bool { return name == t.name.Table || name == t.name.String() })
			if !known {
				p.note("[[omnisharded_tables]] names %s, and no table of the move is called so", name)
			}
		}
	}
}

// noteSequences: a value that one shard hands out for an omnisharded table must be the row's on all of them.
func (p *planner) noteSequences(ctx context.Context, inv *inventory) error {
	if len(p.Destination.Shards) == 1 || p.Sequences != string(SequencesStride) {
		return nil
	}
	return p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectSequenceTables)
		if err != nil {
			return err
		}
		var table pg.Name
		var columns string
		_, err = pgx.ForEachRow(rows, []any{&table.Schema, &table.Table, &columns}, func() error {
			if t := inv.byName[table]; t != nil && t.rule.Omni {
				p.note("omnisharded %s takes %s from a sequence, of which each shard hands out other values (stride): take a value on one shard, "+
					"and write the row with it to all of them", table, columns)
			}
			return nil
		})
		return err
	})
}

// Identity columns, and those whose default names a sequence.
const selectSequenceTables = `
select n.nspname, c.relname, string_agg(a.attname, ', ' order by a.attnum)
  from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
   and (a.attidentity <> '' or exists (select from pg_attrdef f join pg_depend d on d.classid = 'pg_attrdef'::regclass and d.objid = f.oid
         join pg_class s on d.refclassid = 'pg_class'::regclass and s.oid = d.refobjid and s.relkind = 'S'
        where f.adrelid = c.oid and f.adnum = a.attnum))
 group by 1, 2 order by 1, 2`

func (inv *inventory) planned(t *moved) PlannedTable {
	out, unknown := PlannedTable{Table: t.name.String(), Rule: t.rule.Describe()}, false
	for n, catalog := range inv.sources {
		if !t.follows(n) {
			continue
		}
		for _, leaf := range catalog.Leaves(catalog.Table(t.name)) {
			out.Bytes += leaf.Bytes
			out.Rows += leaf.Rows
			unknown = unknown || leaf.Rows < 0 && leaf.Bytes > 0
		}
	}
	if unknown || out.Rows < 0 { // a table that is empty has no estimate either
		out.Rows = -1
	}
	return out
}

func (p *planner) checkLookup(ctx context.Context, inv *inventory, t *moved) {
	if t.rule.Lookup == "" {
		return
	}
	err := p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		d, err := lookup.Validate(ctx, conn.PgConn(), t.query.SQL)
		if err != nil {
			return err
		}
		for _, what := range d.Problems {
			found := lookupProblem(t.name.String(), what)
			p.problem(found.Table, found.What, found.Hint)
		}
		return nil
	})
	if err != nil {
		p.problem(t.name.String(), "lookup_query: "+err.Error(), "")
	}
	for _, what := range t.unsteady {
		p.problem(t.name.String(), fmt.Sprintf("its lookup_query %s, whose answer may change without any mapping row", what),
			"let it depend on the key and on mapping rows alone, and call nothing but immutable functions and PostgreSQL's own conversions")
	}
	for _, name := range t.reads {
		if inv.byName[name] == nil {
			p.problem(t.name.String(), fmt.Sprintf("its lookup_query reads %s, which is not moved", name), "move the mapping table too, as an omnisharded or a sharded one")
		}
	}
}

// checkOwners: publishing a table and putting a trigger on it need its owner. It does not need the rules.
func (p *planner) checkOwners(ctx context.Context, inv *inventory, source int) {
	where := fmt.Sprintf("source shard %d", source)
	err := p.on(ctx, p.Source.Shards[source], pg.Reader, func(conn *pgx.Conn) error {
		return p.checkOwned(ctx, where, conn, p.movedOIDs(inv.sources[source]))
	})
	if err != nil {
		p.problem(where, "owners cannot be read: "+oneLine(err), "")
	}
}

// movedOIDs are the tables the move takes, with their partitions, whether or not a rule covers them.
func (p *planner) movedOIDs(c *pg.Catalog) (oids []uint32) {
	for _, t := range c.Roots() {
		if !p.matches(t.Name) || t.Persistence != 'p' {
			continue
		}
		for _, part := range c.Tree(t) {
			oids = append(oids, part.OID)
		}
	}
	return oids
}

const selectForeignOwned = `select n.nspname, c.relname, o.rolname, o.rolsuper, not pg_has_role(c.relowner, 'usage'), current_user::text
	from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_roles o on o.oid = c.relowner
	where c.oid = any($1) and (not pg_has_role(c.relowner, 'usage') or row_security_active(c.oid)) order by 1, 2`

// checkOwned names tables the role does not own, and those whose row security it is under although it does.
func (p *planner) checkOwned(ctx context.Context, where string, conn *pgx.Conn, oids []uint32) error {
	rows, err := conn.Query(ctx, selectForeignOwned, oids)
	if err != nil {
		return err
	}
	var name pg.Name
	var owner, user string
	var super, foreign bool
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &owner, &super, &foreign, &user}, func() error {
		hint := fmt.Sprintf("grant %s to %s", ident(owner), ident(user))
		if super { // membership would hand out far more than this table
			hint = fmt.Sprintf("alter table %s owner to %s, or to a role it is a member of", name.SQL(), ident(user))
		}
		if foreign {
			p.problem(where, fmt.Sprintf("role %s does not own %s", user, name), hint)
		} else {
			p.problem(where, fmt.Sprintf("row security of %s is forced and would hide rows from role %s", name, user), fmt.Sprintf("alter role %s bypassrls", ident(user)))
		}
		return nil
	})
	return err
}

// noteLoose says what it costs when the log does not tell which shard an old row is on.
func (p *planner) noteLoose(inv *inventory, leaf *pg.Table, source int) {
	t := inv.tableOf(leaf, source)
	if source != 0 || t == nil || t.rule.Omni || t.rule.Lookup != "" || logsAll(leaf, t.rule.Columns) {
		return
	}
	p.note("%s: its replica identity does not carry the sharding key (%s): each DELETE is asked of every shard, and an UPDATE that changes the key "+
		"makes the stream search row by row; alter table %s replica identity full avoids it", leaf.Name, strings.Join(t.rule.Columns, ", "), leaf.Name.SQL())
}

// checkExisting compares tables that are there already with the source's.
func (p *planner) checkExisting(ctx context.Context, inv *inventory) {
	for n, shard := range p.Destination.Shards {
		where := fmt.Sprintf("destination shard %d", n)
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			catalog, err := pg.ReadCatalog(ctx, conn)
			if err != nil {
				return err
			}
			if err := p.checkOwned(ctx, where, conn, p.movedOIDs(catalog)); err != nil {
				return err
			}
			for _, t := range inv.tables {
				into := catalog.Table(t.name)
				if into == nil {
					p.problem(where, fmt.Sprintf("table %s is missing", t.name), "create it, or set [schema] create = true")
					continue
				}
				for _, what := range CompareTables(inv.sources[0].Table(t.name), into) {
					p.problem(where, fmt.Sprintf("table %s differs: %s", t.name, what), "make it like the source's")
				}
				for _, leaf := range catalog.Leaves(into) {
					p.checkFollowedBack(where, t, leaf)
				}
				var rows bool
				err := conn.QueryRow(ctx, "select exists (select from "+t.name.SQL()+")").Scan(&rows)
				if err != nil && pg.Code(err) != "42501" { // not allowed: checkOwned has said so
					return err
				}
				if rows {
					p.problem(where, fmt.Sprintf("table %s holds rows", t.name), "empty it")
				}
			}
			return nil
		})
		if err != nil {
			p.problem(where, "its tables cannot be read: "+err.Error(), "")
		}
	}
}

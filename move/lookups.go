package move

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// What a lookup reads is asked of the server, not of a parser of ours: made the body of a SQL function, the query's
// tables and columns stand in pg_depend. The function lives in this session's temporary schema, in a transaction that
// is rolled back.
const selectReads = `
select n.nspname, c.relname, coalesce(a.attname, '')
  from pg_proc p
  join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.refclassid = 'pg_class'::regclass
  join pg_class c on c.oid = d.refobjid join pg_namespace n on n.oid = c.relnamespace
  left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid and d.refobjsubid > 0
 where p.proname = 'pgreshard_lookup' and p.pronamespace = pg_my_temp_schema()`

// readLookups finds the tables and columns each lookup reads, so that it is asked where they are and a change to them
// is noticed.
func (inv *inventory) readLookups(ctx context.Context, m *Move) error {
	for _, t := range inv.tables {
		if t.query == nil {
			continue
		}
		err := m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error { return inv.readLookup(ctx, conn, t) })
		if err != nil {
			return fmt.Errorf("lookup_query of %s: %w", t.name, err)
		}
	}
	return nil
}

func (inv *inventory) readLookup(ctx context.Context, conn *pgx.Conn, t *moved) error {
	root := inv.sources[0].Table(t.name)
	i, _ := root.Column(t.rule.Columns[0])
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	path := `set local search_path = "$user", public, pg_catalog`
	if _, err := tx.Exec(ctx, path); err != nil {
		return err
	}
	make := fmt.Sprintf("create function pg_temp.pgreshard_lookup(%s) returns setof record language sql begin atomic %s; end",
		root.Columns[i].Type, t.query.SQL)
	if _, err := conn.PgConn().Exec(ctx, make).ReadAll(); err != nil {
		return fmt.Errorf("the server does not take it: %w", err)
	}
	rows, err := tx.Query(ctx, selectReads)
	if err != nil {
		return err
	}
	var name pg.Name
	var column string
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &column}, func() error {
		inv.reads(t, name, column)
		return nil
	})
	return err
}

// reads notes that t's lookup reads a column of a table.
func (inv *inventory) reads(t *moved, name pg.Name, column string) {
	if !slices.Contains(t.reads, name) {
		t.reads = append(t.reads, name)
	}
	from := inv.byName[name]
	if from == nil {
		return
	}
	t.asked = t.asked || !from.rule.Omni
	if !slices.Contains(from.feeds, t.query) {
		from.feeds = append(from.feeds, t.query)
	}
	if column != "" && !slices.Contains(from.guard, column) {
		from.guard = append(from.guard, column)
	}
}

// typedSpec is a side's rules with the type of every lookup's result, which the server tells where the
// configuration does not. A query the server refuses keeps its empty type: plan reports it.
func (m *Move) typedSpec(ctx context.Context, side Side) (layout.Spec, error) {
	spec := side.spec()
	for _, t := range spec.Untyped() {
		err := m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
			d, err := lookup.Validate(ctx, conn.PgConn(), t.LookupQuery)
			if err == nil && len(d.Problems) > 0 {
				return &PlanError{layout.Problems{{Table: t.Name, What: "lookup_query: " + d.Problems[0]}}}
			}
			if err == nil {
				t.DataType = d.ResultType
			}
			return err
		})
		if err != nil {
			return spec, err
		}
	}
	return spec, nil
}

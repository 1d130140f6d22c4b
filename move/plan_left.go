package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// notMoved lists what the move leaves out although an operator may think that it comes along.
func (p *planner) notMoved(ctx context.Context, inv *inventory) error {
	var unlogged []string
	for _, t := range inv.sources[0].Roots() {
		if t.Persistence != 'p' && p.matches(t.Name) {
			unlogged = append(unlogged, t.Name.String())
		}
	}
	slices.Sort(unlogged)
	if len(unlogged) > 0 {
		p.note("not moved, because their changes are not in the log: unlogged %s", strings.Join(unlogged, ", "))
	}
	if err := p.noteRowless(ctx); err != nil {
		return err
	}
	return p.noteLargeObjects(ctx, inv)
}

const selectRowless = `
select coalesce(string_agg(n.nspname || '.' || c.relname, ', ' order by n.nspname, c.relname) filter (where c.relkind = 'm'), ''),
       coalesce(string_agg(n.nspname || '.' || c.relname, ', ' order by n.nspname, c.relname) filter (where c.relkind = 'f'), '')
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('m', 'f') and n.nspname not in ('information_schema', 'pgreshard') and n.nspname !~ '^pg_'
   and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')`

// noteRowless names relations that are made on the shards without their rows.
func (p *planner) noteRowless(ctx context.Context) error {
	var views, foreign string
	err := p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectRowless).Scan(&views, &foreign)
	})
	if err != nil {
		return fmt.Errorf("read the source's materialized views and foreign tables: %w", err)
	}
	if views != "" {
		p.note("not moved, only made where all they read is moved: materialized views %s; refresh materialized view on each shard after the move", views)
	}
	if foreign != "" {
		p.note("not moved, because their rows are elsewhere: foreign tables %s; each shard must reach their servers", foreign)
	}
	return nil
}

// noteLargeObjects counts them over all sources and names the moved columns that may refer to one.
func (p *planner) noteLargeObjects(ctx context.Context, inv *inventory) error {
	var all int64
	for _, shard := range p.Source.Shards {
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			var n int64
			err := conn.QueryRow(ctx, "select count(*) from pg_largeobject_metadata").Scan(&n)
			all += n
			return err
		})
		if err != nil {
			return fmt.Errorf("count the source's large objects: %w", err)
		}
	}
	if all == 0 {
		return nil
	}
	const oid = 26 // extension lo's type is a domain over it
	var columns []string
	for _, t := range inv.tables {
		for _, c := range inv.sources[0].Table(t.name).Columns {
			if c.BaseOID == oid {
				columns = append(columns, t.name.String()+"."+c.Name)
			}
		}
	}
	refer := "no moved table has a column of type oid or lo"
	if len(columns) > 0 {
		refer = "columns that may refer to one and are moved as they are: " + strings.Join(columns, ", ")
	}
	objects := "large objects"
	if all == 1 {
		objects = "large object"
	}
	p.note("not moved, because their changes are not in the log: %d %s; %s", all, objects, refer)
	return nil
}

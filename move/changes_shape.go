package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// treeShape is what of a table's parts may change without a row in the log: whatever does makes it another text.
type treeShape struct {
	text      string
	published bool // every part that holds rows is
}

// A file that is another was rewritten; columns have the value that rows from before have; labels of enumerations and parts of
// composites change how values are read. An entry of a publication that was taken out and put back has another OID.
const selectShapes = `
with env (text) as (
  select md5(coalesce((select string_agg(e::text, ',' order by e.oid) from pg_enum e), '') ||
         coalesce((select string_agg(a::text, ',' order by a.attrelid, a.attnum) from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relkind = 'c'), '')))
select n.name, array_agg(c.oid order by c.oid),
       md5(string_agg(concat_ws(',', c.oid, c.relnamespace, c.relname, pg_relation_filenode(c.oid), c.relreplident, c.relpersistence, c.relispartition,
             (select array_agg(i.inhparent order by i.inhparent) from pg_inherits i where i.inhrelid = c.oid),
             pg_get_expr(c.relpartbound, c.oid), r.oid, r::text, p.oid, p.xmin,
             (select string_agg(a::text, ',' order by a.attnum) from pg_attribute a where a.attrelid = c.oid and a.attnum > 0)), ';' order by c.oid)) || (select text from env),
       bool_and(c.relkind <> 'r' or r.oid is not null)
  from unnest($1::text[]) n(name)
 cross join lateral (select to_regclass(n.name)::oid relid union select relid::oid from pg_partition_tree(to_regclass(n.name))) t
  join pg_class c on c.oid = t.relid
  left join pg_publication p on p.pubname = $2
  left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
 group by n.name`

// readShapes reads the shapes of the tables that are followed, and which of a node's tables belong to which.
func (c *changes) readShapes(ctx context.Context, n node) (shapes map[pg.Name]treeShape, roots map[uint32]pg.Name, err error) {
	names, list := map[string]pg.Name{}, []string{}
	for name := range c.keys {
		names[name.SQL()] = name
		list = append(list, name.SQL())
	}
	shapes, roots = map[pg.Name]treeShape{}, map[uint32]pg.Name{}
	err = c.move.reads(ctx, n, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectShapes, list, c.move.changesPublication(n))
		if err != nil {
			return err
		}
		var name string
		var oids []uint32
		var s treeShape
		_, err = pgx.ForEachRow(rows, []any{&name, &oids, &s.text, &s.published}, func() error {
			shapes[names[name]] = s
			for _, oid := range oids {
				roots[oid] = names[name]
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the tables' shapes on %s: %w", n, err)
	}
	return shapes, roots, nil
}

// remember notes the shapes that what is compared from now on has. A table that a node's log does not show is compared whole.
func (c *changes) remember(ctx context.Context) error {
	nodes := c.move.allNodes()
	return atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		shapes, roots, err := c.readShapes(ctx, nodes[i])
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.shapes[nodes[i]], c.roots[nodes[i]] = shapes, roots
		for name := range c.keys {
			if shapes[name].published {
				continue
			}
			switch {
			case c.never[name] != "":
			case len(c.keys[name]) == 0:
				c.never[name] = keyless
			default:
				c.never[name] = "the log of " + nodes[i].String() + " does not show all that changes in it"
			}
			if !nodes[i].source { // lookups are asked of the shards
				delete(c.touched, name)
			}
		}
		return nil
	})
}

// lookAgain finds what was changed of the tables without a row in any log, and goes on with what they look like now.
func (c *changes) lookAgain(ctx context.Context) error {
	nodes := c.move.allNodes()
	return atOnce(ctx, len(nodes), func(ctx context.Context, i int) error {
		shapes, roots, err := c.readShapes(ctx, nodes[i])
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for name := range c.keys {
			was, is := c.shapes[nodes[i]][name], shapes[name]
			if was != is {
				c.whole(name, "it was changed or rewritten on "+nodes[i].String())
			}
			c.stale = c.stale || was.published != is.published
		}
		c.shapes[nodes[i]], c.roots[nodes[i]] = shapes, roots
		return nil
	})
}

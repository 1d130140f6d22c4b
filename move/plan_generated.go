package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// What the generated columns of tables $1 are computed from: 14 keeps it with the column, later ones with its default.
const selectComputed = `
select a.attrelid, a.attname,
       array(select distinct f.attname::text from pg_depend d join pg_attribute f on f.attrelid = d.refobjid and f.attnum = d.refobjsubid
              where d.refclassid = 'pg_class'::regclass and d.refobjid = a.attrelid and d.refobjsubid not in (0, a.attnum)
                and (d.classid = 'pg_attrdef'::regclass and d.objid = e.oid
                  or d.classid = 'pg_class'::regclass and d.objid = a.attrelid and d.objsubid = a.attnum))
  from pg_attribute a join pg_attrdef e on e.adrelid = a.attrelid and e.adnum = a.attnum
 where a.attrelid = any($1) and a.attgenerated <> '' and not a.attisdropped`

// checkGenerated refuses keys that tell rows apart by a generated column only: a row is found by the others, so they
// must determine it.
func (p *planner) checkGenerated(ctx context.Context, inv *inventory, source int) error {
	leaves := inv.leaves(source)
	return p.on(ctx, p.Source.Shards[source], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectComputed, oidsOf(leaves))
		if err != nil {
			return fmt.Errorf("read the source's generated columns: %w", err)
		}
		from := map[uint32]map[string][]string{} // by table and generated column
		var oid uint32
		var column string
		var of []string
		_, err = pgx.ForEachRow(rows, []any{&oid, &column, &of}, func() error {
			if from[oid] == nil {
				from[oid] = map[string][]string{}
			}
			from[oid][column] = of
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the source's generated columns: %w", err)
		}
		for _, leaf := range leaves {
			p.checkComputedKey(leaf, from[leaf.OID])
		}
		return nil
	})
}

func (p *planner) checkComputedKey(leaf *pg.Table, from map[string][]string) {
	key := leaf.Logged
	if leaf.Replica == pg.IdentityFull {
		key = leaf.Key
	}
	var generated, rest []string
	for _, i := range key {
		if c := leaf.Columns[i]; c.Generated != 0 {
			generated = append(generated, c.Name)
		} else {
			rest = append(rest, c.Name)
		}
	}
	if len(rest) == 0 {
		if len(generated) > 0 && leaf.Replica != pg.IdentityFull { // else whole rows are compared
			p.problem(leaf.Name.String(), "its replica identity is made of generated columns alone: no row is found by it",
				fmt.Sprintf("alter table %s replica identity full, or using another unique index", leaf.Name.SQL()))
		}
		return
	}
	for _, g := range generated {
		if slices.ContainsFunc(from[g], func(c string) bool { return !slices.Contains(rest, c) }) {
			p.problem(leaf.Name.String(), fmt.Sprintf("rows are found by %s alone, since %s of its key is generated, and is not computed from that alone",
				strings.Join(rest, ", "), g), fmt.Sprintf("alter table %s replica identity using index …, of a unique index without generated columns", leaf.Name.SQL()))
			return
		}
	}
}

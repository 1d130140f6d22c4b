package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Unique indexes of tables $1, but those that are parts of another, with the columns they compare; an expression is none.
// One that identifies rows cannot be left out.
const selectUniques = `
select i.indrelid, x.relname, i.indisprimary, (i.indisprimary or i.indisreplident) and i.indimmediate and i.indpred is null,
       array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality u(k, n)
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.k
              where u.n <= i.indnkeyatts order by u.n)
  from pg_index i join pg_class x on x.oid = i.indexrelid
 where i.indisunique and i.indrelid = any($1) and (i.indisvalid or x.relkind = 'I')
   and not exists (select from pg_inherits h where h.inhrelid = x.oid)
 order by i.indrelid::regclass::text, x.relname`

// uniqueIndex is one of them.
type uniqueIndex struct {
	name             string
	primary, telling bool // telling: rows are told apart by it
	columns          []string
}

// noteUniques names unique constraints that each shard keeps for its own rows alone: without the sharding key, equal
// values may be on two shards. Several sources may have equal values already.
func (p *planner) noteUniques(ctx context.Context, inv *inventory) error {
	if len(p.Destination.Shards) == 1 && len(p.Source.Shards) == 1 {
		return nil
	}
	parts := inv.parts(inv.sources[0])
	return p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectUniques, oidsOf(parts))
		if err != nil {
			return fmt.Errorf("read the source's unique indexes: %w", err)
		}
		var oid uint32
		var u uniqueIndex
		_, err = pgx.ForEachRow(rows, []any{&oid, &u.name, &u.primary, &u.telling, &u.columns}, func() error {
			part := inv.sources[0].ByOID(oid)
			if t := inv.tableOf(part, 0); t != nil && !t.rule.Omni && !slices.Contains(p.SkipConstraint, "unique:"+u.name) {
				p.noteUnique(t, part.Name, u)
			}
			return nil
		})
		return err
	})
}

func (p *planner) noteUnique(t *moved, part pg.Name, u uniqueIndex) {
	split := len(p.Destination.Shards) > 1 && !u.has(t.rule.Columns)
	twice := t.sourceRule != nil && !u.has(t.sourceRule.Columns)
	if u.primary && !twice { // its values come from one source, and from sequences afterwards
		return
	}
	kind, way := "unique", ""
	if u.primary {
		kind = "primary key"
	}
	if p.CreateSchema && !u.telling {
		way = fmt.Sprintf(`; to leave it out: [schema] skip = ["unique:%s"]`, u.name)
	}
	key := strings.Join(t.rule.Columns, ", ")
	switch {
	case split && twice:
		p.note("%s %s of %s does not contain the sharding key (%s): after the move it holds on each shard only, and the move ends where two sources "+
			"have the same value for one shard%s", kind, u.name, part, key, way)
	case split:
		p.note("%s %s of %s does not contain the sharding key (%s): after the move it holds on each shard only%s", kind, u.name, part, key, way)
	case twice:
		p.note("%s %s of %s does not contain the source's sharding key (%s): the move ends where two sources have the same value for one shard%s",
			kind, u.name, part, strings.Join(t.sourceRule.Columns, ", "), way)
	}
}

// has says that rows with equal values in the index have equal values in these columns.
func (u uniqueIndex) has(columns []string) bool {
	return !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(u.columns, c) })
}

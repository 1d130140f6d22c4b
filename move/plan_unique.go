package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/verify"
)

// Unique indexes of tables $1, but those that are parts of another, with the columns they compare; an expression is none.
// One that identifies rows cannot be left out. What it compares stands there as SQL too, with types and collations.
const selectUniques = `
select i.indrelid, x.relname, i.indisprimary, (i.indisprimary or i.indisreplident) and i.indimmediate and i.indpred is null,
       array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality u(k, n)
               join pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.k
              where u.n <= i.indnkeyatts order by u.n),
       array(select pg_get_indexdef(i.indexrelid, a.attnum, false) from pg_attribute a where a.attrelid = i.indexrelid and a.attnum <= i.indnkeyatts order by a.attnum),
       array(select case a.atttypid when 'cstring'::regtype then 'name' else format_type(a.atttypid, -1) end
               from pg_attribute a where a.attrelid = i.indexrelid and a.attnum <= i.indnkeyatts order by a.attnum),
       array(select coalesce((select ' collate ' || quote_ident(n.nspname) || '.' || quote_ident(c.collname)
                                from pg_collation c join pg_namespace n on n.oid = c.collnamespace where c.oid = a.attcollation), '')
               from pg_attribute a where a.attrelid = i.indexrelid and a.attnum <= i.indnkeyatts order by a.attnum),
       coalesce(pg_get_expr(i.indpred, i.indrelid), ''), coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
  from pg_index i join pg_class x on x.oid = i.indexrelid
 where i.indisunique and i.indrelid = any($1) and (i.indisvalid or x.relkind = 'I')
   and not exists (select from pg_inherits h where h.inhrelid = x.oid)
 order by i.indrelid::regclass::text, x.relname`

// uniqueIndex is one of them.
type uniqueIndex struct {
	of               *moved
	part             *pg.Table // the table it is on, as the first source has it
	name             string
	primary, telling bool // telling: rows are told apart by it
	columns          []string
	expressions      []verify.UniqueColumn
	where            string
	nullsEqual       bool
}

// uniques reads the unique indexes of sharded tables that are not left out.
func (m *Move) uniques(ctx context.Context, inv *inventory) (all []uniqueIndex, err error) {
	err = m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectUniques, oidsOf(inv.parts(inv.sources[0])))
		if err != nil {
			return fmt.Errorf("read the source's unique indexes: %w", err)
		}
		var oid uint32
		var u uniqueIndex
		var sql, types, collations []string
		_, err = pgx.ForEachRow(rows, []any{&oid, &u.name, &u.primary, &u.telling, &u.columns, &sql, &types, &collations, &u.where, &u.nullsEqual}, func() error {
			u.part = inv.sources[0].ByOID(oid)
			u.of = inv.tableOf(u.part, 0)
			if u.of == nil || u.of.rule.Omni || slices.Contains(m.SkipConstraint, "unique:"+u.name) {
				return nil
			}
			u.expressions = nil
			for i := range sql {
				u.expressions = append(u.expressions, verify.UniqueColumn{SQL: sql[i], Type: types[i], Collate: collations[i]})
			}
			all = append(all, u)
			return nil
		})
		return err
	})
	return all, err
}

// noteUniques names unique constraints that each shard keeps for its own rows alone: without the sharding key, equal
// values may be on two shards. Several sources may have equal values already.
func (p *planner) noteUniques(ctx context.Context, inv *inventory) error {
	if len(p.Destination.Shards) == 1 && len(p.Source.Shards) == 1 {
		return nil
	}
	all, err := p.uniques(ctx, inv)
	for _, u := range all {
		p.noteUnique(u)
	}
	return err
}

// split says that rows with equal values in the index may come to be on two shards.
func (m *Move) split(u uniqueIndex) bool {
	return len(m.Destination.Shards) > 1 && !u.has(u.of.rule.Columns)
}

// twice says that two sources may have equal values in it.
func (u uniqueIndex) twice() bool { return u.of.sourceRule != nil && !u.has(u.of.sourceRule.Columns) }

func (p *planner) noteUnique(u uniqueIndex) {
	t, part, split, twice := u.of, u.part.Name, p.split(u), u.twice()
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

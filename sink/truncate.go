package sink

import (
	"context"
	"fmt"
	"strings"

	"pgreshard/layout"
	"pgreshard/pg"
)

// truncate empties tables on every shard: whole tables, or, where only leaves of a partitioned table were emptied, the
// leaves of the same name. With several sources a TRUNCATE on one removes that source's rows only.
func (r *router) truncate(ctx context.Context, c *pg.Truncate) error {
	leaves := map[*Table][]*pg.Relation{}
	var order []*Table
	for _, rel := range c.Relations {
		t := r.Tables[rel.OID]
		if t == nil || r.tx.Commit < t.StartsAt {
			continue
		}
		if leaves[t] == nil {
			order = append(order, t)
		}
		leaves[t] = append(leaves[t], rel)
	}
	var whole []string
	for _, t := range order {
		if r.Mine != nil && !t.Rule.Omni {
			if err := r.emptyMine(ctx, t); err != nil {
				return err
			}
			continue
		}
		names, err := r.truncated(t, leaves[t])
		if err != nil {
			return err
		}
		whole = append(whole, names...)
	}
	if len(whole) == 0 {
		return nil
	}
	for _, shard := range r.all {
		r.add(layout.Shard(shard), op{kind: opTruncate, table: order[0], sql: "truncate " + strings.Join(whole, ", ")})
	}
	return nil
}

// truncated lists the destination's tables to empty: the root when every leaf of it was.
func (r *router) truncated(t *Table, rels []*pg.Relation) ([]string, error) {
	of := 0
	for _, other := range r.Tables {
		if other == t {
			of++
		}
	}
	if of == len(rels) {
		return []string{t.Dest.SQL()}, nil
	}
	var out []string
	for _, rel := range rels {
		leaf, ok := r.Leaves[rel.OID]
		if !ok {
			return nil, &SchemaError{Table: rel.Name, What: "a partition was emptied by TRUNCATE that the destination does not have as a partition of its own"}
		}
		out = append(out, leaf.SQL())
	}
	return out, nil
}

// emptyMine deletes from every shard the rows whose sharding key the source layout places on this source.
func (r *router) emptyMine(ctx context.Context, t *Table) error {
	columns := t.columnList(t.RuleKey)
	return r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error {
		keys := a.conn.PgConn().ExecParams(ctx, fmt.Sprintf("select distinct %s from %s", columns, t.Dest.SQL()), nil, nil, nil, nil).Read()
		if keys.Err != nil {
			return keys.Err
		}
		for _, values := range keys.Rows {
			key := textRow(values)
			mine, err := r.Mine(t, key)
			if err != nil {
				return err
			}
			if !mine {
				continue
			}
			row := make(pg.Row, len(t.Columns))
			for i, c := range t.RuleKey {
				row[c] = key[i]
			}
			var s statement
			where := make([]string, len(t.RuleKey))
			for i, v := range s.bind(t, t.RuleKey, row) {
				where[i] = fmt.Sprintf("t.%s is not distinct from %s", t.Columns[t.RuleKey[i]].SQL(), v)
			}
			sql := fmt.Sprintf("delete from %s t where %s", t.Dest.SQL(), strings.Join(where, " and "))
			if err := a.conn.PgConn().ExecParams(ctx, sql, s.params, s.types, nil, nil).Read().Err; err != nil {
				return err
			}
		}
		return nil
	})
}

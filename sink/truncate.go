package sink

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"pgreshard/layout"
	"pgreshard/pg"
)

// emptied is a part of a table's rows that TRUNCATE took away, as the destination has it.
type emptied struct {
	table string   // the rows of the destination's table or partition, as SQL
	rows  string   // which of its rows, as SQL; empty: all
	first []string // statements that make what rows names
}

// truncate empties tables on every shard: whole tables, or, where only leaves of a partitioned table were emptied, the
// same leaves, or their rows where the destination has none of that name. With several sources a TRUNCATE on one removes
// that source's rows only.
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
		parts, err := r.emptied(ctx, t, leaves[t])
		if err != nil {
			return err
		}
		for _, part := range parts {
			switch {
			case r.Mine != nil && !t.Rule.Omni:
				if err := r.emptyMine(ctx, t, part); err != nil {
					return err
				}
			case part.rows == "":
				whole = append(whole, part.table)
			default:
				for _, sql := range part.first {
					r.everywhere(t, sql)
				}
				r.everywhere(t, "delete from "+part.table+" where "+part.rows)
			}
		}
	}
	if len(whole) > 0 { // in one statement, because they may refer to each other
		r.everywhere(order[0], "truncate "+strings.Join(whole, ", "))
	}
	return nil
}

func (r *router) everywhere(t *Table, sql string) {
	for _, shard := range r.all {
		r.add(layout.Shard(shard), op{kind: opTruncate, table: t, sql: sql})
	}
}

// emptied finds what to empty for the leaves that were: the root when they are all it has.
func (r *router) emptied(ctx context.Context, t *Table, rels []*pg.Relation) ([]emptied, error) {
	of := 0
	for _, other := range r.Tables {
		if other == t {
			of++
		}
	}
	if of == len(rels) {
		return []emptied{{table: t.destRows()}}, nil
	}
	var out []emptied
	for _, rel := range rels {
		if leaf, ok := r.Leaves[rel.OID]; ok {
			out = append(out, emptied{table: leaf.SQL()})
			continue
		}
		part, err := r.constraint(ctx, rel)
		if err != nil {
			return nil, err
		}
		part.table = t.destRows()
		out = append(out, part)
	}
	return out, nil
}

// hashOf is how a partition's constraint names the hash partitioned table it belongs to: by its OID on the source.
var hashOf = regexp.MustCompile(`satisfies_hash_partition\('(\d+)'::oid`)

// hashPartitioned describes a hash partitioned table: its columns, and what of them is hashed and how.
const hashPartitioned = `select pg_get_partkeydef($1::oid), string_agg(format('%I %s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
	from pg_attribute where attrelid = $1::oid and attnum > 0 and not attisdropped`

// constraint is the condition that a row belongs to a leaf, as the source says it. A hash partition's asks a table that
// is partitioned likewise, which is made for the transaction: the source's own is not here.
func (r *router) constraint(ctx context.Context, leaf *pg.Relation) (part emptied, err error) {
	conn, err := r.asked(ctx)
	if err != nil {
		return part, err
	}
	var rows *string
	err = conn.QueryRow(ctx, `select pg_get_partition_constraintdef($1)`, leaf.OID).Scan(&rows)
	if err == nil && rows == nil {
		return part, &SchemaError{Table: leaf.Name, What: "a partition was emptied by TRUNCATE that the destination does not have, and it is none any more"}
	}
	if err == nil {
		for _, found := range hashOf.FindAllStringSubmatch(*rows, -1) {
			var key, columns string
			if err = conn.QueryRow(ctx, hashPartitioned, found[1]).Scan(&key, &columns); err != nil {
				break
			}
			part.first = append(part.first, fmt.Sprintf("create temp table if not exists pgreshard_hash_%s (%s) partition by %s on commit drop", found[1], columns, key))
		}
		part.rows = hashOf.ReplaceAllString(*rows, "satisfies_hash_partition('pg_temp.pgreshard_hash_$1'::regclass")
	}
	if err != nil {
		return part, fmt.Errorf("read what belongs to partition %s: %w", leaf.Name, err)
	}
	return part, nil
}

// emptyMine deletes from every shard those of the rows that the source layout places on this source.
func (r *router) emptyMine(ctx context.Context, t *Table, part emptied) error {
	rows := part.rows
	if rows == "" {
		rows = "true"
	}
	return r.call(ctx, r.live(r.all), func(ctx context.Context, a *applier) error {
		for _, sql := range part.first {
			if err := a.exec(ctx, statement{sql: sql}).Err; err != nil {
				return err
			}
		}
		keys := [][][]byte{{}}
		if len(t.mineKey()) > 0 {
			result := a.exec(ctx, statement{sql: fmt.Sprintf("select distinct %s from %s where %s", t.columnList(t.mineKey()), part.table, rows)})
			if result.Err != nil {
				return result.Err
			}
			keys = result.Rows
		}
		for _, values := range keys {
			if err := a.emptyKey(ctx, t, part.table, rows, textRow(values)); err != nil {
				return err
			}
		}
		return nil
	})
}

// emptyKey deletes the rows of one sharding key, if it is this source's.
func (a *applier) emptyKey(ctx context.Context, t *Table, table, rows string, key []pg.Datum) error {
	mine, err := a.stream.Mine(t, key)
	if err != nil || !mine {
		return err
	}
	row := make(pg.Row, len(t.Columns))
	for i, c := range t.mineKey() {
		row[c] = key[i]
	}
	var s statement
	s.sql = fmt.Sprintf("delete from %s t where %s", table, rows)
	if values := s.bind(t, t.mineKey(), row); len(values) > 0 {
		s.sql += " and " + t.match(t.mineKey(), values)
	}
	return a.exec(ctx, s).Err
}

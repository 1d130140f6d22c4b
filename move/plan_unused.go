package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// noteUnused counts the rows of each mapping table that translate no key of any row: they move nothing, and tell of rows that are gone or never came.
// It is for lookups that ask the table by one column, where every key is asked for.
func (p *planner) noteUnused(ctx context.Context, inv *inventory) error {
	if !p.everyKey {
		return nil
	}
	for _, mapping := range inv.tables {
		by := map[string][]*moved{} // who asks, by the mapping's column
		for _, f := range mapping.feeds {
			for _, t := range inv.tables {
				if f.key != "" && t.query == f.query {
					by[f.key] = append(by[f.key], t)
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(by)) {
			unused, err := p.unused(ctx, mapping, key, by[key])
			if err != nil {
				return fmt.Errorf("count the rows of %s that no key needs: %w", mapping.name, err)
			}
			if unused > 0 {
				p.note("%s: %d of its rows translate no key of any row, by %s", mapping.name, unused, key)
			}
		}
	}
	return nil
}

// unused counts the mapping's rows whose key none of the users carries on any source.
func (p *planner) unused(ctx context.Context, mapping *moved, key string, users []*moved) (n int, err error) {
	var used []string
	for _, t := range users {
		used = append(used, fmt.Sprintf("select %s::text from %s", ident(t.rule.Columns[0]), t.name.SQL()))
	}
	carried := strings.Join(used, " union all ")
	for source, shard := range p.Source.Shards {
		if source > 0 && mapping.rule.Omni { // which holds on every source what it holds on the first
			break
		}
		var left []string
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, fmt.Sprintf(`select m.%[1]s::text from %[2]s m where m.%[1]s is not null and not exists (select from (%[3]s) u(key) where u.key = m.%[1]s::text)`,
				ident(key), mapping.name.SQL(), carried))
			if err != nil {
				return err
			}
			left, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		if err != nil {
			return 0, err
		}
		for other := range p.Source.Shards {
			if other == source {
				continue
			}
			if left, err = p.notCarried(ctx, p.Source.Shards[other], carried, left); err != nil {
				return 0, err
			}
		}
		n += len(left)
	}
	return n, nil
}

// notCarried leaves of some keys those that no row of a source carries.
func (p *planner) notCarried(ctx context.Context, shard pg.Shard, carried string, keys []string) (left []string, err error) {
	err = p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
		for part := range slices.Chunk(keys, askedKeys) {
			rows, err := conn.Query(ctx, fmt.Sprintf(`select k from unnest($1::text[]) k where not exists (select from (%s) u(key) where u.key = k)`, carried), part)
			if err != nil {
				return err
			}
			here, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return err
			}
			left = append(left, here...)
		}
		return nil
	})
	return left, err
}

package move

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/pg"
)

const (
	sampledRows = 10_000 // of a table on each source; a smaller one is read whole
	askedKeys   = 4096   // in one round trip
)

// mappedKeys counts keys by what their lookup gives.
type mappedKeys struct{ asked, none, several int }

// noteMappings counts, of a sample of every rule's keys (of all of them, where PlanOptions say so), those that have not exactly
// one mapping row.
func (p *planner) noteMappings(ctx context.Context, inv *inventory) error {
	for _, t := range inv.tables {
		if t.rule.Lookup == "" || slices.ContainsFunc(p.plan.Problems, func(found layout.Problem) bool { return found.Table == t.name.String() }) {
			continue
		}
		var n mappedKeys
		for source := range inv.sources {
			if err := p.countMappings(ctx, inv, t, source, &n); err != nil {
				return fmt.Errorf("ask for the mapping rows of the keys of %s: %w", t.name, err)
			}
		}
		what, then := "of a sample of its keys", "a row with such a key stops the move"
		if p.everyKey {
			what = "of its keys"
		}
		if t.rule.OnMissing != layout.MissingStop {
			then = "rows with such a key go by on_missing"
		}
		switch {
		case n.none+n.several > 0:
			p.note("%s: %s (%d) %d have no mapping row and %d have several; %s", t.name, what, n.asked, n.none, n.several, then)
		case p.everyKey:
			p.note("%s: each of its keys (%d) has exactly one mapping row", t.name, n.asked)
		}
	}
	return nil
}

// countMappings asks for one source's keys.
func (p *planner) countMappings(ctx context.Context, inv *inventory, t *moved, source int, n *mappedKeys) error {
	return p.on(ctx, p.Source.Shards[source], pg.Reader, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, p.keysOf(inv, t, source), pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		defer rows.Close()
		var keys [][]byte
		ask := func() error {
			answers, err := p.askSources(ctx, t.asked, t.query, keys)
			for _, a := range answers {
				n.asked++
				switch {
				case a.Rows > 1:
					n.several++
				case a.Rows == 0 || a.Null:
					n.none++
				}
			}
			keys = keys[:0]
			return err
		}
		for rows.Next() {
			keys = append(keys, append([]byte{}, rows.RawValues()[0]...))
			if len(keys) == askedKeys {
				if err := ask(); err != nil {
					return err
				}
			}
		}
		if err := rows.Err(); err != nil || len(keys) == 0 {
			return err
		}
		return ask()
	})
}

// keysOf is the query of the distinct keys of one source's table, or of some of its rows.
func (p *planner) keysOf(inv *inventory, t *moved, source int) string {
	table := inv.sources[source].Table(t.name)
	rows, from := int64(0), "only "+t.name.SQL()
	for _, leaf := range inv.sources[source].Leaves(table) {
		rows += max(leaf.Rows, leaf.Bytes/1000) // one that was never analysed has no estimate
	}
	if table.Kind == 'p' {
		from = t.name.SQL()
	}
	sample := ""
	if rows > sampledRows && !p.everyKey {
		sample = fmt.Sprintf(" tablesample system (%f)", 100*float64(sampledRows)/float64(rows))
	}
	key := ident(t.rule.Columns[0])
	return fmt.Sprintf("select distinct format('%%s', %s) from %s%s where %[1]s is not null", key, from, sample)
}

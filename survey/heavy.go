package survey

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

const (
	named   = 10    // keys that a report names in any case
	counted = 0.005 // share of the rows, as sampled, from which on a key is counted: one with a hundredth is then among them
)

// count is what a key has, counted on every source so far.
type count struct{ rows, bytes int64 }

// heavy are the keys with the most rows: so many at least, and all that have a share of all.
func (s *Sample) heavy(least int, share float64) []int {
	var order []int
	total := 0.0
	for i, k := range s.keys {
		order = append(order, i)
		total += k.rows
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(s.keys[b].rows, s.keys[a].rows), strings.Compare(s.keys[a].text, s.keys[b].text))
	})
	for n, at := range order {
		if n >= least && s.keys[at].rows < share*total {
			return order[:n]
		}
	}
	return order
}

// Count counts the rows of every key that may have a hundredth of them, on one source; call it for each, after Place. The
// server takes an index on the key where there is one, else it reads the table once; where that takes too long the error
// says so, and the estimates stay. A key that a server was asked for is not counted, since no column holds what it is placed by,
// nor one with a NULL.
func (s *Sample) Count(ctx context.Context, conn *pgx.Conn, root *pg.Table, limits Limits) error {
	columns := s.table.Rule.Columns
	keys := slices.DeleteFunc(s.heavy(0, counted), func(at int) bool {
		return slices.ContainsFunc(s.keys[at].datums, func(d pg.Datum) bool { return d.Kind == pg.Null })
	})
	if s.read().Whole || s.table.Query != nil || len(keys) == 0 {
		return nil
	}
	var unnest, names, is []string
	var arrays []any
	for i, name := range columns {
		c, found := root.Column(name)
		if !found {
			return fmt.Errorf("%s has no column %s", root.Name, name)
		}
		values := make([]string, len(keys))
		for n, at := range keys {
			values[n] = string(s.keys[at].datums[i].Bytes)
		}
		arrays = append(arrays, values)
		unnest = append(unnest, fmt.Sprintf("$%d::text[]::%s[]", i+1, root.Columns[c].Type))
		names = append(names, fmt.Sprintf(`"!%d"`, i)) // none that a table has
		is = append(is, fmt.Sprintf(`%s = "!%d"`, pgx.Identifier{name}.Sanitize(), i))
	}
	from := root.Name.SQL()
	if root.Kind == 'r' { // its inheritance children are tables of their own
		from = "only " + from
	}
	sql := fmt.Sprintf(`select %s "!n"::int, count(*), sum(%s)::bigint from unnest(%s) with ordinality as "!h" (%s, "!n") join %s on %s group by 1`,
		Mark, rowBytes(root), strings.Join(unnest, ", "), strings.Join(names, ", "), from, strings.Join(is, " and "))
	err := bounded(ctx, conn, limits.Time, func() error {
		rows, err := conn.Query(ctx, sql, arrays...)
		if err != nil {
			return err
		}
		var n int
		var found count
		_, err = pgx.ForEachRow(rows, []any{&n, &found.rows, &found.bytes}, func() error {
			c := s.counts[keys[n-1]]
			s.counts[keys[n-1]] = count{c.rows + found.rows, c.bytes + found.bytes}
			return nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("count the heaviest keys of %s: %w", root.Name, err)
	}
	s.counted++
	return nil
}

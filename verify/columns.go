package verify

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// nameColumns finds out which columns of the different rows differ. It reads the rows' buckets once more, with all
// compared columns, from the nodes concerned; values do not leave this function.
func (v *verifier) nameColumns(ctx context.Context, t *Table, left, right side, found []difference) error {
	byNode := map[*node]map[string][]*difference{}
	want := func(n *node, d *difference) {
		if byNode[n] == nil {
			byNode[n] = map[string][]*difference{}
		}
		byNode[n][d.key] = append(byNode[n][d.key], d)
	}
	for i := range found {
		if d := &found[i]; d.What == Different {
			want(d.left, d)
			want(d.right, d)
		}
	}
	leftValues, rightValues := map[*difference][][]byte{}, map[*difference][][]byte{}
	for n, wanted := range byNode {
		e, rows := left.sql, v.inBuckets(t, bucketsOf(wanted))
		if !slices.Contains(left.nodes, n) {
			e = right.sql
		}
		if t.Only != nil {
			rows = v.ofKeys(t, keyArrays(slices.Collect(maps.Keys(wanted)), len(t.Key)))
		}
		err := rows.on(ctx, n, func(conn *pgconn.PgConn) error {
			return each(ctx, conn, e.values(t, rows.where(e)), rows.args, func(values [][]byte) error {
				for _, d := range wanted[string(encodeKey(values[:len(t.Key)]))] {
					if d.left == n {
						leftValues[d] = cloneAll(values[len(t.Key):])
					} else {
						rightValues[d] = cloneAll(values[len(t.Key):])
					}
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	for d, l := range leftValues {
		r := rightValues[d]
		for i, name := range t.Columns {
			if r != nil && ((l[i] == nil) != (r[i] == nil) || !bytes.Equal(l[i], r[i])) {
				d.Columns = append(d.Columns, name)
			}
		}
	}
	return nil
}

func bucketsOf(wanted map[string][]*difference) (list []int) {
	for _, ds := range wanted {
		list = append(list, ds[0].bucket)
	}
	return list
}

func cloneAll(values [][]byte) [][]byte {
	out := make([][]byte, len(values))
	for i, value := range values {
		out[i] = bytes.Clone(value)
	}
	return out
}

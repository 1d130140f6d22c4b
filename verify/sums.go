package verify

import (
	"context"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// sum is what one bucket adds up to.
type sum struct {
	rows int64
	a, b big.Int // exact: they are added as numeric in the servers
}

func (s *sum) add(o *sum) {
	s.rows += o.rows
	s.a.Add(&s.a, &o.a)
	s.b.Add(&s.b, &o.b)
}

func (s *sum) equal(o *sum) bool {
	return s.rows == o.rows && s.a.Cmp(&o.a) == 0 && s.b.Cmp(&o.b) == 0
}

// sums are a table's buckets on one side; a bucket without rows is not in them.
type sums map[int]*sum

func (s sums) rows() (n int64) {
	for _, one := range s {
		n += one.rows
	}
	return n
}

// differing lists the buckets that are not equal, and how many rows each has on both sides together.
func differing(left, right sums) (list []int, rows map[int]int64) {
	rows = map[int]int64{}
	var none sum
	for k, l := range left {
		r := right[k]
		if r == nil {
			r = &none
		}
		if !l.equal(r) {
			list, rows[k] = append(list, k), l.rows+r.rows
		}
	}
	for k, r := range right {
		if left[k] == nil {
			list, rows[k] = append(list, k), r.rows
		}
	}
	slices.Sort(list)
	return list, rows
}

// side is one or several nodes that hold a table's rows together.
type side struct {
	nodes []*node
	sql   expressions
}

// sums adds up a side of a table, all nodes at once and large tables in several scans.
func (v *verifier) sums(ctx context.Context, t *Table, s side) (sums, error) {
	var mu sync.Mutex
	total := sums{}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range s.nodes {
		group.Go(func() error {
			ranges, err := v.ranges(ctx, n, t, s.sql)
			if err != nil {
				return err
			}
			scans, ctx := errgroup.WithContext(ctx)
			for _, where := range ranges {
				scans.Go(func() error {
					part, err := v.scanSums(ctx, n, s.sql.sums(t, where))
					if err == nil && v.Part != nil {
						v.Part(t, 1/float64(len(ranges)*len(v.all())))
					}
					mu.Lock()
					defer mu.Unlock()
					for k, one := range part {
						if total[k] == nil {
							total[k] = one
						} else {
							total[k].add(one)
						}
					}
					return err
				})
			}
			return scans.Wait()
		})
	}
	return total, group.Wait()
}

// maxPages is the size of a table's largest file, in blocks.
const maxPages = `select greatest(pg_relation_size(to_regclass($1)),
       (select max(pg_relation_size(relid)) from pg_partition_tree(to_regclass($1)))) / current_setting('block_size')::int8`

// ranges splits a scan by block numbers. A row is in exactly one range: each leaf's blocks are split alike. A table that
// was small on its source when the catalog was read is not asked for its size.
func (v *verifier) ranges(ctx context.Context, n *node, t *Table, e expressions) (where []string, err error) {
	if t.Source.Pages > 0 && t.Source.Pages < v.rangePages/2 {
		return []string{""}, nil
	}
	var pages int64
	err = v.on(ctx, n, func(conn *pgconn.PgConn) error {
		return each(ctx, conn, maxPages, [][]byte{[]byte(e.own.Name.SQL())}, func(values [][]byte) (err error) {
			pages, err = strconv.ParseInt(string(values[0]), 10, 64)
			return err
		})
	})
	parts := min(pages/v.rangePages+1, mostRanges)
	if err != nil || parts < 2 {
		return []string{""}, err
	}
	for i := range parts {
		clause := fmt.Sprintf("where ctid >= '(%d,0)'", pages*i/parts)
		if i < parts-1 {
			clause += fmt.Sprintf(" and ctid < '(%d,0)'", pages*(i+1)/parts)
		}
		where = append(where, clause)
	}
	return where, nil
}

func (v *verifier) scanSums(ctx context.Context, n *node, sql string) (sums, error) {
	s := sums{}
	err := v.on(ctx, n, func(conn *pgconn.PgConn) error {
		return each(ctx, conn, sql, nil, func(values [][]byte) error {
			k, err := strconv.Atoi(string(values[0]))
			if err != nil {
				return err
			}
			one := &sum{}
			if one.rows, err = strconv.ParseInt(string(values[1]), 10, 64); err != nil {
				return err
			}
			_, okA := one.a.SetString(string(values[2]), 10)
			_, okB := one.b.SetString(string(values[3]), 10)
			if !okA || !okB {
				return fmt.Errorf("a sum of hashes is no number: %q, %q", values[2], values[3])
			}
			s[k] = one
			return nil
		})
	})
	return s, err
}

package verify

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// hashed is one fetched row: where it stands and what it hashes to.
type hashed struct {
	node   *node
	bucket int
	a, b   int64
}

// same says that two rows are equal.
func (h hashed) same(o hashed) bool { return h.a == o.a && h.b == o.b }

// pair is what stands under one key on both sides.
type pair struct{ left, right []hashed }

// difference is a finding before it is shown.
type difference struct {
	Finding
	key         string // encoded
	bucket      int
	left, right *node
}

// diff tells apart the rows of buckets that differ, block by block, until Limit rows are named.
func (v *verifier) diff(ctx context.Context, t *Table, left, right side, list []int, rows map[int]int64, report *TableReport) error {
	report.differs = report.differs || len(list) > 0
	for len(list) > 0 {
		if len(report.Keys) >= v.Limit {
			report.AtLeast = true
			return nil
		}
		n, held := 0, int64(0)
		for n < len(list) && (n == 0 || held+rows[list[n]] <= v.blockRows) {
			held += rows[list[n]]
			n++
		}
		if err := v.diffBlock(ctx, t, left, right, list[:n], report); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func (v *verifier) diffBlock(ctx context.Context, t *Table, left, right side, list []int, report *TableReport) error {
	pairs, err := v.fetch(ctx, t, left, right, v.inBuckets(t, list))
	if err != nil {
		return err
	}
	return v.tell(ctx, t, left, right, pairs, report)
}

// tell reports what differs in the rows of some keys.
func (v *verifier) tell(ctx context.Context, t *Table, left, right side, pairs map[string]*pair, report *TableReport) error {
	found := classify(pairs, len(t.Key) > 0, report)
	if room := v.Limit - len(report.Keys); len(found) > room {
		found = found[:room]
	}
	if err := v.nameColumns(ctx, t, left, right, found); err != nil {
		return err
	}
	for _, d := range found {
		if d.Key = d.key; len(t.Key) > 0 {
			d.Values = decodeKey(d.key)
			d.Key = showKey(t.Key, d.Values, v.HideKeys)
		}
		d.mark(d.left)
		d.mark(d.right)
		report.Keys = append(report.Keys, d.Finding)
	}
	return nil
}

// mark names a node that has the row. Where two sources are compared, the second is the one named.
func (d *difference) mark(n *node) {
	switch {
	case n == nil: // it has none
	case n.side == "source":
		d.Source = &n.Number
	default:
		d.Shard = &n.Number
	}
}

// chosen says which rows of a table are fetched, and how a node is asked for them.
type chosen struct {
	where func(expressions) string // over parameters from $1 on
	args  [][]byte
	on    func(context.Context, *node, func(*pgconn.PgConn) error) error
}

// inBuckets are the rows of some buckets.
func (v *verifier) inBuckets(t *Table, list []int) chosen {
	return chosen{where: func(e expressions) string { return e.bucketOf(t) + " = any($1::int8[])" }, args: bucketList(list), on: v.on}
}

// fetch reads chosen rows from all nodes of both sides, by key, or by hash where there is no key.
func (v *verifier) fetch(ctx context.Context, t *Table, left, right side, rows chosen) (map[string]*pair, error) {
	var mu sync.Mutex
	pairs := map[string]*pair{}
	read := func(n *node, e expressions, rowsOf func(*pair) *[]hashed) error {
		return rows.on(ctx, n, func(conn *pgconn.PgConn) error {
			return each(ctx, conn, e.rows(t, rows.where(e)), rows.args, func(values [][]byte) error {
				h, key, err := parseRow(n, values)
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				p := pairs[string(key)]
				if p == nil {
					p = &pair{}
					pairs[string(key)] = p
				}
				list := rowsOf(p)
				*list = append(*list, h)
				return nil
			})
		})
	}
	var group errgroup.Group
	for _, n := range left.nodes {
		group.Go(func() error { return read(n, left.sql, func(p *pair) *[]hashed { return &p.left }) })
	}
	for _, n := range right.nodes {
		group.Go(func() error { return read(n, right.sql, func(p *pair) *[]hashed { return &p.right }) })
	}
	return pairs, group.Wait()
}

// parseRow reads a line of expressions.rows. Of a table without key the hash stands for the key.
func parseRow(n *node, values [][]byte) (h hashed, key []byte, err error) {
	var errs [3]error
	h.node = n
	h.a, errs[0] = strconv.ParseInt(string(values[0]), 10, 64)
	h.b, errs[1] = strconv.ParseInt(string(values[1]), 10, 64)
	h.bucket, errs[2] = strconv.Atoi(string(values[2]))
	if len(values) == 3 {
		return h, fmt.Appendf(nil, "#%016x%016x", uint64(h.a), uint64(h.b)), errors.Join(errs[:]...)
	}
	return h, encodeKey(values[3:]), errors.Join(errs[:]...)
}

func bucketList(list []int) [][]byte {
	parts := make([]string, len(list))
	for i, k := range list {
		parts[i] = strconv.Itoa(k)
	}
	return [][]byte{[]byte("{" + strings.Join(parts, ",") + "}")}
}

// classify counts what differs, in the order of the encoded keys. Rows under one key are matched by hash first; what is left
// over on both sides is different, on one side missing, extra or doubled.
func classify(pairs map[string]*pair, keyed bool, report *TableReport) (found []difference) {
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		p := pairs[key]
		known := len(p.left) > 0
		for _, list := range [][]hashed{p.left, p.right} { // nodes answer in any order, and the same is to be told each time
			slices.SortStableFunc(list, func(a, b hashed) int { return cmp.Compare(a.node.Number, b.node.Number) })
		}
		left, right := cancel(p.left, p.right)
		for keyed && len(left) > 0 && len(right) > 0 {
			report.Different++
			found = append(found, difference{Finding: Finding{What: Different}, key: key, bucket: left[0].bucket, left: left[0].node, right: right[0].node})
			left, right = left[1:], right[1:]
		}
		for _, h := range left {
			report.Missing++
			found = append(found, difference{Finding: Finding{What: Missing}, key: key, left: h.node})
		}
		for _, h := range right {
			what, count := Extra, &report.Extra
			if known {
				what, count = Doubled, &report.Doubled
			}
			*count++
			found = append(found, difference{Finding: Finding{What: what}, key: key, right: h.node})
		}
	}
	return found
}

// cancel takes equal rows away from both sides, one for one.
func cancel(left, right []hashed) (restLeft, restRight []hashed) {
	restRight = slices.Clone(right)
	for _, l := range left {
		if i := slices.IndexFunc(restRight, l.same); i >= 0 {
			restRight = slices.Delete(restRight, i, i+1)
		} else {
			restLeft = append(restLeft, l)
		}
	}
	return restLeft, restRight
}

// encodeKey packs a key's values into one comparable string.
func encodeKey(values [][]byte) []byte {
	var key []byte
	for _, value := range values {
		if value == nil {
			key = binary.BigEndian.AppendUint32(key, 0)
			continue
		}
		key = binary.BigEndian.AppendUint32(key, uint32(len(value))+1)
		key = append(key, value...)
	}
	return key
}

func decodeKey(key string) (values []pg.Datum) {
	rest := []byte(key)
	for len(rest) >= 4 {
		n := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; n == 0 {
			values = append(values, pg.Datum{Kind: pg.Null})
			continue
		}
		values = append(values, pg.Datum{Kind: pg.Text, Bytes: bytes.Clone(rest[:n-1])})
		rest = rest[n-1:]
	}
	return values
}

package verify

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// Keys is a set of keys, values in the text form the servers give them. The zero value is an empty set.
type Keys struct {
	set   map[string]struct{}
	bytes int
}

// keyOverhead is about what a key costs in a set beside its own bytes.
const keyOverhead = 64

// Add puts a key into the set, of which it keeps a copy.
func (k *Keys) Add(key []pg.Datum) {
	values := make([][]byte, len(key))
	for i, d := range key {
		if d.Kind != pg.Null {
			values[i] = d.Bytes
		}
	}
	encoded := encodeKey(values)
	if _, there := k.set[string(encoded)]; there {
		return
	}
	if k.set == nil {
		k.set = map[string]struct{}{}
	}
	k.set[string(encoded)] = struct{}{}
	k.bytes += len(encoded) + keyOverhead
}

// Merge puts the keys of another set into this one.
func (k *Keys) Merge(o Keys) {
	for key := range o.set {
		k.Add(decodeKey(key))
	}
}

// Len is the number of keys, Bytes about the memory they take.
func (k *Keys) Len() int   { return len(k.set) }
func (k *Keys) Bytes() int { return k.bytes }

// keysAtOnce is how many keys one statement asks for.
const keysAtOnce = 10_000

// batches gives the keys as parameters of statements: one array of texts a column.
func (k *Keys) batches(columns int) iter.Seq[[][]byte] {
	keys := make([]string, 0, len(k.set))
	for key := range k.set {
		keys = append(keys, key)
	}
	slices.Sort(keys) // neighbours in the index, more or less
	return func(yield func([][]byte) bool) {
		for part := range slices.Chunk(keys, keysAtOnce) {
			if !yield(keyArrays(part, columns)) {
				return
			}
		}
	}
}

// keyArrays writes encoded keys as one array literal a column.
func keyArrays(keys []string, columns int) [][]byte {
	arrays := make([][]byte, columns)
	for i := range arrays {
		arrays[i] = append(arrays[i], '{')
	}
	for n, key := range keys {
		for i, d := range decodeKey(key) {
			if n > 0 {
				arrays[i] = append(arrays[i], ',')
			}
			if d.Kind == pg.Null {
				arrays[i] = append(arrays[i], "NULL"...)
				continue
			}
			arrays[i] = append(arrays[i], '"')
			for _, b := range d.Bytes {
				if b == '"' || b == '\\' {
					arrays[i] = append(arrays[i], '\\')
				}
				arrays[i] = append(arrays[i], b)
			}
			arrays[i] = append(arrays[i], '"')
		}
	}
	for i := range arrays {
		arrays[i] = append(arrays[i], '}')
	}
	return arrays
}

// with is the condition that some columns have one of the keys in $1, $2, … It is no join, so that a row is found once
// although 1.0 and 1.00 were both asked for.
func (e expressions) with(columns []string) string {
	var args, names, values []string
	for i, name := range columns {
		args = append(args, fmt.Sprintf("$%d::text[]", i+1))
		names = append(names, fmt.Sprintf("u%d", i))
		values = append(values, fmt.Sprintf("u.u%d::%s", i, e.column(name).Base))
	}
	return fmt.Sprintf("(%s) in (select %s from unnest(%s) u(%s))",
		e.list(columns), strings.Join(values, ", "), strings.Join(args, ", "), strings.Join(names, ", "))
}

// Conditions are statements' conditions, with their parameters, that together choose the rows of a table whose values in some columns are
// among the keys, each row once: of keys without NULL through an index of theirs, where there is one.
func (k *Keys) Conditions(t *pg.Table, columns []string) iter.Seq2[string, [][]byte] {
	e, whole := expressions{own: t}, Keys{}
	var nulls [][]pg.Datum
	for encoded := range k.set {
		key := decodeKey(encoded)
		if slices.ContainsFunc(key, func(d pg.Datum) bool { return d.Kind == pg.Null }) {
			nulls = append(nulls, key)
		} else {
			whole.Add(key)
		}
	}
	return func(yield func(string, [][]byte) bool) {
		for args := range whole.batches(len(columns)) {
			if !yield(e.with(columns), args) {
				return
			}
		}
		for _, key := range nulls {
			var list []string
			var args [][]byte
			for i, name := range columns {
				if key[i].Kind == pg.Null {
					list = append(list, e.column(name).SQL()+" is null")
					continue
				}
				args = append(args, key[i].Bytes)
				list = append(list, fmt.Sprintf("%s = $%d::text::%s", e.column(name).SQL(), len(args), e.column(name).Base))
			}
			if !yield(strings.Join(list, " and "), args) {
				return
			}
		}
	}
}

// ByIndex has the rest of a transaction read tables through their keys, however few rows the server thinks they have.
const ByIndex = "; set local enable_seqscan = off; set local enable_hashjoin = off; set local enable_mergejoin = off"

// onKeys is on for a statement that reads rows by their keys.
func (v *verifier) onKeys(ctx context.Context, n *node, f func(*pgconn.PgConn) error) error {
	return v.onWith(ctx, n, ByIndex, f)
}

// ofKeys are the rows with keys given as arrays.
func (v *verifier) ofKeys(t *Table, args [][]byte) chosen {
	return chosen{where: func(e expressions) string { return e.with(t.Key) }, args: args, on: v.onKeys}
}

// compareOnly compares the rows of t.Only.Keys on two sides and gives how many there are on the left.
func (v *verifier) compareOnly(ctx context.Context, t *Table, left, right side, report *TableReport) (rows int64, err error) {
	for args := range t.Only.Keys.batches(len(t.Key)) {
		if len(report.Keys) >= v.Limit {
			report.AtLeast = true
			return rows, nil
		}
		pairs, err := v.fetch(ctx, t, left, right, v.ofKeys(t, args))
		if err != nil {
			return rows, err
		}
		for _, p := range pairs {
			rows += int64(len(p.left))
		}
		if err := v.tell(ctx, t, left, right, pairs, report); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

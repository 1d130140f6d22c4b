package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// Unique is a constraint that the sources enforced for all rows, and every shard enforces for its own.
type Unique struct {
	Name       string
	Table      *pg.Table // as the shards have it
	Key        []string  // columns that its rows are named by; empty: a row is named by a hash of the constraint's values
	Columns    []UniqueColumn
	Where      string // of a partial index, its predicate
	NullsEqual bool   // NULLS NOT DISTINCT
}

// UniqueColumn is what a unique index is made of.
type UniqueColumn struct {
	SQL     string // a column or an expression
	Type    string // without modifier
	Collate string // where it is not the type's own; begins with a blank
}

// Conflict is one value that more than one row has. It is not shown; the rows are named by their keys.
type Conflict struct {
	Constraint string        `json:"constraint"`
	Rows       []ConflictRow `json:"rows"`     // at most Limit
	AtLeast    bool          `json:"at_least"` // there are more
}

// ConflictRow is one of its rows.
type ConflictRow struct {
	Shard int    `json:"shard"`
	Key   string `json:"key"`
}

// AddUniques looks across the shards of a request for rows that one of the constraints of a table would not have let be beside
// each other. Each shard gives the hashes of its rows' values in their order, so that they are merged as they come; only rows
// of equal hashes are looked at.
func (t *TableReport) AddUniques(ctx context.Context, r Request, list []Unique) error {
	r.Parallel, r.Limit = cmp.Or(r.Parallel, defaultParallel), cmp.Or(r.Limit, defaultLimit)
	v := &verifier{Request: r, scans: make(chan struct{}, r.Parallel), shards: nodes(r.Shards, "shard")}
	defer v.close()
	defer t.settle()
	for i := range list {
		if err := v.unique(ctx, &list[i], t); err != nil {
			failure, ok := err.(*Failure)
			if ok {
				t.Failures = append(t.Failures, failure)
			}
			return fmt.Errorf("unique %s of %s: %w", list[i].Name, list[i].Table.Name, err)
		}
	}
	return nil
}

func (v *verifier) unique(ctx context.Context, u *Unique, t *TableReport) error {
	hash, err := v.hashOf(ctx, u)
	if err != nil {
		return err
	}
	hashes, more, err := v.equalHashes(ctx, u, hash)
	if err != nil || len(hashes) == 0 {
		return err
	}
	rows, err := v.rowsOfHashes(ctx, u, hash, hashes)
	if err != nil {
		return err
	}
	conflicts, err := v.conflicts(ctx, u, rows)
	t.NotUnique += int64(len(conflicts))
	t.Conflicts = append(t.Conflicts, conflicts...)
	t.AtLeast = t.AtLeast || more
	return err
}

const undefinedFunction = "42883"

// hashOf is the expression that rows are found by: their types' own hash, by which what is equal is equal in every form it is
// written in (1.0 and 1.00), or that of their text where a type has none.
func (v *verifier) hashOf(ctx context.Context, u *Unique) (sql string, err error) {
	var list []string
	for _, c := range u.Columns {
		list = append(list, c.SQL+c.Collate)
	}
	record := "row(" + strings.Join(list, ", ") + ")"
	sql = fmt.Sprintf("hash_record_extended(%s, %s)", record, seedBucket)
	nulls := make([]string, len(u.Columns))
	for i, c := range u.Columns {
		nulls[i] = "null::" + c.Type
	}
	err = v.shards[0].use(ctx, "", func(conn *pgconn.PgConn) error {
		return simple(ctx, conn, fmt.Sprintf("select hash_record_extended(row(%s), 0)", strings.Join(nulls, ", ")))
	})
	if pg.Code(err) == undefinedFunction {
		return fmt.Sprintf("hashtextextended(%s::text, %s)", record, seedBucket), nil
	}
	return sql, err
}

// hashed selects, of the rows the constraint is for, their hashes as h beside other expressions.
func (u *Unique) hashed(hash string, others ...string) string {
	var conditions []string
	if u.Where != "" {
		conditions = append(conditions, "("+u.Where+")")
	}
	for _, c := range u.Columns {
		if !u.NullsEqual {
			conditions = append(conditions, c.SQL+" is not null")
		}
	}
	sql := "select " + hash + " h"
	for i, other := range others {
		sql += fmt.Sprintf(", %s o%d", other, i)
	}
	sql += " from " + from(u.Table)
	if conditions != nil {
		sql += " where " + strings.Join(conditions, " and ")
	}
	return sql
}

// hashBatch is how many hashes a shard gives at a time, and it is at most two of them ahead.
const hashBatch = 4096

// hashStream is one shard's hashes in their order.
type hashStream struct {
	batches chan []int64
	now     []int64
}

// head is the next hash; ok is false at the end.
func (s *hashStream) head() (h int64, ok bool) {
	if len(s.now) == 0 {
		s.now = <-s.batches // nil once it is closed
	}
	if len(s.now) == 0 {
		return 0, false
	}
	return s.now[0], true
}

// equalHashes merges the shards' hashes and gives those of more than one row, Limit of them; more says that there are others.
func (v *verifier) equalHashes(ctx context.Context, u *Unique, hash string) (found []int64, more bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, inner := errgroup.WithContext(ctx)
	streams := make([]*hashStream, len(v.shards))
	sql := "select h from (" + u.hashed(hash) + ") s order by h"
	for i, n := range v.shards {
		s := &hashStream{batches: make(chan []int64, 1)}
		streams[i] = s
		group.Go(func() error {
			defer close(s.batches)
			return n.use(inner, "", func(conn *pgconn.PgConn) error { return s.read(inner, conn, sql) })
		})
	}
	for {
		least, rows := int64(0), 0
		for _, s := range streams {
			if h, ok := s.head(); ok && (rows == 0 || h < least) {
				least, rows = h, 1
			}
		}
		if rows == 0 {
			return found, false, group.Wait()
		}
		rows = 0
		for _, s := range streams {
			for h, ok := s.head(); ok && h == least; h, ok = s.head() {
				s.now = s.now[1:]
				rows++
			}
		}
		switch {
		case rows < 2:
		case len(found) == v.Limit:
			stop()
			_ = group.Wait() // they were told to end
			return found, true, nil
		default:
			found = append(found, least)
		}
	}
}

func (s *hashStream) read(ctx context.Context, conn *pgconn.PgConn, sql string) error {
	var batch []int64
	send := func() error {
		select {
		case s.batches <- batch:
			batch = nil
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	err := each(ctx, conn, sql, nil, func(values [][]byte) error {
		h, err := strconv.ParseInt(string(values[0]), 10, 64)
		if batch = append(batch, h); err != nil || len(batch) < hashBatch {
			return err
		}
		return send()
	})
	if err != nil || len(batch) == 0 {
		return err
	}
	return send()
}

// valued is a row with the constraint's values.
type valued struct {
	row    ConflictRow
	hash   string
	values [][]byte
}

// rowsOfHashes fetches the rows with some hashes from every shard.
func (v *verifier) rowsOfHashes(ctx context.Context, u *Unique, hash string, hashes []int64) ([]valued, error) {
	list := make([]string, len(hashes))
	for i, h := range hashes {
		list[i] = strconv.FormatInt(h, 10)
	}
	var others []string
	e := expressions{own: u.Table, other: u.Table}
	for _, name := range u.Key {
		others = append(others, e.column(name).SQL())
	}
	for _, c := range u.Columns {
		others = append(others, c.SQL)
	}
	sql := "select * from (" + u.hashed(hash, others...) + " offset 0) s where h = any($1::int8[])"
	found := make([][]valued, len(v.shards))
	group, inner := errgroup.WithContext(ctx)
	for i, n := range v.shards {
		group.Go(func() error {
			return v.on(inner, n, func(conn *pgconn.PgConn) error {
				return each(inner, conn, sql, [][]byte{[]byte("{" + strings.Join(list, ",") + "}")}, func(row [][]byte) error {
					one := valued{row: ConflictRow{Shard: n.Number, Key: "#" + string(row[0])}, hash: string(row[0]), values: cloneAll(row[1+len(u.Key):])}
					if len(u.Key) > 0 {
						one.row.Key = showKey(u.Key, decodeKey(string(encodeKey(row[1:1+len(u.Key)]))), v.HideKeys)
					}
					found[i] = append(found[i], one)
					return nil
				})
			})
		})
	}
	err := group.Wait()
	return slices.Concat(found...), err
}

// conflicts has a server say which of the rows of equal hashes have equal values.
func (v *verifier) conflicts(ctx context.Context, u *Unique, rows []valued) (list []Conflict, err error) {
	args := make([][]byte, 1+len(u.Columns))
	var names, arrays, by []string
	for i := range args {
		key := make([]string, len(rows))
		for n, row := range rows {
			if key[n] = string(encodeKey([][]byte{[]byte(strconv.Itoa(n))})); i > 0 {
				key[n] = string(encodeKey(row.values[i-1 : i]))
			}
		}
		args[i] = keyArrays(key, 1)[0]
		names, arrays = append(names, fmt.Sprintf("c%d", i)), append(arrays, fmt.Sprintf("$%d::text[]", i+1))
		if i > 0 {
			by = append(by, fmt.Sprintf("c%d::%s%s", i, u.Columns[i-1].Type, u.Columns[i-1].Collate))
		}
	}
	sql := fmt.Sprintf("select string_agg(c0, ',' order by c0::int) from unnest(%s) u(%s) group by %s having count(*) > 1 order by min(c0::int)",
		strings.Join(arrays, ", "), strings.Join(names, ", "), strings.Join(by, ", "))
	err = v.on(ctx, v.shards[0], func(conn *pgconn.PgConn) error {
		return each(ctx, conn, sql, args, func(values [][]byte) error {
			c := Conflict{Constraint: u.Name}
			for text := range strings.SplitSeq(string(values[0]), ",") {
				if n, err := strconv.Atoi(text); err != nil {
					return err
				} else if len(c.Rows) < v.Limit {
					c.Rows = append(c.Rows, rows[n].row)
				} else {
					c.AtLeast = true
				}
			}
			list = append(list, c)
			return nil
		})
	})
	return list, err
}

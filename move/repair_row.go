package move

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/verify"
)

// mending makes the wrong rows of one table right, within the open transactions of the shards.
type mending struct {
	*wrong
	sources []*copier.Snapshot
	shards  []*pgx.Conn
	place   verify.Placer
	done    []Mended // by shard
}

func (r *mending) run(ctx context.Context) error {
	for _, p := range r.placed { // the rows behind a key that names another shard
		rows, err := r.read(ctx, r.shards[p.shard], rowsIn(r.table.Dest), r.table.Key, r.table.PlaceColumns, p.key)
		if err != nil {
			return err
		}
		r.keys = append(r.keys, rows...)
	}
	for _, key := range r.keys {
		if err := r.row(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// read gives the columns of the rows that match, as text.
func (r *mending) read(ctx context.Context, conn *pgx.Conn, table string, columns, by []string, key []pg.Datum) (rows [][]pg.Datum, err error) {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = ident(c) + "::text"
	}
	found := asText(ctx, conn, fmt.Sprintf("select %s from %s where %s", strings.Join(list, ", "), table, matching(by, 1)), key)
	for _, values := range found.Rows {
		row := make([]pg.Datum, len(columns))
		for i, v := range values {
			if row[i].Kind = pg.Null; v != nil {
				row[i] = pg.Datum{Kind: pg.Text, Bytes: v}
			}
		}
		rows = append(rows, row)
	}
	return rows, found.Err
}

// row makes one row right on every shard.
func (r *mending) row(ctx context.Context, key []pg.Datum) error {
	var has [][]pg.Datum
	sources := r.sources
	if r.table.Omni {
		sources = sources[:1]
	}
	for _, s := range sources {
		rows, err := r.read(ctx, s.Conn(), rowsIn(r.table.Source), r.table.Columns, r.table.Key, key)
		if err != nil {
			return err
		}
		has = append(has, rows...)
	}
	want := make([][][]pg.Datum, len(r.shards))
	for _, row := range has {
		to, err := r.homes(ctx, row)
		if err != nil {
			return err
		}
		if slices.Contains(to, verify.Nowhere) { // its mapping row is not right yet
			return nil
		}
		for _, shard := range to {
			want[shard] = append(want[shard], row)
		}
	}
	for shard, tx := range r.shards {
		is, err := r.read(ctx, tx, rowsIn(r.table.Dest), r.table.Columns, r.table.Key, key)
		if err != nil {
			return err
		}
		if len(is) == 0 && len(want[shard]) == 0 || len(is) == 1 && len(want[shard]) == 1 && equalTexts(is[0], want[shard][0]) {
			continue
		}
		if err := r.replace(ctx, shard, key, int64(len(is)), want[shard]); err != nil {
			return err
		}
	}
	return nil
}

// homes are the shards a row of the source belongs to, Nowhere where its key has no translation.
func (r *mending) homes(ctx context.Context, row []pg.Datum) (shards []int, err error) {
	if r.table.Omni || len(r.table.PlaceColumns) == 0 {
		for n := range r.shards {
			shards = append(shards, n)
		}
		return shards, nil
	}
	key := make([]pg.Datum, len(r.table.PlaceColumns))
	for i, name := range r.table.PlaceColumns {
		for j, c := range r.table.Columns {
			if c == name {
				key[i] = row[j]
			}
		}
	}
	return r.place(ctx, r.table.Dest.Name, [][]pg.Datum{key})
}

func (r *mending) replace(ctx context.Context, shard int, key []pg.Datum, there int64, rows [][]pg.Datum) error {
	gone := asText(ctx, r.shards[shard], fmt.Sprintf("delete from %s where %s", rowsIn(r.table.Dest), matching(r.table.Key, 1)), key)
	if gone.Err != nil {
		return gone.Err
	}
	if gone.CommandTag.RowsAffected() != there {
		return fmt.Errorf("a row of shard %d was changed by somebody else meanwhile", shard)
	}
	r.done[shard].Removed += there
	columns := written(r.table)
	marks := make([]string, len(columns))
	for i := range marks {
		marks[i] = fmt.Sprintf("$%d", i+1)
	}
	for _, row := range rows {
		var values []pg.Datum
		for i, c := range r.table.Columns {
			for _, w := range columns {
				if w == c {
					values = append(values, row[i])
				}
			}
		}
		put := asText(ctx, r.shards[shard], fmt.Sprintf("insert into %s (%s) overriding system value values (%s)",
			r.table.Dest.Name.SQL(), quotedNames(columns), strings.Join(marks, ", ")), values)
		if put.Err != nil {
			return put.Err
		}
		r.done[shard].Written++
	}
	return nil
}

func equalTexts(a, b []pg.Datum) bool {
	for i := range a {
		if a[i].Kind != b[i].Kind || string(a[i].Bytes) != string(b[i].Bytes) {
			return false
		}
	}
	return true
}

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

// rowsAtOnce is how many rows one statement deletes.
const rowsAtOnce = 100

// run reads all rows of the wrong keys on both sides, and on each shard deletes those that must not be there before it inserts those
// that must: values change places between rows, and a unique constraint that holds afterwards may not hold between.
func (r *mending) run(ctx context.Context) error {
	keys, err := r.wrongKeys(ctx)
	if err != nil {
		return err
	}
	sources := r.sources
	if r.table.Omni {
		sources = sources[:1]
	}
	var has []*foundRow
	for _, s := range sources {
		rows, err := r.read(ctx, s.Conn(), r.table.Source, r.table.Columns, r.table.Key, keys, false)
		if err != nil {
			return err
		}
		has = append(has, rows...)
	}
	want, left, err := r.homes(ctx, has)
	if err != nil {
		return err
	}
	for shard, tx := range r.shards {
		is, err := r.read(ctx, tx, r.table.Dest, r.table.Columns, r.table.Key, keys, true)
		if err != nil {
			return err
		}
		is = slices.DeleteFunc(is, func(row *foundRow) bool { return left[row.key] })
		gone, put := differingRows(is, want[shard])
		if err := r.remove(ctx, shard, gone); err != nil {
			return err
		}
		if err := r.insert(ctx, shard, put); err != nil {
			return err
		}
	}
	return nil
}

// foundRow is a row as text, and where it is.
type foundRow struct {
	values        []pg.Datum
	key           string // of its values in Key
	whole         string // of all of them
	tableoid, tid string // on a shard
}

// wrongKeys are the keys that were found wrong, and of rows that stand behind a sharding key that names another shard.
func (r *mending) wrongKeys(ctx context.Context) (keys verify.Keys, err error) {
	for _, key := range r.keys {
		keys.Add(key)
	}
	placed := make([]verify.Keys, len(r.shards))
	for _, p := range r.placed {
		placed[p.shard].Add(p.key)
	}
	for shard, of := range placed {
		rows, err := r.read(ctx, r.shards[shard], r.table.Dest, r.table.Key, r.table.PlaceColumns, of, false)
		if err != nil {
			return keys, err
		}
		for _, row := range rows {
			keys.Add(row.values)
		}
	}
	return keys, nil
}

// read gives the columns of the rows whose values in some columns are among keys; locked ones stay as they are.
func (r *mending) read(ctx context.Context, conn *pgx.Conn, table *pg.Table, columns, by []string, keys verify.Keys, locked bool) (rows []*foundRow, err error) {
	at, lock := "", ""
	if locked {
		at, lock = ", tableoid, ctid", " for update"
	}
	for where, args := range keys.Conditions(table, by) {
		found := conn.PgConn().ExecParams(ctx, fmt.Sprintf("select %s%s from %s where %s%s", quotedNames(columns), at, rowsIn(table), where, lock), args, nil, nil, nil).Read()
		if found.Err != nil {
			return nil, found.Err
		}
		for _, values := range found.Rows {
			rows = append(rows, r.row(columns, values, locked))
		}
	}
	return rows, nil
}

func (r *mending) row(columns []string, values [][]byte, located bool) *foundRow {
	row := &foundRow{}
	if located {
		row.tableoid, row.tid = string(values[len(values)-2]), string(values[len(values)-1])
	}
	var key, whole strings.Builder
	for i, c := range columns {
		d, text := pg.Datum{Kind: pg.Null}, "-"
		if values[i] != nil {
			d = pg.Datum{Kind: pg.Text, Bytes: values[i]}
			text = fmt.Sprintf("%d:%s", len(values[i]), values[i])
		}
		row.values = append(row.values, d)
		whole.WriteString(text)
		if slices.Contains(r.table.Key, c) {
			key.WriteString(text)
		}
	}
	row.key, row.whole = key.String(), whole.String()
	return row
}

// homes gives each shard the rows of the sources that belong to it. Those of a key that has no translation are left as they are
// everywhere: their mapping row is not right yet.
func (r *mending) homes(ctx context.Context, rows []*foundRow) (want [][]*foundRow, left map[string]bool, err error) {
	want, left = make([][]*foundRow, len(r.shards)), map[string]bool{}
	if r.table.Omni || len(r.table.PlaceColumns) == 0 {
		for n := range want {
			want[n] = rows
		}
		return want, left, nil
	}
	for _, row := range rows {
		key := make([]pg.Datum, len(r.table.PlaceColumns))
		for i, name := range r.table.PlaceColumns {
			key[i] = row.values[slices.Index(r.table.Columns, name)]
		}
		to, err := r.place(ctx, r.table.Dest.Name, [][]pg.Datum{key})
		switch {
		case err != nil:
			return nil, nil, err
		case to[0] == verify.Nowhere:
			left[row.key] = true
		default:
			want[to[0]] = append(want[to[0]], row)
		}
	}
	return want, left, nil
}

// differingRows are those that are there too many, and those that are missing.
func differingRows(is, want []*foundRow) (gone, put []*foundRow) {
	there := map[string]int{}
	for _, row := range want {
		there[row.whole]++
	}
	for _, row := range is {
		if there[row.whole] > 0 {
			there[row.whole]--
		} else {
			gone = append(gone, row)
		}
	}
	for _, row := range want {
		if there[row.whole] > 0 {
			there[row.whole]--
			put = append(put, row)
		}
	}
	return gone, put
}

func (r *mending) remove(ctx context.Context, shard int, rows []*foundRow) error {
	for some := range slices.Chunk(rows, rowsAtOnce) {
		var tables, tids []string
		for _, row := range some {
			tables, tids = append(tables, row.tableoid), append(tids, `"`+row.tid+`"`)
		}
		gone := r.shards[shard].PgConn().ExecParams(ctx, fmt.Sprintf("delete from %s t where ctid = any($2::tid[]) and (tableoid, ctid) in (select * from unnest($1::oid[], $2::tid[]))", rowsIn(r.table.Dest)),
			[][]byte{[]byte("{" + strings.Join(tables, ",") + "}"), []byte("{" + strings.Join(tids, ",") + "}")}, nil, nil, nil).Read()
		if gone.Err != nil {
			return gone.Err
		}
		if gone.CommandTag.RowsAffected() != int64(len(some)) {
			return fmt.Errorf("a row of shard %d was changed by somebody else meanwhile", shard)
		}
		r.done[shard].Removed += int64(len(some))
	}
	return nil
}

func (r *mending) insert(ctx context.Context, shard int, rows []*foundRow) error {
	var columns, marks []string
	var from []int // their places in a row's values
	for i, name := range r.table.Columns {
		if c, _ := r.table.Dest.Column(name); r.table.Dest.Columns[c].Generated == 0 {
			columns, from = append(columns, name), append(from, i)
			marks = append(marks, fmt.Sprintf("$%d", len(from)))
		}
	}
	sql := fmt.Sprintf("insert into %s (%s) overriding system value values (%s)", r.table.Dest.Name.SQL(), quotedNames(columns), strings.Join(marks, ", "))
	for _, row := range rows {
		values := make([][]byte, len(from))
		for i, at := range from {
			if d := row.values[at]; d.Kind != pg.Null {
				values[i] = append([]byte{}, d.Bytes...) // not nil where it is empty
			}
		}
		if err := r.shards[shard].PgConn().ExecParams(ctx, sql, values, nil, nil, nil).Read().Err; err != nil {
			return err
		}
		r.done[shard].Written++
	}
	return nil
}

package sink

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// moveRow takes a row from one shard to another because its sharding key changed. Columns the log did not carry come
// from the row on the old shard; the transaction that deletes it there leaves its image in the outbox, so that either
// shard may commit first and a replay still finds them.
func (r *router) moveRow(ctx context.Context, t *Table, from, to layout.Shard, old, new pg.Row) error {
	if complete(new) {
		r.add(from, op{kind: opDelete, table: t, old: old})
		r.add(to, op{kind: opInsert, table: t, new: new})
		return nil
	}
	if r.skip[to] {
		r.add(from, op{kind: opDelete, table: t, old: old})
		return nil
	}
	image, err := r.leave(ctx, t, []int{int(from)}, old)
	if err != nil {
		return err
	}
	if image == nil {
		return &DivergedError{Table: t.Source, Shard: from, At: r.tx.Commit, What: "a row that changes its shard is not there", Key: keyText(old, t.Key)}
	}
	r.add(to, op{kind: opInsert, table: t, new: completed(new, image)})
	return nil
}

// searchUpdate changes a row that may be on any shard: where its new key places it, or on another, from where it moves.
func (r *router) searchUpdate(ctx context.Context, t *Table, to layout.Shard, old, new pg.Row) error {
	others := r.others(to)
	if r.skip[to] { // the row is there: whoever else still has it has not heard
		_, err := r.leave(ctx, t, r.live(others), find(old, new))
		return err
	}
	n, err := r.tryUpdate(ctx, t, []int{int(to)}, old, new)
	if err != nil || n == 1 {
		return err
	}
	image, err := r.leave(ctx, t, others, find(old, new))
	switch {
	case err != nil:
		return err
	case image == nil && r.ahead && complete(new) && old != nil && t.keyChanged(old, new):
		image = new // a shard that is ahead had the row, and leaves no image where the log has all of it (moveRow)
	case image == nil:
		return &DivergedError{Table: t.Source, Shard: to, At: r.tx.Commit, What: "update of a row that is on no shard", Key: keyText(new, t.Key)}
	}
	r.add(to, op{kind: opInsert, table: t, new: completed(new, image)})
	return nil
}

func find(old, new pg.Row) pg.Row {
	if old != nil {
		return old
	}
	return new
}

func (r *router) others(shard layout.Shard) []int {
	var out []int
	for _, s := range r.all {
		if s != int(shard) {
			out = append(out, s)
		}
	}
	return out
}

// live lists those of shards that do not have this transaction yet.
func (r *router) live(shards []int) []int {
	var out []int
	for _, s := range shards {
		if !r.skip[s] {
			out = append(out, s)
		}
	}
	return out
}

// updateUnmapped changes a row whose key has no translation: where its key is what it was it stays where it is, and else
// it goes where rows of such a key do.
func (r *router) updateUnmapped(ctx context.Context, t *Table, old, new pg.Row, missing error) error {
	n, err := r.tryUpdate(ctx, t, r.live(r.all), old, new, t.RuleKey...)
	if err != nil || n == 1 {
		return err
	}
	to, err := r.placeUnmapped(ctx, t, new, missing)
	switch {
	case err == nil:
		return r.searchUpdate(ctx, t, to, old, new)
	case lookup.Missing(err) != nil && r.ahead: // it stayed where it was, on a shard that has this transaction already
		return nil
	}
	return err
}

// tryUpdate runs an update on shards and says how many rows it found.
func (r *router) tryUpdate(ctx context.Context, t *Table, shards []int, old, new pg.Row, same ...int) (int, error) {
	s, change := updateRow(t, &op{kind: opUpdate, table: t, old: old, new: new, remaps: r.remaps}, same...)
	s = s.counting(change)
	var found atomic.Int32
	err := r.call(ctx, shards, func(ctx context.Context, a *applier) error {
		result := a.exec(ctx, s)
		if result.Err != nil {
			return result.Err
		}
		n, err := strconv.Atoi(string(result.Rows[0][0]))
		found.Add(int32(n))
		return err
	})
	return int(found.Load()), err
}

// exec runs a statement alone and returns its rows in text.
func (a *applier) exec(ctx context.Context, s statement) *pgconn.Result {
	return a.conn.PgConn().ExecParams(ctx, s.sql, s.params, s.types, nil, nil).Read()
}

// leave deletes a row from whichever of shards has it, keeps its image in the outbox there, and returns the image; nil
// where none has it. A shard that is ahead is asked for the image it left behind.
func (r *router) leave(ctx context.Context, t *Table, shards []int, row pg.Row) (pg.Row, error) {
	if len(shards) == 0 {
		return nil, nil
	}
	var mu sync.Mutex
	var image pg.Row
	found := 0
	n, commit := r.n, r.tx.Commit
	err := r.call(ctx, shards, func(ctx context.Context, a *applier) error {
		var got pg.Row
		var err error
		if r.skip[a.shard] {
			got, err = a.outboxed(ctx, t, commit, n)
		} else {
			if got, err = a.takeOut(ctx, t, row); got != nil && err == nil {
				err = a.keepImage(ctx, t, got, commit, n)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if got != nil {
			image = got
			found++
		}
		return err
	})
	if err != nil { // a shard may still be at it
		return nil, err
	}
	if found > 1 {
		return nil, &DivergedError{Table: t.Source, At: commit, What: fmt.Sprintf("a row is on %d shards", found), Key: keyText(row, t.Key)}
	}
	return image, nil
}

// takeOut deletes a row and returns it, nil where it was not there.
func (a *applier) takeOut(ctx context.Context, t *Table, row pg.Row) (pg.Row, error) {
	var s statement
	s.sql = fmt.Sprintf("delete from %s t where %s returning %s", t.destRows(), s.locate(t, row), t.columnList(all(len(t.Columns))))
	result := a.exec(ctx, s)
	if result.Err != nil || len(result.Rows) == 0 {
		return nil, result.Err
	}
	return textRow(result.Rows[0]), nil
}

// textRow takes a result's row of text values over.
func textRow(values [][]byte) pg.Row {
	row := make(pg.Row, len(values))
	for i, v := range values {
		row[i] = pg.Datum{Kind: pg.Null}
		if v != nil {
			row[i] = pg.Datum{Kind: pg.Text, Bytes: v}
		}
	}
	return row
}

// keepImage writes a deleted row to the outbox, in the transaction that deleted it.
func (a *applier) keepImage(ctx context.Context, t *Table, image pg.Row, commit pg.LSN, n int64) error {
	return a.exec(ctx, *a.outbox(t, image, commit, n)).Err
}

func (a *applier) outbox(t *Table, image pg.Row, commit pg.LSN, n int64) *statement {
	p := a.stream.Checkpoint
	names := make(pg.Row, len(t.Columns))
	for i, c := range t.Columns {
		names[i] = pg.Datum{Kind: pg.Text, Bytes: []byte(c.Name)}
	}
	return &statement{sql: checkpoints.OutboxSQL, types: make([]uint32, 7),
		params: [][]byte{[]byte(p.Move), fmt.Append(nil, p.Source), []byte(commit.String()), fmt.Append(nil, n), []byte(t.Source.String()), imageLiteral(names), imageLiteral(image)}}
}

// outboxed reads the image a row left here. The table may have got columns since: the image does not carry them, and the
// row gets what rows from before have.
func (a *applier) outboxed(ctx context.Context, t *Table, commit pg.LSN, n int64) (pg.Row, error) {
	columns, image, err := a.stream.Checkpoint.Outbox(ctx, a.conn, commit, n)
	if err != nil || image == nil {
		return nil, err
	}
	return t.imageRow(columns, image), nil
}

// imageRow is a row as the outbox keeps it: a column the table has got since is one the log did not carry.
func (t *Table) imageRow(columns []string, image []*string) pg.Row {
	row := make(pg.Row, len(t.Columns))
	for i, c := range t.Columns {
		at := slices.Index(columns, c.Name)
		switch {
		case at < 0:
			row[i].Kind = pg.Unchanged
		case image[at] == nil:
			row[i].Kind = pg.Null
		default:
			row[i] = pg.Datum{Kind: pg.Text, Bytes: []byte(*image[at])}
		}
	}
	return row
}

// imageLiteral is a row as a text[] literal.
func imageLiteral(r pg.Row) []byte {
	column := make([]pg.Row, len(r))
	for i, d := range r {
		column[i] = pg.Row{d}
	}
	return arrayLiteral(column, 0)
}

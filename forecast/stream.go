package forecast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// stream reads from one source and writes to one shard.
type stream struct {
	from, to *pgx.Conn
	tx       pgx.Tx // on to; it is rolled back
	schema   string
	rows     []int64 // written, by table
	bytes    []int64 // read, by table
}

// open opens a stream's two transactions and makes its tables.
func (t *Trial) open(ctx context.Context, n int) (s *stream, err error) {
	s = &stream{schema: fmt.Sprintf("pgreshard_trial_%d", n), rows: make([]int64, len(t.Tables)), bytes: make([]int64, len(t.Tables))}
	defer func() {
		if err != nil {
			s.close()
			s = nil
		}
	}()
	if s.from, err = t.Open(ctx, t.Sources[n/t.Workers], pg.Reader); err != nil {
		return s, err
	}
	if s.to, err = t.Open(ctx, t.Shards[n%len(t.Shards)], pg.Admin); err != nil {
		return s, err
	}
	if _, err := s.from.Exec(ctx, "begin isolation level repeatable read read only"); err != nil {
		return s, err
	}
	if s.tx, err = s.to.Begin(ctx); err != nil {
		return s, err
	}
	var make strings.Builder
	fmt.Fprintf(&make, "create schema %s", s.schema)
	for i, table := range t.Tables {
		fmt.Fprintf(&make, "; create table %s (%s)", s.table(i), columns(table.Root, func(c pg.Column) string { return c.SQL() + " " + typeOf(c) }))
		if key := keyOf(table.Root); key != "" { // not unique: rows of several sources stand in it
			fmt.Fprintf(&make, "; create index on %s (%s)", s.table(i), key)
		}
	}
	_, err = s.to.PgConn().Exec(ctx, make.String()).ReadAll()
	return s, err
}

// close ends a stream and takes back what it has made; nil is one that was not opened.
func (s *stream) close() {
	if s == nil {
		return
	}
	if s.tx != nil { // not by the session's end, which a server may see later
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		_ = s.tx.Rollback(ctx)
	}
	pg.Close(s.from)
	pg.Close(s.to)
}

func (s *stream) table(i int) string { return fmt.Sprintf("%s.t%d", s.schema, i) }

// typeOf is the column's type where every server has it, else text.
func typeOf(c pg.Column) string {
	if c.TypeOID < pg.FirstUserOID {
		return c.Type
	}
	return "text"
}

func columns(t *pg.Table, as func(pg.Column) string) string {
	var all []string
	for _, c := range t.Columns {
		if c.Generated == 0 {
			all = append(all, as(c))
		}
	}
	return strings.Join(all, ", ")
}

// keyOf lists the columns that tell its rows from another.
func keyOf(t *pg.Table) string {
	var all []string
	for _, i := range t.Key {
		all = append(all, t.Columns[i].SQL())
	}
	return strings.Join(all, ", ")
}

// copy passes a part's rows through.
func (s *stream) copy(ctx context.Context, t Table, p part) (rows int64, err error) {
	names := func(c pg.Column) string { return c.SQL() }
	format := " (format binary)"
	for _, c := range t.Root.Columns {
		if c.TypeOID >= pg.FirstUserOID && c.Generated == 0 {
			format = ""
		}
	}
	out := fmt.Sprintf("copy (select %s from only %s where ctid >= '(%d,0)' and ctid < '(%d,0)') to stdout%s",
		columns(t.Root, names), p.leaf.Name.SQL(), p.from, p.to, format)
	in := fmt.Sprintf("copy %s (%s) from stdin%s", s.table(p.table), columns(t.Root, names), format)
	r, w := io.Pipe()
	var wait sync.WaitGroup
	wait.Go(func() {
		_, err := s.from.PgConn().CopyTo(ctx, w, out)
		w.CloseWithError(err)
	})
	tag, err := s.to.PgConn().CopyFrom(ctx, r, in)
	r.CloseWithError(errors.New("the shard takes no more"))
	wait.Wait()
	return tag.RowsAffected(), err
}

// index builds the tables' indexes over what was written. What the shard cannot build, as over a type of the user's own, is left out.
func (s *stream) index(ctx context.Context, tables []Table, built func(rows int64)) error {
	for i, t := range tables {
		for _, index := range t.Indexes {
			if s.rows[i] == 0 {
				continue
			}
			var key []string
			for _, name := range index.Columns {
				key = append(key, pgx.Identifier{name}.Sanitize())
			}
			sql := fmt.Sprintf("create index on %s using %s (%s)", s.table(i), index.Method, strings.Join(key, ", "))
			tx, err := s.tx.Begin(ctx) // a savepoint
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, sql); err != nil {
				if err := tx.Rollback(ctx); err != nil {
					return err
				}
				continue
			}
			if err := tx.Commit(ctx); err != nil {
				return err
			}
			built(s.rows[i])
		}
	}
	return nil
}

// scan reads every row that was written.
func (s *stream) scan(ctx context.Context) error {
	for i, rows := range s.rows {
		if rows == 0 {
			continue
		}
		if _, err := s.to.Exec(ctx, "select count(*) from "+s.table(i)); err != nil {
			return err
		}
	}
	return nil
}

// changedRows is how many rows of a table are changed.
const changedRows = 2000

// change changes rows found by their keys, many in a statement, as the stream does.
func (s *stream) change(ctx context.Context, tables []Table) (changed int64, err error) {
	const byIndex = "set local enable_hashjoin = off; set local enable_mergejoin = off; set local enable_seqscan = off"
	if _, err := s.to.PgConn().Exec(ctx, byIndex).ReadAll(); err != nil {
		return 0, err
	}
	for i, t := range tables {
		key := keyOf(t.Root)
		if s.rows[i] == 0 || key == "" {
			continue
		}
		plain := slices.DeleteFunc(slices.Clone(t.Root.Columns), func(c pg.Column) bool { return c.Generated != 0 })
		set := plain[len(plain)-1]
		sql := fmt.Sprintf("update %[1]s set %[2]s = %[2]s where (%[3]s) in (select %[3]s from %[1]s limit %[4]d)", s.table(i), set.SQL(), key, changedRows)
		tag, err := s.to.Exec(ctx, sql)
		if err != nil {
			return changed, err
		}
		changed += tag.RowsAffected()
	}
	return changed, nil
}

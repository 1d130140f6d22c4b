package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RowsOptions narrows what SameRows compares.
type RowsOptions struct {
	// Omni says that every shard must hold what the first source holds; else all shards together hold what all
	// sources together hold.
	Omni bool
	// Columns are compared; nil means all, which must then be the same on both sides, in whatever order.
	Columns []string
}

// SameRows compares a table (as SQL names it) on two sides as multisets of rows, by plain SQL and without any of the
// product's code: every column's text under fixed settings, NULL apart from empty. The error tells how many rows are
// on one side only and shows the beginning of a few.
func SameRows(ctx context.Context, sources, shards []*pgx.Conn, table string, o RowsOptions) error {
	columns := o.Columns
	if columns == nil {
		var err error
		if columns, err = sameColumns(ctx, slices.Concat(sources, shards), table); err != nil {
			return fmt.Errorf("compare %s: %w", table, err)
		}
	}
	c := comparison{table: table, text: rowText(columns)}
	if !o.Omni {
		return c.run(ctx, sources, shards, "all shards")
	}
	var errs []error
	for i := range shards {
		errs = append(errs, c.run(ctx, sources[:1], shards[i:i+1], fmt.Sprintf("shard %d", i)))
	}
	return errors.Join(errs...)
}

const tableColumns = `select array_agg(attname::text order by attname) from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped`

func sameColumns(ctx context.Context, conns []*pgx.Conn, table string) (columns []string, err error) {
	for i, conn := range conns {
		var here []string
		if err := conn.QueryRow(ctx, tableColumns, table).Scan(&here); err != nil {
			return nil, err
		}
		if i > 0 && !slices.Equal(here, columns) {
			return nil, fmt.Errorf("columns differ: %q and %q", columns, here)
		}
		columns = here
	}
	return columns, nil
}

// comparison is a table and the text of one of its rows, both as SQL.
type comparison struct{ table, text string }

func (c comparison) hash() string { return "decode(md5(" + c.text + "), 'hex')" }

// query gives each row's MD5, sorted.
func (c comparison) query() string { return "select " + c.hash() + " from " + c.table + " order by 1" }

func rowText(columns []string) string {
	quoted := make([]string, len(columns))
	for i, c := range columns {
		quoted[i] = pgx.Identifier{c}.Sanitize()
	}
	return "row(" + strings.Join(quoted, ", ") + ")::text"
}

// fixedText makes values print alike whatever the role, the database or the server is set to.
const fixedText = `set local datestyle = 'ISO, MDY'; set local intervalstyle = 'postgres'; set local timezone = 'UTC';
	set local extra_float_digits = 3; set local bytea_output = 'hex'; set local xmloption = 'content'; set local statement_timeout = 0`

// hashes are the sorted row hashes of one side, merged over its databases.
type hashes struct{ streams []*hashStream }

type hashStream struct {
	tx   pgx.Tx
	rows pgx.Rows
	head []byte // nil at the end
}

func openHashes(ctx context.Context, conns []*pgx.Conn, query string) (*hashes, error) {
	side := &hashes{}
	for _, conn := range conns {
		s := &hashStream{}
		side.streams = append(side.streams, s)
		var err error
		if s.tx, err = conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly}); err != nil {
			return side, err
		}
		if _, err := s.tx.Exec(ctx, fixedText); err != nil {
			return side, err
		}
		if s.rows, err = s.tx.Query(ctx, query, pgx.QueryResultFormats{pgx.BinaryFormatCode}); err != nil {
			return side, err
		}
	}
	for _, s := range side.streams {
		if err := s.advance(); err != nil {
			return side, err
		}
	}
	return side, nil
}

func (s *hashStream) advance() error {
	if !s.rows.Next() {
		s.head = nil
		return s.rows.Err()
	}
	s.head = append(s.head[:0], s.rows.RawValues()[0]...)
	return nil
}

// least is the stream with the smallest hash, nil at the end of all.
func (h *hashes) least() (least *hashStream) {
	for _, s := range h.streams {
		if s.head != nil && (least == nil || bytes.Compare(s.head, least.head) < 0) {
			least = s
		}
	}
	return least
}

func (h *hashes) close(ctx context.Context) {
	for _, s := range h.streams {
		if s.rows != nil {
			s.rows.Close()
		}
		if s.tx != nil {
			_ = s.tx.Rollback(ctx)
		}
	}
}

// onOneSide are the rows that the other side lacks.
type onOneSide struct {
	rows  int
	shown [][]byte
}

const shownMost = 3

func (o *onOneSide) add(hash []byte) {
	if o.rows++; len(o.shown) < shownMost {
		o.shown = append(o.shown, bytes.Clone(hash))
	}
}

func (c comparison) run(ctx context.Context, sources, shards []*pgx.Conn, name string) error {
	missing, extra, err := differences(ctx, sources, shards, c.query())
	if err != nil {
		return fmt.Errorf("compare %s: %w", c.table, err)
	}
	if missing.rows == 0 && extra.rows == 0 {
		return nil
	}
	text := fmt.Sprintf("%s differs: %d rows of the source are missing on %s, %d rows there are not on the source", c.table, missing.rows, name, extra.rows)
	for _, hash := range missing.shown {
		text += "\n  missing: " + c.find(ctx, sources, hash)
	}
	for _, hash := range extra.shown {
		text += "\n  extra:   " + c.find(ctx, shards, hash)
	}
	return errors.New(text)
}

// differences merges both sides' sorted hashes; equal rows are counted as often as they are there.
func differences(ctx context.Context, sources, shards []*pgx.Conn, query string) (missing, extra onOneSide, err error) {
	left, err := openHashes(ctx, sources, query)
	defer left.close(ctx)
	if err != nil {
		return missing, extra, err
	}
	right, err := openHashes(ctx, shards, query)
	defer right.close(ctx)
	if err != nil {
		return missing, extra, err
	}
	for {
		l, r := left.least(), right.least()
		if l == nil && r == nil {
			return missing, extra, nil
		}
		order := 0
		if r == nil {
			order = -1
		} else if l == nil {
			order = 1
		} else {
			order = bytes.Compare(l.head, r.head)
		}
		if order < 0 {
			missing.add(l.head)
		} else if order > 0 {
			extra.add(r.head)
		}
		if order <= 0 {
			err = l.advance()
		}
		if err == nil && order >= 0 {
			err = r.advance()
		}
		if err != nil {
			return missing, extra, err
		}
	}
}

// find shows the beginning of the row with a hash, and where it is.
func (c comparison) find(ctx context.Context, conns []*pgx.Conn, hash []byte) string {
	query := "select left(" + c.text + ", 200) from " + c.table + " where " + c.hash() + " = $1 limit 1"
	for i, conn := range conns {
		var row string
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fixedText); err != nil {
				return err
			}
			return tx.QueryRow(ctx, query, hash).Scan(&row)
		})
		if err == nil {
			return fmt.Sprintf("database %d: %s", i, row)
		}
	}
	return "(gone meanwhile)"
}

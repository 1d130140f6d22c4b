package verify

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Node is one database to read.
type Node struct {
	Number int // the shard's number in its layout
	Open   func(context.Context) (*pgx.Conn, error)
	// Keep takes the sessions over that are left, idle, at the end of a Run. Nil: they are closed.
	Keep func(*pgx.Conn)
	// Snapshot is an exported snapshot to read under. Empty: each scan sees what is committed when it starts.
	Snapshot string
}

// NodeOf reads a shard's primary.
func NodeOf(shard pg.Shard) Node {
	return Node{Number: shard.Number, Open: func(ctx context.Context) (*pgx.Conn, error) {
		return pg.Open(ctx, shard, pg.Reader, "pgreshard verify")
	}}
}

// Table is one table to compare.
type Table struct {
	Source *pg.Table // as any of the sources has it; a partitioned table is read through its root
	Dest   *pg.Table // as any of the shards has it
	// Columns are compared, by name: all the source's, generated ones too. A column only the destination has is
	// left out by not being named.
	Columns []string
	// Key tells one row from another within a source. Empty: rows are compared as a multiset.
	Key []string
	// Omni: every shard, and every source but the first, must equal the first source.
	Omni bool
	// PlaceColumns are the columns Place takes, in its order. Empty: places are not checked.
	PlaceColumns []string
	// PlacedBy are tables of the shards that Place reads for it.
	PlacedBy []pg.Name
	// Only narrows the comparison to some rows; nil: every row. Keys are for tables with Key, whose index both sides have.
	Only *Only
}

// Only are some rows of a table.
type Only struct {
	Keys   Keys // of Table.Key: rows with these are compared, and their places checked
	Placed Keys // of Table.PlaceColumns: of rows with these the places are checked
}

// Nowhere is what a Placer returns for a key that belongs to no shard: no rule names one, or it has no translation.
const Nowhere = -1

// Placer places rows again: for each key (values in text form, or NULL) the number of the shard its row belongs to, or
// Nowhere. An error means that the question could not be answered. It is called from several goroutines at once; keys
// are valid until it returns.
type Placer func(ctx context.Context, table pg.Name, keys [][]pg.Datum) ([]int, error)

// Request is one comparison.
type Request struct {
	Sources  []Node // the first is the one omnisharded tables are compared with
	Shards   []Node
	Tables   []Table
	Place    Placer // nil: places are not checked
	Parallel int    // scans at once over all nodes; default 4
	Limit    int    // keys named per table; default 20
	HideKeys bool   // keys appear as their hash
	// Pace, where set, is asked before each scan of a table, or of a part of it, and may wait.
	Pace func(context.Context) error
	// Part, where set, is told of each such scan of Run's when it is done, with its share of the table on all nodes together, by several goroutines at once.
	Part func(t *Table, share float64)
	// Done, where set, is told of each table as soon as it was compared, by several goroutines at once.
	Done func(table int, t *TableReport)
	// OneSource leaves out comparing the sources' copies of omnisharded tables with each other.
	OneSource bool
}

const (
	defaultParallel = 4
	defaultLimit    = 20
)

func (r *Request) check() error {
	r.Parallel, r.Limit = cmp.Or(r.Parallel, defaultParallel), cmp.Or(r.Limit, defaultLimit)
	if len(r.Sources) == 0 || len(r.Shards) == 0 {
		return fmt.Errorf("verify needs a source and a destination, it got %d and %d nodes", len(r.Sources), len(r.Shards))
	}
	for _, t := range r.Tables {
		for _, name := range t.Columns {
			if err := both(t, name); err != nil {
				return err
			}
		}
		for _, name := range t.Key {
			if err := both(t, name); err != nil {
				return err
			}
		}
		if t.Only != nil && t.Only.Keys.Len() > 0 && len(t.Key) == 0 {
			return fmt.Errorf("verify %s: without a key no rows can be chosen", t.Source.Name)
		}
		for _, name := range t.PlaceColumns {
			if _, ok := t.Dest.Column(name); !ok {
				return fmt.Errorf("verify %s: the destination has no column %q to place rows by", t.Dest.Name, name)
			}
		}
	}
	return nil
}

func both(t Table, column string) error {
	if _, ok := t.Source.Column(column); !ok {
		return fmt.Errorf("verify %s: the source has no column %q", t.Source.Name, column)
	}
	if _, ok := t.Dest.Column(column); !ok {
		return fmt.Errorf("verify %s: the destination has no column %q; hint: add it there, or move the table without it", t.Dest.Name, column)
	}
	return nil
}

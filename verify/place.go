package verify

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// placeBatch is the number of keys placed in one call of the Placer, which may ask a server for their translation.
const placeBatch = 1000

// places lists the sharding keys on every shard and places them again.
func (v *verifier) places(ctx context.Context, t *Table, report *TableReport) error {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range v.shards {
		group.Go(func() error {
			return v.on(ctx, n, func(conn *pgconn.PgConn) error {
				p := &placing{verifier: v, table: t, node: n, report: report, mu: &mu, bytes: make([]byte, 0, 16<<10)}
				sql := expressions{own: t.Dest, other: t.Source}.places(t)
				if err := each(ctx, conn, sql, nil, func(values [][]byte) error { return p.add(ctx, values) }); err != nil {
					return err
				}
				return p.place(ctx)
			})
		})
	}
	return group.Wait()
}

// placing gathers the keys of one shard into batches.
type placing struct {
	*verifier
	table *Table
	node  *node
	keys  [][]pg.Datum
	rows  []int64
	bytes []byte // what keys point into; a batch that outgrows it leaves its beginning where it is

	report *TableReport // guarded by mu
	mu     *sync.Mutex
}

// add takes a line of expressions.places: the key's columns, then the number of rows.
func (p *placing) add(ctx context.Context, values [][]byte) error {
	last := len(values) - 1
	rows, err := strconv.ParseInt(string(values[last]), 10, 64)
	if err != nil {
		return err
	}
	key := make([]pg.Datum, last)
	for i, value := range values[:last] {
		if key[i] = (pg.Datum{Kind: pg.Null}); value != nil {
			start := len(p.bytes)
			p.bytes = append(p.bytes, value...)
			key[i] = pg.Datum{Kind: pg.Text, Bytes: p.bytes[start:len(p.bytes):len(p.bytes)]}
		}
	}
	p.keys, p.rows = append(p.keys, key), append(p.rows, rows)
	if len(p.keys) < placeBatch {
		return nil
	}
	return p.place(ctx)
}

// place places what was gathered and reports each key that names another shard.
func (p *placing) place(ctx context.Context) error {
	if len(p.keys) == 0 {
		return nil
	}
	shards, err := p.Place(ctx, p.table.Dest.Name, p.keys)
	if err != nil {
		return fmt.Errorf("place the rows of %s again: %w", p.table.Dest.Name, err)
	}
	if len(shards) != len(p.keys) {
		return fmt.Errorf("place the rows of %s again: %d shards for %d keys", p.table.Dest.Name, len(shards), len(p.keys))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, want := range shards {
		if want == p.node.Number {
			continue
		}
		p.report.Misplaced += p.rows[i]
		if len(p.report.Keys) >= p.Limit {
			continue
		}
		p.report.Keys = append(p.report.Keys, Finding{
			What: Misplaced, Key: showKey(p.table.PlaceColumns, p.keys[i], p.HideKeys),
			Shard: &p.node.Number, Want: &want, Rows: p.rows[i], Values: kept(p.keys[i]),
		})
	}
	p.keys, p.rows, p.bytes = p.keys[:0], p.rows[:0], p.bytes[:0]
	return nil
}

// kept copies a key out of the batch it came in.
func kept(key []pg.Datum) []pg.Datum {
	out := slices.Clone(key)
	for i := range out {
		out[i].Bytes = bytes.Clone(out[i].Bytes)
	}
	return out
}

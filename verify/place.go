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
	if t.Only == nil {
		return v.placesOf(ctx, t, chosen{where: func(expressions) string { return "" }, on: v.on}, report, nil)
	}
	for args := range t.Only.Placed.batches(len(t.PlaceColumns)) { // of which there may be no index
		rows := chosen{where: func(e expressions) string { return e.with(t.PlaceColumns) }, args: args, on: v.on}
		if err := v.placesOf(ctx, t, rows, report, nil); err != nil {
			return err
		}
	}
	named := slices.Clone(report.Keys)
	for args := range t.Only.Keys.batches(len(t.Key)) {
		if err := v.placesOf(ctx, t, v.ofKeys(t, args), report, named); err != nil {
			return err
		}
	}
	return nil
}

// placesOf places chosen rows of every shard again, and passes over what was named before.
func (v *verifier) placesOf(ctx context.Context, t *Table, rows chosen, report *TableReport, named []Finding) error {
	e := expressions{own: t.Dest, other: t.Source}
	where := rows.where(e)
	if where != "" {
		where = "where " + where
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range v.shards {
		group.Go(func() error {
			return rows.on(ctx, n, func(conn *pgconn.PgConn) error {
				p := &placing{verifier: v, table: t, node: n, report: report, named: named, mu: &mu, bytes: make([]byte, 0, 16<<10)}
				if err := each(ctx, conn, e.places(t, where), rows.args, func(values [][]byte) error { return p.add(ctx, values) }); err != nil {
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

	named  []Finding    // what was found before: rows of these sharding keys on these shards are not told again
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
		if want == p.node.Number || p.known(p.keys[i]) {
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

// known says that the rows of a sharding key on this shard were named before.
func (p *placing) known(key []pg.Datum) bool {
	return slices.ContainsFunc(p.named, func(f Finding) bool {
		return f.What == Misplaced && *f.Shard == p.node.Number && slices.EqualFunc(f.Values, key, func(a, b pg.Datum) bool {
			return a.Kind == b.Kind && bytes.Equal(a.Bytes, b.Bytes)
		})
	})
}

// kept copies a key out of the batch it came in.
func kept(key []pg.Datum) []pg.Datum {
	out := slices.Clone(key)
	for i := range out {
		out[i].Bytes = bytes.Clone(out[i].Bytes)
	}
	return out
}

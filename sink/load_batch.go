package sink

import (
	"context"

	"pgreshard/pg"
)

// Rows wait for their shards to be named in batches of so many, or of so many bytes.
const (
	loadBatchRows  = 2048
	loadBatchBytes = 1 << 20
)

// loadBatch holds copies of rows whose keys are translated together. Everything in it is used again.
type loadBatch struct {
	rows   []byte
	ends   []int // by row: where it ends in rows
	values []byte
	datums []pg.Datum // of all keys; Bytes are set before they are used
	starts []int      // by datum: where it starts in values
	keys   [][]pg.Datum
	shards []int
}

// gather keeps a row until a batch is full. A row that would be a batch of its own is not copied.
func (n *load) gather(ctx context.Context, row []byte, key []pg.Datum) error {
	b := &n.batch
	if len(b.ends) == loadBatchRows || len(b.ends) > 0 && len(b.rows)+len(row) > loadBatchBytes {
		if err := n.routeBatch(ctx); err != nil {
			return err
		}
	}
	if len(row) > loadBatchBytes {
		shard := []int{0}
		if err := n.table.RouteMany(ctx, [][]pg.Datum{key}, shard); err != nil {
			return err
		}
		return n.add(shard[0], row)
	}
	b.rows = append(b.rows, row...)
	b.ends = append(b.ends, len(b.rows))
	for _, d := range key {
		b.starts = append(b.starts, len(b.values))
		b.values = append(b.values, d.Bytes...)
		b.datums = append(b.datums, pg.Datum{Kind: d.Kind})
	}
	return nil
}

// routeBatch sends the rows gathered to their shards.
func (n *load) routeBatch(ctx context.Context) error {
	b := &n.batch
	rows := len(b.ends)
	if rows == 0 {
		return nil
	}
	width := len(b.datums) / rows
	b.starts = append(b.starts, len(b.values))
	for i := range b.datums {
		if b.datums[i].Kind != pg.Null {
			b.datums[i].Bytes = b.values[b.starts[i]:b.starts[i+1]:b.starts[i+1]]
		}
	}
	b.keys, b.shards = b.keys[:0], b.shards[:0]
	for i := range rows {
		b.keys = append(b.keys, b.datums[i*width:(i+1)*width])
		b.shards = append(b.shards, 0)
	}
	if err := n.table.RouteMany(ctx, b.keys, b.shards); err != nil {
		return err
	}
	start := 0
	for i, end := range b.ends {
		if err := n.add(b.shards[i], b.rows[start:end]); err != nil {
			return err
		}
		start = end
	}
	b.rows, b.ends, b.values, b.datums, b.starts = b.rows[:0], b.ends[:0], b.values[:0], b.datums[:0], b.starts[:0]
	return nil
}

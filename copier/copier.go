package copier

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// Loader takes the rows of one worker's chunks, one chunk after another. After an error of Begin, Row or Commit the
// worker calls Abort and then Close; Abort undoes what of the chunk is not committed and waits until that is under way.
type Loader interface {
	Begin(ctx context.Context, c *pg.Chunk) error
	// Row takes one row in the chunk's format with the values of its sharding key; both are valid until it returns.
	Row(ctx context.Context, row []byte, key []pg.Datum) error
	// Commit returns when every destination holds its part of the chunk durably.
	Commit(ctx context.Context) error
	Abort()
	Close()
}

// Config says what to copy, from where and who takes it.
type Config struct {
	Shard    pg.Shard
	App      string // application_name of the workers' sessions
	Snapshot string // exported by a session that lives as long as Run: a Snapshot's ID
	Workers  int    // 1 where it is less
	Chunks   []*pg.Chunk
	Loader   func(worker int) Loader                    // called once for each worker
	Pace     func(ctx context.Context) error            // called before each chunk; may wait; may be nil
	Done     func(c *pg.Chunk, rows int64, bytes int64) // called by workers when a chunk is held everywhere, with what was read; may be nil
	Progress *Progress                                  // may be nil
}

// Run copies the chunks, those of the largest tables first, and returns when all are held or at the first error, after
// everything it started has ended. Chunks that were not finished are undone, but for shards that had already committed
// their part: their marks tell.
func Run(ctx context.Context, c Config) error {
	queue := slices.Clone(c.Chunks)
	slices.SortStableFunc(queue, func(a, b *pg.Chunk) int {
		return cmp.Or(cmp.Compare(b.Copy.From.Bytes, a.Copy.From.Bytes), cmp.Compare(a.Copy.From.OID, b.Copy.From.OID), cmp.Compare(a.Number, b.Number))
	})
	var next atomic.Int64
	take := func() *pg.Chunk {
		if n := int(next.Add(1)) - 1; n < len(queue) {
			return queue[n]
		}
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for n := range min(max(c.Workers, 1), len(queue)) {
		group.Go(func() error { return c.work(ctx, n, take) })
	}
	return group.Wait()
}

// work is one worker: a session on the source, a loader, one chunk after another.
func (c *Config) work(ctx context.Context, n int, take func() *pg.Chunk) error {
	source, err := openSession(ctx, c.Shard, c.App)
	if err != nil {
		return err
	}
	failed := true
	defer func() { source.close(failed) }()
	loader := c.Loader(n)
	defer loader.Close()

	for chunk := take(); chunk != nil; chunk = take() {
		if c.Pace != nil {
			if err := c.Pace(ctx); err != nil {
				return err
			}
		}
		rows, bytes, err := c.copyChunk(ctx, source, loader, chunk)
		if err != nil {
			return fmt.Errorf("copy chunk %d of %s: %w", chunk.Number, chunk.Copy.From.Name, err)
		}
		if c.Progress != nil {
			c.Progress.Done(chunk, rows, bytes)
		}
		if c.Done != nil {
			c.Done(chunk, rows, bytes)
		}
	}
	failed = false
	return nil
}

// copyChunk reads one chunk in a transaction of its own and has it loaded. The destinations commit only after the
// source has said that it sent every row.
func (c *Config) copyChunk(ctx context.Context, source *session, loader Loader, chunk *pg.Chunk) (rows, bytes int64, err error) {
	if err := source.begin(ctx, c.Snapshot, chunk.Copy.From); err != nil {
		return 0, 0, err
	}
	defer func() {
		if err != nil {
			loader.Abort()
		}
	}()
	if err := loader.Begin(ctx, chunk); err != nil {
		return 0, 0, err
	}
	frame := newFramer(chunk.Copy, func(row []byte, key []pg.Datum) error { return loader.Row(ctx, row, key) })
	sent, err := source.copyOut(ctx, copySQL(chunk), frame.write)
	if err != nil {
		return 0, 0, err
	}
	if err := frame.finish(sent); err != nil {
		return 0, 0, err
	}
	// The lock goes before the destinations commit, which may take a while.
	if err := source.commit(ctx); err != nil {
		return 0, 0, err
	}
	return frame.rows, frame.bytes, loader.Commit(ctx)
}

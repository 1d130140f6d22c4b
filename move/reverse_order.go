package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/sink"
)

// An application of the new layout moves a row by deleting it on one shard and then inserting it on another, and hands a
// unique value on likewise. On the way back these are two streams, and the second may be ahead of the first.

// errOthersFirst means that a row stood in the way of a stream, and that the other streams have had the time to take it away.
var errOthersFirst = errors.New("a row of another shard was in the way, whose stream goes first")

// othersTime bounds how long the other streams are waited for.
const othersTime = 10 * time.Second

// afterOthers waits, where a row was in the way of this stream on the way back, until the other streams have passed what
// their shards have written by now. The same transaction waits once; then its row is of two shards indeed.
func (f *follower) afterOthers(ctx context.Context, err error) error {
	var diverged *sink.DivergedError
	if f.move.forward == nil || !errors.As(err, &diverged) || diverged.Err == nil || f.waited == diverged.At || ctx.Err() != nil {
		return err
	}
	f.waited = diverged.At
	bounded, cancel := context.WithTimeout(ctx, othersTime)
	defer cancel()
	f.move.mu.Lock()
	all := f.move.followers
	f.move.mu.Unlock()
	for _, other := range all {
		if other != f {
			other.passed(bounded)
		}
	}
	return fmt.Errorf("%w: %w", errOthersFirst, err)
}

// passed waits until the stream has passed where its source is, or ctx ends.
func (f *follower) passed(ctx context.Context) {
	var end pg.LSN
	err := f.move.source(ctx, f.source, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end)
	})
	for err == nil && f.sink.Applied() < end {
		err = sleep(ctx, 5*time.Millisecond)
	}
}

package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"pgreshard/layout"
)

const (
	watchAgain = 500 * time.Millisecond
	watchLook  = 10 * time.Second // a change that was missed is seen after this
)

// Watch calls fn with the layout that serves for a source database, and again whenever another one does, until ctx ends,
// which is its error. While NATS does not answer, the layout known last goes on; trouble, where not nil, is told of it.
// layout.Watch is the same for who asks a worker.
func (b *Board) Watch(ctx context.Context, database string, trouble func(error), fn func(layout.Record)) error {
	var known layout.Record
	for {
		err := b.watch(ctx, key(database), &known, fn)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && trouble != nil {
			trouble(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchAgain):
		}
	}
}

func (b *Board) watch(ctx context.Context, key string, known *layout.Record, fn func(layout.Record)) error {
	ctx, cancel := context.WithTimeout(ctx, watchLook)
	defer cancel()
	bucket, err := b.js.KeyValue(ctx, Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil // no worker has been there yet
	}
	if err != nil {
		return fmt.Errorf("NATS bucket %s: %w", Bucket, err)
	}
	watcher, err := bucket.Watch(ctx, key)
	if err != nil {
		return fmt.Errorf("watch NATS: %w", err)
	}
	defer func() { _ = watcher.Stop() }() // its connection may have gone
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("watch NATS: it ended")
			}
			if entry == nil || entry.Operation() != jetstream.KeyValuePut { // nil: all that was there has come
				continue
			}
			var record layout.Record
			if err := json.Unmarshal(entry.Value(), &record); err != nil {
				return fmt.Errorf("read the layout at NATS: %w", err)
			}
			if record.Follows(*known) {
				*known = record
				fn(record)
			}
		}
	}
}

package sink

import (
	"context"
	"fmt"
	"time"

	"pgreshard/pg"
)

const (
	askStandbys  = 50 * time.Millisecond  // how often a shard is asked while its standbys lack something
	askForNew    = 500 * time.Millisecond // how often whether it has any
	standbyGone  = time.Minute            // how long one that went away is waited for: it may be about to lead
	maxPending   = 1000
	selectFlushs = `select pg_current_wal_flush_lsn()::text, n, flushed::text from ` + pg.StandbysSQL
)

// secured is what a shard's standbys have of its checkpoints.
type secured struct {
	shard   *applier
	pending []flushPoint // oldest first: committed, and not yet flushed on a standby
	seen    time.Time    // when one was last streaming
}

// flushPoint is a checkpoint and a position of the shard's own log behind its commit.
type flushPoint struct{ at, wal pg.LSN }

// watch asks until ctx ends, on a session of its own: what is committed goes on meanwhile.
func (w *secured) watch(ctx context.Context) error {
	s := w.shard.stream
	conn, err := pg.Open(ctx, s.Shards[w.shard.shard], pg.Reader, s.AppName)
	defer pg.Close(conn)
	for err == nil {
		pause := askForNew
		if w.shard.replicated.Load() {
			pause = askStandbys
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if err = w.ask(ctx, conn); err == nil {
			s.committed()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ask notes how far the standbys are. The checkpoint is read before the question, so that its commit lies before the
// position the answer names.
func (w *secured) ask(ctx context.Context, conn pg.Querier) error {
	a := w.shard
	at := pg.LSN(a.durable.Load())
	var wal, flushed pg.LSN
	var n int
	if err := conn.QueryRow(ctx, selectFlushs).Scan(&wal, &n, &flushed); err != nil {
		return fmt.Errorf("ask %s for its standbys: %w", a.shard, err)
	}
	if n > 0 {
		w.seen = time.Now()
	}
	waits := !w.seen.IsZero() && time.Since(w.seen) < standbyGone
	if !waits {
		w.pending = nil
	} else if last := len(w.pending) - 1; last < 0 && uint64(at) > a.flushed.Load() || last >= 0 && at > w.pending[last].at {
		if len(w.pending) == maxPending { // a standby that is far behind is waited for in larger steps
			w.pending = w.pending[:maxPending-1]
		}
		w.pending = append(w.pending, flushPoint{at, wal})
	}
	for len(w.pending) > 0 && w.pending[0].wal <= flushed {
		a.flushed.Store(uint64(w.pending[0].at))
		w.pending = w.pending[1:]
	}
	a.replicated.Store(waits)
	return nil
}

// safe is the checkpoint that a fail-over of the shard does not undo.
func (a *applier) safe() uint64 {
	if a.replicated.Load() {
		return a.flushed.Load()
	}
	return a.durable.Load()
}

package move

import (
	"context"
	"errors"
	"time"

	"pgreshard/checkpoints"
	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
	"pgreshard/verify"
)

const (
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

// retry is the one retry loop: it runs fn again as long as its errors are such that the same work may succeed later.
func (m *Move) retry(ctx context.Context, fn func(context.Context) error) error {
	pause := firstPause
	var s stall
	defer m.ends(&s)
	for {
		began := time.Now()
		err := fn(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, sink.ErrReread):
			continue
		case !worthRetrying(err):
			return err
		}
		if time.Since(began) > time.Minute {
			pause = firstPause
		}
		m.log.Warn("interrupted, trying again", "error", err.Error(), "pause", pause)
		m.resumed = true
		m.interrupted(&s, err)
		if err := sleep(ctx, pause); err != nil {
			return err
		}
		m.resumes(&s)
		pause = min(2*pause, longestPause)
	}
}

// worthRetrying: broken connections and lost conflicts, and what the copy and the slot say passes by itself.
func worthRetrying(err error) bool {
	var undone *UndoneError
	var unknown *UnknownError
	if errors.As(err, &undone) || errors.As(err, &unknown) {
		return false
	}
	var rewritten *copier.RewrittenError
	var failed *verify.Failure
	var tool *ToolError
	return pg.Transient(err) || errors.As(err, &tool) && tool.lost() || errors.As(err, &rewritten) || errors.Is(err, copier.ErrSnapshotLost) || errors.Is(err, sink.ErrMarked) || errors.Is(err, errMarksLost) ||
		errors.Is(err, replicator.ErrSlotInUse) || errors.Is(err, errOthersFirst) || errors.Is(err, checkpoints.ErrPositionMoved) || errors.As(err, &failed) && pg.Transient(failed)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

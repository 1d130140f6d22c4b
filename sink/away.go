package sink

import (
	"context"
	"fmt"
	"time"

	"pgreshard/pg"
)

const (
	openAgain = 500 * time.Millisecond // between two attempts to open a shard that was lost
	openBound = 10 * time.Second       // for one of them
)

// lost says that an error is the shard's, not the work's: its connection broke.
func (a *applier) lost(err error) bool { return pg.Transient(err) && a.conn.PgConn().IsClosed() }

// away stands in for a shard that was lost, until it can be opened again; then it ends the run with what lost it, and
// the next begins at the shard's checkpoint. What comes for the shard meanwhile is let go: it will come again, and shards
// that are ahead then are what a crash between commits leaves too. So the others go on, and nothing is gathered, up to a
// change whose outcome this shard has a say in: those wait at the gate, or here, for an answer.
func (a *applier) away(ctx context.Context, cause error) error {
	a.absent.Store(true)
	if a.stream.Away != nil {
		a.stream.Away(a.shard, cause)
	}
	pg.Close(a.conn)
	a.letGo()
	back := make(chan error, 1)
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); <-back }()
	go func() { defer close(back); back <- a.openAgain(ctx) }()
	queue := a.queue
	for {
		select {
		case err := <-back:
			if err == nil {
				err = cause
			}
			if a.owed != nil {
				a.owed <- err
			}
			return err
		case u, ok := <-queue:
			switch {
			case !ok: // the stream is to end in order, which it cannot without this shard
				return cause
			case u.done != nil:
				a.owed, queue = u.done, nil
			default:
				a.giveBack(u.ops)
				if u.free != nil {
					u.free()
				}
			}
		}
	}
}

// letGo gives the memory of what was taken back, without saying that it is executed.
func (a *applier) letGo() {
	for _, free := range a.frees {
		free()
	}
	a.ops, a.frees, a.bytes, a.pending = nil, nil, 0, nil
}

// openAgain tries until the shard may be written to; an error that will not pass ends it.
func (a *applier) openAgain(ctx context.Context) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, openBound)
		conn, err := pg.Open(bounded, a.stream.Shards[a.shard], pg.Writer, a.stream.AppName)
		cancel()
		pg.Close(conn)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil || !pg.Transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(openAgain):
		}
	}
}

// watchStandbys looks at the shard's standbys. Where its session breaks the shard counts as lost: asked again within this
// run, another server might say that it has what it never got.
func (a *applier) watchStandbys(ctx context.Context) error {
	err := a.secured.watch(ctx)
	if !pg.Transient(err) {
		return err
	}
	a.gone <- fmt.Errorf("the session that looks at its standbys: %w", err)
	return nil
}

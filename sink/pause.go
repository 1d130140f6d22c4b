package sink

import (
	"context"
	"errors"

	"pgreshard/pg"
)

// ErrEnded means that a run ended, for whatever reason, while somebody held it still.
var ErrEnded = errors.New("the stream's run ended")

// Paused is a stream that stands still between two source transactions. The slot's log piles up meanwhile; the source's
// connection is kept alive.
type Paused struct {
	to     chan pg.LSN   // up to where it is to go on; closed: for good
	still  chan struct{} // it stands still; room for one
	broken chan struct{} // the run has ended
	until  pg.LSN        // the router's: stand still before what commits at or after it
}

// Pause holds the stream still. When it returns, every shard has committed all that came before, and no destination
// transaction of this stream is open. Only one caller at a time; where no run is under way it waits for one. Its error is
// ErrEnded or ctx's.
func (s *Stream) Pause(ctx context.Context) (*Paused, error) {
	p := &Paused{to: make(chan pg.LSN), still: make(chan struct{}, 1), broken: make(chan struct{})}
	select {
	case s.pauses <- p:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := p.wait(ctx); err != nil {
		p.Resume()
		return nil, err
	}
	return p, nil
}

func (p *Paused) wait(ctx context.Context) error {
	select {
	case <-p.still:
		return nil
	case <-p.broken:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// To lets the stream go on up to exactly a position, which must not lie behind it: when it returns, every shard holds what
// committed before that position and nothing else of this stream, and it stands still again.
func (p *Paused) To(ctx context.Context, at pg.LSN) error {
	select {
	case p.to <- at:
	case <-p.broken:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	return p.wait(ctx)
}

// Resume lets the stream go on; the Paused is of no use afterwards.
func (p *Paused) Resume() { close(p.to) }

// standStill is called between two source transactions, of which the next commits at or after next: where somebody wants
// the stream to stand still here, it does until they let it go on.
func (r *router) standStill(ctx context.Context, next pg.LSN) error {
	for r.paused != nil && next >= r.paused.until {
		if err := r.commitAll(ctx); err != nil {
			return err
		}
		p := r.paused
		p.still <- struct{}{}
		select {
		case at, goesOn := <-p.to:
			if p.until = at; !goesOn {
				r.paused = nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// standStillHere is standStill behind a block, which may end within a transaction.
func (r *router) standStillHere(ctx context.Context) error {
	if r.tx != nil {
		return nil
	}
	return r.standStill(ctx, r.reached)
}

// endPause tells whoever holds the stream still that its run has ended.
func (r *router) endPause() {
	if r.paused != nil {
		close(r.paused.broken)
	}
}

// commitAll makes every shard commit what it was given, up to the last boundary.
func (r *router) commitAll(ctx context.Context) error {
	for shard := range r.units {
		if err := r.push(ctx, shard, r.seq); err != nil {
			return err
		}
	}
	return r.answers(ctx, r.all, unit{commits: true})
}

// commitNow commits what was taken, at a boundary.
func (a *applier) commitNow(ctx context.Context) error {
	if err := a.flush(ctx); err != nil || a.pending == nil {
		return err
	}
	return a.commit(ctx)
}

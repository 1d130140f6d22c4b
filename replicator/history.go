package replicator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// ErrOtherHistory: the server does not hold all that was taken from its predecessor. It was promoted, or restored, before
// the last changes had reached it, and has written others in their place. The move must start over.
var ErrOtherHistory = errors.New("the server's history is another one")

// History is what is held of a server's changes, and which timeline they are of: a standby that is promoted begins a new
// one, and all before the place where it branches off is common to both. The zero value holds nothing.
type History struct {
	Timeline int32
	Held     pg.LSN // nothing of what is held was committed at or behind it
}

// goesOn makes sure that a server on timeline now has everything that is held.
func (h History) goesOn(ctx context.Context, conn *pgconn.PgConn, now int32) error {
	if h.Timeline == 0 || h.Timeline == now {
		return nil
	}
	if now < h.Timeline {
		return fmt.Errorf("%w: it is on timeline %d, and changes of timeline %d are held: it led before another was promoted", ErrOtherHistory, now, h.Timeline)
	}
	file, err := pglogrepl.TimelineHistory(ctx, conn, now)
	if err != nil {
		return fmt.Errorf("read the history of timeline %d: %w", now, err)
	}
	branch, err := branchPoint(string(file.Content), h.Timeline)
	switch {
	case err != nil:
		return fmt.Errorf("read the history of timeline %d: %w", now, err)
	case branch == 0:
		return fmt.Errorf("%w: timeline %d, on which it is, does not come from timeline %d, of which changes are held", ErrOtherHistory, now, h.Timeline)
	case h.Held > branch:
		return fmt.Errorf("%w: it left timeline %d at %s, and changes up to %s are held: it was promoted without the last of them", ErrOtherHistory, h.Timeline, branch, h.Held)
	}
	return nil
}

// branchPoint finds in a history file where a timeline was left; 0 where it does not stand there.
func branchPoint(file string, timeline int32) (pg.LSN, error) {
	for line := range strings.Lines(file) {
		var number int32
		var at string
		if n, _ := fmt.Sscan(line, &number, &at); n == 2 && number == timeline {
			return pg.ParseLSN(at)
		}
	}
	return 0, nil
}

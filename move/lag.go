package move

import (
	"sync"
	"time"

	"pgreshard/pg"
)

// lagMeter tells how far a stream is behind its source: where the source's log was, at the moments it was asked, by the
// stream itself and, so that the lag grows also while that is interrupted, by whoever looks at the nodes. The latest of
// those positions that is applied says since when the shards lack something.
type lagMeter struct {
	mu   sync.Mutex
	seen []reading // oldest first; the first is the latest applied one, or the first of all
}

type reading struct {
	end pg.LSN
	at  time.Time
}

// maxReadings bounds what is kept; where more is not applied yet, every second reading goes.
const maxReadings = 1024

func (l *lagMeter) asked(end pg.LSN, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.seen); n > 0 && end < l.seen[n-1].end { // asked on another session, and answered earlier
		return
	}
	if len(l.seen) == maxReadings {
		for i := range maxReadings / 2 {
			l.seen[i] = l.seen[2*i]
		}
		l.seen = l.seen[:maxReadings/2]
	}
	l.seen = append(l.seen, reading{end, at})
}

// at is the lag in bytes and in time where applied is the position every shard has reached; ok is false while it is not
// known. Without an applied reading the time is that since the first: it is at least that.
func (l *lagMeter) at(applied pg.LSN, now time.Time) (bytes int64, age time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.seen) == 0 || applied == 0 {
		return 0, 0, false
	}
	for len(l.seen) > 1 && l.seen[1].end <= applied {
		l.seen = l.seen[1:]
	}
	return max(0, int64(l.seen[len(l.seen)-1].end)-int64(applied)), now.Sub(l.seen[0].at), true
}

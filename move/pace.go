package move

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/verify"
)

// A comparison beside the writers reads everything, and gives way to them: before each scan it waits while the streams fall behind, which
// tells of load on either side, or while applications' sessions wait for the disk or for each other. One that is done in paceAfter need not,
// and no more than a third of its time is spent waiting: snapshots are held meanwhile.
const (
	paceAfter = 5 * time.Second
	paceEvery = 200 * time.Millisecond
)

// readingNow is how far the comparison that runs has come.
type readingNow struct {
	began       time.Time
	bytes, done float64 // of the tables' files on the sources
	paced       string  // what it waits for, empty while it reads
	waited      time.Duration
	waits       time.Time // when that was added to last
}

// may says whether it may wait now.
func (r *readingNow) may() bool {
	took := time.Since(r.began)
	return took > paceAfter && r.waited < took/3
}

// paces has the status say how far a comparison comes, and lets it give way.
func (c *comparison) paces(request *verify.Request) (ended func()) {
	sizes := map[pg.Name]float64{}
	total := 0.0
	for _, t := range request.Tables {
		if t.Only != nil {
			continue
		}
		for _, catalog := range c.inv.sources {
			for _, leaf := range catalog.Leaves(catalog.Table(t.Source.Name)) {
				sizes[t.Source.Name] += float64(max(1, leaf.Bytes))
				total += float64(max(1, leaf.Bytes))
			}
		}
	}
	c.setReading(&readingNow{began: time.Now(), bytes: total})
	request.Part = func(t *verify.Table, share float64) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.reading != nil {
			c.reading.done = min(total, c.reading.done+share*sizes[t.Source.Name])
		}
	}
	request.Pace = c.giveWay
	return func() { c.setReading(nil) }
}

func (m *Move) setReading(r *readingNow) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reading = r
}

// giveWay waits while there is a reason to.
func (m *Move) giveWay(ctx context.Context) error {
	for m.gives() {
		if err := sleep(ctx, paceEvery); err != nil {
			return err
		}
	}
	return nil
}

// gives says whether the comparison that runs has to wait now, and notes why.
func (m *Move) gives() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.reading
	if r == nil {
		return false
	}
	if r.paced = ""; r.may() {
		r.paced = strings.Join(append(m.lagging(m.followers), m.pressed()...), "; ")
	}
	if now := time.Now(); r.paced != "" && now.Sub(r.waits) >= paceEvery { // several scans wait at once
		r.waited, r.waits = r.waited+paceEvery, now
	}
	return r.paced != ""
}

// pressure is what applications' sessions on a node were seen to do: how many are at work, and how many of them wait for the disk or for each
// other, at the last looks, one a second.
type pressure struct {
	active, waiting int
	looks           int // that found it pressed, one after the other
}

// A node is pressed where so many sessions wait, and at least half of those at work, at two looks.
const (
	pressedBy    = 8
	pressedLooks = 2
)

const selectPressure = `select count(*), count(*) filter (where wait_event_type in ('IO', 'LWLock')) from pg_stat_activity
	where state = 'active' and backend_type = 'client backend' and not starts_with(application_name, 'pgreshard ')`

// press looks at a node's sessions.
func (m *Move) press(ctx context.Context, n node, conn *pgx.Conn) error {
	var now pressure
	if err := conn.QueryRow(ctx, selectPressure).Scan(&now.active, &now.waiting); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.pressed == nil {
		m.health.pressed = map[node]pressure{}
	}
	if now.waiting >= pressedBy && 2*now.waiting >= now.active {
		now.looks = m.health.pressed[n].looks + 1
	}
	m.health.pressed[n] = now
	return nil
}

// pressed says of which nodes applications have enough to wait for; m.mu is held.
func (m *Move) pressed() (because []string) {
	for _, n := range m.allNodes() {
		if p := m.health.pressed[n]; p.looks >= pressedLooks {
			because = append(because, fmt.Sprintf("on %s %d of %d sessions of applications at work wait for the disk or for each other", m.nodeWords(n), p.waiting, p.active))
		}
	}
	return because
}

// tell adds to the status how far the comparison that runs has come; m.mu is held.
func (r *readingNow) tell(v *VerifyStatus) {
	if r == nil {
		return
	}
	v.Bytes, v.BytesTotal, v.Paced = int64(r.done), int64(r.bytes), r.paced
	if took := time.Since(r.began).Seconds(); r.done > 0 && took > 1 {
		left := took * (r.bytes - r.done) / r.done
		v.ETASeconds = &left
	}
}

package move

import (
	"context"
	"slices"
	"time"
)

// FreeBytes is the room in the file system that holds a path.
var FreeBytes = freeBytes

// BeforeStep lets a test act between two steps of a cutover.
func (m *Move) BeforeStep(f func(step string)) { m.beforeStep = f }

// AddStep puts a step before another one of the recipe.
func (m *Move) AddStep(before, name string, run func()) {
	m.amend = func(list []step) []step {
		i := slices.IndexFunc(list, func(s step) bool { return s.name == before })
		return slices.Insert(list, i, step{name: name, frozen: true, undone: true,
			run:  func(context.Context) error { run(); return nil },
			tell: func(context.Context) ([]string, error) { return []string{"would " + name}, nil }})
	}
}

// EndSpares ends the sessions a comparison left behind, and gives their backends.
func (m *Move) EndSpares() (pids []int32) {
	m.spares.mu.Lock()
	for _, conns := range m.spares.idle {
		for _, conn := range conns {
			pids = append(pids, int32(conn.PgConn().PID()))
		}
	}
	m.spares.mu.Unlock()
	m.spares.close()
	return pids
}

// EndAccount forgets what changed, as a switch does.
func (m *Move) EndAccount(ctx context.Context) {
	m.verifying.Lock()
	defer m.verifying.Unlock()
	m.endAccount(ctx)
}

// BoundChanges bounds the memory of the keys of what changed.
func (m *Move) BoundChanges(bytes int) { m.mostChanges = bytes }

// GivesWay says for what a comparison that began at a time, and has waited for so long, has to wait now.
func (m *Move) GivesWay(began time.Time, waited time.Duration) string {
	m.setReading(&readingNow{began: began, waited: waited})
	defer m.setReading(nil)
	m.gives()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reading.paced
}

package move

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// What is done with a slot that keeps more log than its budget.
const (
	BudgetStop  = "stop"  // it is dropped, so that the server lives: the copy must be made again
	BudgetAlarm = "alarm" // it is told
)

// BudgetError means that a slot kept more log than [stream] wal_budget allows and was dropped, with those of the other
// sources, which are of no use without it. The source serves on; the copy must be made again.
type BudgetError struct {
	Source int    `json:"source"`
	Slot   string `json:"slot"`
	Kept   int64  `json:"kept"` // bytes
	Budget int64  `json:"budget"`
	Err    error  `json:"-"` // why a slot could not be dropped, nil where all were
}

func (e *BudgetError) Error() string {
	text := fmt.Sprintf("replication slot %s of source %d kept %s of log, more than the %s it may ([stream] wal_budget)",
		e.Slot, e.Source, sizeText(e.Kept), sizeText(e.Budget))
	const then = "see what held the stream up, or raise wal_budget, and start over: " + startOver
	if e.Err != nil {
		return fmt.Sprintf("%s, and could not be dropped: %v; hint: it fills the server's disk: select pg_drop_replication_slot('%s') there; then %s",
			text, e.Err, e.Slot, then)
	}
	return fmt.Sprintf("%s, and was dropped so that the server does not run out of disk; hint: %s", text, then)
}

func (e *BudgetError) Unwrap() error { return e.Err }

// defaultBudget is for servers that bound no slot and whose disk cannot be seen.
const defaultBudget = 50 << 30

// budgetFor is what a slot may keep: what the configuration says, else half of what the server keeps for a slot, else
// half of the disk.
func (m *Move) budgetFor(limit *int64, disk int64) int64 {
	switch {
	case m.WALBudget > 0:
		return m.WALBudget
	case limit != nil && *limit > 0:
		return *limit / 2
	case disk > 0:
		return disk / 2
	}
	return defaultBudget
}

// A role that may not see the directory gets no row.
const selectDisk = `select s.setting, c.system_identifier from pg_settings s, pg_control_system() c where s.name = 'data_directory'`

// seenDisk is the room for log on a source's disk, where that is the disk of this machine and its files can be read: the
// directory's control file must hold the server's own system identifier. 0 where it cannot be seen.
func seenDisk(ctx context.Context, conn *pgx.Conn) int64 {
	var dir string
	var system int64
	if conn.QueryRow(ctx, selectDisk).Scan(&dir, &system) != nil {
		return 0
	}
	control, err := os.Open(filepath.Join(dir, "global", "pg_control"))
	if err != nil {
		return 0
	}
	defer control.Close()
	var id [8]byte
	if _, err := io.ReadFull(control, id[:]); err != nil || int64(binary.NativeEndian.Uint64(id[:])) != system {
		return 0
	}
	return freeBytes(filepath.Join(dir, "pg_wal"))
}

// diskOf is seenDisk when the source was first looked at, and what its slot kept then: that much is there in all.
func (m *Move) diskOf(ctx context.Context, source int, conn *pgx.Conn, kept *int64) int64 {
	m.mu.Lock()
	disk, known := m.health.disks[source]
	m.mu.Unlock()
	if known {
		return disk
	}
	if disk = seenDisk(ctx, conn); disk > 0 && kept != nil {
		disk += *kept
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.disks == nil {
		m.health.disks = map[int]int64{}
	}
	m.health.disks[source] = disk
	return disk
}

// keepBudget looks at what a source's slot keeps, right after it was read: it says so once in the log when half of the
// budget is kept and when all of it is, and ends the move where more is kept than may be. told is how much was said.
func (m *Move) keepBudget(source int, told *int, stop context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.health.slots[source]
	now := s.halves()
	if now > *told {
		m.log.Warn(m.alarm(source, s))
	}
	*told = now
	if now < 2 || m.OnWALBudget == BudgetAlarm {
		return
	}
	switch m.state {
	case StateCreated, StateSchema, StateCopying, StateIndexing, m.steady():
		// With m.mu held: no cutover can have begun, and one that begins now ends before it refuses anything.
		stop(&BudgetError{Source: source, Slot: m.slot(source), Kept: *s.retained, Budget: s.budget})
	}
}

// halves is how many halves of the budget a slot keeps, 2 for all of it or more.
func (s *slotHealth) halves() int {
	switch {
	case s == nil || s.retained == nil || *s.retained <= s.bound()/2:
		return 0
	case *s.retained <= s.budget:
		return 1
	}
	return 2
}

// bound is what the slot may keep in the end: the server's own limit may be below the budget.
func (s *slotHealth) bound() int64 {
	if s.limit != nil && *s.limit > 0 {
		return min(s.budget, *s.limit)
	}
	return s.budget
}

// alarm is what is said of a slot that keeps half of its budget or more; m.mu is held.
func (m *Move) alarm(source int, s *slotHealth) string {
	text := fmt.Sprintf("the slot of %s keeps %s of log, more than half of the %s it may", m.sourceWords(source), sizeText(*s.retained), sizeText(s.bound()))
	switch {
	case s.halves() == 2 && m.OnWALBudget == BudgetAlarm:
		text = fmt.Sprintf("the slot of %s keeps %s of log, more than the %s of wal_budget", m.sourceWords(source), sizeText(*s.retained), sizeText(s.budget))
	case s.halves() == 2:
		return fmt.Sprintf("the slot of %s keeps %s of log, more than the %s of wal_budget: it is dropped once no cutover is under way",
			m.sourceWords(source), sizeText(*s.retained), sizeText(s.budget))
	}
	if left := m.lossSeconds(source, s); left != nil {
		text += fmt.Sprintf(", and is lost in about %s at this rate", time.Duration(*left*float64(time.Second)).Round(time.Second))
	}
	return text
}

// alarms are those of all sources; m.mu is held.
func (m *Move) alarms() (all []string) {
	for n := range m.Source.Shards {
		if s := m.health.slots[n]; s.halves() > 0 {
			all = append(all, m.alarm(n, s))
		}
	}
	return all
}

// lossSeconds is in how many seconds the slot is lost, to the budget or to the server's own limit, if what it keeps goes
// on growing; nil where it does not grow, or nothing bounds it. m.mu is held.
func (m *Move) lossSeconds(source int, s *slotHealth) *float64 {
	grows := m.rates.slots[source].growth()
	if grows == nil || *grows <= 0 || s.retained == nil {
		return nil
	}
	left := int64(-1)
	if m.OnWALBudget != BudgetAlarm {
		left = max(0, s.budget-*s.retained)
	}
	if s.safe != nil && (left < 0 || *s.safe < left) {
		left = max(0, *s.safe)
	}
	if left < 0 {
		return nil
	}
	seconds := float64(left) / *grows
	return &seconds
}

// giveUpTime bounds the dropping of the slots.
const giveUpTime = 30 * time.Second

// budgetStep is the journal's word for a slot that was dropped because of its budget. The note is on each source: the
// home may be the very shard that held the stream up.
const budgetStep = "wal_budget"

// giveUp drops the slots because of one that keeps too much.
func (m *Move) giveUp(ctx context.Context, over *BudgetError) error {
	over.Err = m.dropSlots(ctx, budgetStep, over)
	return over
}

// dropSlots drops the slots of every source, whoever streams from them. Each source's journal says why before it does.
func (m *Move) dropSlots(ctx context.Context, step string, why any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpTime)
	defer cancel()
	return atOnce(ctx, len(m.Source.Shards), func(ctx context.Context, n int) error {
		return m.retry(ctx, func(ctx context.Context) error {
			return m.on(ctx, m.Source.Shards[n], pg.Admin, func(conn *pgx.Conn) error {
				if err := m.book.Journal(ctx, conn, step, "stop", why); err != nil {
					return err
				}
				const end = `select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1 and database = current_database() and active`
				if _, err := conn.Exec(ctx, end, m.slot(n)); err != nil {
					return err
				}
				return replicator.DropSlot(ctx, conn, m.slot(n))
			})
		})
	})
}

// droppedForBudget says that a source's slot is missing because an earlier run dropped it; nil where it did not.
func (m *Move) droppedForBudget(ctx context.Context, source int) *BudgetError {
	var over *BudgetError
	err := m.source(ctx, source, func(conn *pgx.Conn) error {
		return checkpoints.LastNote(ctx, conn, m.Name, budgetStep, &over)
	})
	if err != nil {
		return nil
	}
	return over
}

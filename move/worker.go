package move

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// app is the application_name of this move's sessions. A worker's has its epoch in it, by which the next one knows them.
func (m *Move) app() string {
	if m.book.Epoch == 0 {
		return "pgreshard " + m.Name
	}
	return fmt.Sprintf("pgreshard %s/%d", m.Name, m.book.Epoch)
}

// takeOver waits until no other worker holds the lease, then raises the epoch on every node above all others and ends what
// an older worker has open there. That one may be suspended in the middle of a transaction: it would hold up everybody, and
// do when it wakes what it was about to do. From here on it can but open new sessions, which ask for the epoch first.
func (m *Move) takeOver(ctx context.Context, nodes []node) error {
	host, _ := os.Hostname()
	told := false
	for {
		epoch, err := m.highestEpoch(ctx, nodes)
		if err != nil {
			return err
		}
		me := &checkpoints.Lease{Epoch: epoch + 1, Host: host, PID: os.Getpid(), Address: m.Address}
		var holder *checkpoints.Lease
		err = m.home(ctx, func(conn *pgx.Conn) (err error) {
			holder, err = checkpoints.TakeLease(ctx, conn, m.Name, me, gone)
			return err
		})
		if err != nil {
			return err
		}
		if holder == nil {
			return m.supersede(ctx, nodes, me.Epoch)
		}
		if !told {
			m.log.Info("another worker runs this move; waiting for its lease", "host", holder.Host, "pid", holder.PID)
			told = true
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func (m *Move) supersede(ctx context.Context, nodes []node, epoch int64) error {
	err := m.each(ctx, nodes, func(ctx context.Context, _ node, conn *pgx.Conn) error {
		return checkpoints.RaiseEpoch(ctx, conn, epoch)
	})
	if err != nil {
		return err
	}
	m.book = checkpoints.Book{Move: m.Name, Epoch: epoch}
	m.Close() // sessions that are not called after this epoch
	kept, err := m.keptCDC(ctx)
	if err != nil {
		return err
	}
	return m.each(ctx, nodes, func(ctx context.Context, n node, conn *pgx.Conn) error {
		return m.endOlderSessions(ctx, n, conn, kept.Legs)
	})
}

// Sessions of workers before this one; of a slot, which nobody else has a reason to use, whatever they are called.
const (
	selectOlder = `select pid from pg_stat_activity where datname = current_database() and starts_with(application_name, $1)
		and substring(application_name from '/([0-9]+)')::bigint < $2`
	selectSlotUser = `select active_pid as pid from pg_replication_slots where slot_name = any($1) and database = current_database() and active_pid is not null`
)

func (m *Move) endOlderSessions(ctx context.Context, n node, conn *pgx.Conn, legs []cdcLeg) error {
	err := m.endSessions(ctx, conn, selectOlder, "pgreshard "+m.Name+"/", m.book.Epoch)
	if err != nil {
		return err
	}
	slots := []string{m.reverseSlot(n.number), m.changesName(n)}
	if n.source {
		slots = []string{m.slot(n.number), m.slotAgain(n.number), m.changesName(n)}
	}
	for _, leg := range legs {
		if leg.Destination != n.source && n.number < len(leg.Shards) {
			slots = append(slots, m.cdcSlot(leg.Number, n.number))
		}
	}
	return m.endSessions(ctx, conn, selectSlotUser, slots)
}

// endSessions ends the sessions a query lists and waits until they are gone.
func (m *Move) endSessions(ctx context.Context, conn *pgx.Conn, list string, args ...any) error {
	var left []int32
	err := conn.QueryRow(ctx, fmt.Sprintf(`select coalesce(array_agg(pid) filter (where not pg_terminate_backend(pid, %d)), '{}')
		from (%s) s`, leftoverWait.Milliseconds(), list), args...).Scan(&left)
	if err == nil && len(left) > 0 { // of one that has just ended by itself the server says the same as of one that does not end
		err = conn.QueryRow(ctx, `select coalesce(array_agg(pid), '{}') from pg_stat_activity where pid = any($1)`, left).Scan(&left)
	}
	switch {
	case pg.Code(err) == "42501":
		return fmt.Errorf("sessions of the worker before this one cannot be ended: %w; hint: connect as the role it used, or grant pg_signal_backend to this one", err)
	case err != nil:
		return fmt.Errorf("end the sessions of the worker before this one: %w", err)
	case len(left) > 0:
		return fmt.Errorf("sessions of the worker before this one do not end: pid %v; hint: find out what holds them, and run the same command again", left)
	}
	return nil
}

// gone says that a lease's holder ran on this machine and its process has ended.
func gone(l checkpoints.Lease) bool {
	host, _ := os.Hostname()
	return l.Host == host && errors.Is(syscall.Kill(l.PID, 0), syscall.ESRCH)
}

func (m *Move) highestEpoch(ctx context.Context, nodes []node) (highest int64, err error) {
	var mu sync.Mutex
	err = m.each(ctx, nodes, func(ctx context.Context, _ node, conn *pgx.Conn) error {
		e, err := checkpoints.Epoch(ctx, conn)
		mu.Lock()
		defer mu.Unlock()
		highest = max(highest, e)
		return err
	})
	return highest, err
}

// whileHeld runs fn and keeps the lease meanwhile. Who has lost it is told so, whatever became of fn: the hint of another
// error might harm the worker that has it now.
func (m *Move) whileHeld(ctx context.Context, fn func(context.Context) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		if err := m.beat(ctx); err != nil {
			stop(err)
		}
	}()
	err := fn(ctx)
	cause := context.Cause(ctx)
	switch {
	case err == nil:
	case cause != nil && !errors.Is(cause, context.Canceled):
		err = cause
	case cause == nil && m.superseded(ctx):
		err = checkpoints.ErrSuperseded
	}
	stop(nil)
	<-beating
	m.endLease(ctx)
	m.book = checkpoints.Book{}
	return err
}

// superseded asks the home; where that does not answer it is not known.
func (m *Move) superseded(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := m.home(ctx, func(conn *pgx.Conn) error { return m.book.Check(ctx, conn) })
	return errors.Is(err, checkpoints.ErrSuperseded)
}

const undefinedSchema = "3F000"

// beat keeps the lease until ctx ends or another worker has it. A home that cannot be reached is no reason to stop:
// every write is checked against the epoch anyway.
func (m *Move) beat(ctx context.Context) error {
	for {
		if err := sleep(ctx, checkpoints.LeaseTime/5); err != nil {
			return nil
		}
		err := m.on(ctx, m.shardOf(m.homeNode()), pg.Admin, func(conn *pgx.Conn) error {
			for {
				if err := checkpoints.Beat(ctx, conn, m.Name, m.book.Epoch); err != nil {
					return err
				}
				if err := sleep(ctx, checkpoints.LeaseTime/5); err != nil {
					return err
				}
			}
		})
		// A cancel drops the bookkeeping last: that it is gone must not end what drops it. Whoever else needs it is told so.
		if errors.Is(err, checkpoints.ErrSuperseded) && pg.Code(err) != undefinedSchema {
			return err
		}
	}
}

func (m *Move) endLease(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = m.home(ctx, func(conn *pgx.Conn) error { return checkpoints.DropLease(ctx, conn, m.Name, m.book.Epoch) })
}

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/sink"
)

// A row that something else wrote to a shard, or took from it, stops the stream where the source changes it, so that no worker
// stays up that could mend it. Repairing such a move, the process is its worker for as long as that takes: the table that stopped
// the stream forgives up to where the sources are, as one whose copy was resumed does, and what is then still wrong is mended as
// beside any worker.

// RepairStopped is Repair where no worker runs. It is the move's one worker meanwhile and leaves it streaming.
func (m *Move) RepairStopped(ctx context.Context) (*RepairReport, error) {
	switch known, err := m.find(ctx); {
	case err != nil:
		return nil, err
	case known == nil:
		return nil, ErrNoMove
	case known.State != StateStreaming:
		return nil, &NotReadyError{Because: []string{"the move is " + known.State + ", and can be mended while it is " + StateStreaming}, Compare: true}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m.forgiven = nil
	var report *RepairReport
	var failed error
	err := m.Migrate(ctx, MigrateOptions{forgives: true, Ready: func(ctx context.Context) (bool, error) {
		done, err := m.Repair(ctx)
		if ctx.Err() == nil { // else a row stopped a stream meanwhile, and it is followed again
			report, failed = done, err
			stop()
		}
		return false, ctx.Err()
	}})
	if report != nil {
		for name := range m.forgiven {
			report.Forgiven = append(report.Forgiven, name.String())
		}
		slices.Sort(report.Forgiven)
	}
	if report != nil || failed != nil {
		return report, failed
	}
	return nil, err
}

// forgive has the table whose rows are not as the stream says taken as they come up to where its sources are now. It says false where
// that is of no help.
func (m *Move) forgive(ctx context.Context, inv *inventory, why *sink.DivergedError) (bool, error) {
	t := inv.byName[why.Table]
	if _, again := m.forgiven[why.Table]; t == nil || again {
		return false, nil
	}
	if len(inv.sources[0].Table(t.name).Key) == 0 {
		return false, &RepairError{fmt.Sprintf("%s has no key to tell its rows apart", t.name)}
	}
	if m.forgiven == nil {
		m.forgiven = map[pg.Name]struct{}{}
	}
	m.forgiven[why.Table] = struct{}{}
	for n := range m.Source.Shards {
		if !t.follows(n) {
			continue
		}
		var now pg.LSN
		err := m.source(ctx, n, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&now)
		})
		if err == nil {
			err = m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
				return m.stream(n).Resume(ctx, conn, t.name.String(), checkpoints.Resumed{ForgiveUntil: now})
			})
		}
		if err != nil {
			return false, err
		}
	}
	m.log.Warn("rows of a table are not as the stream says; they are taken as they come up to where the sources are", "table", t.name.String(), "at", why.At.String())
	return true, m.home(ctx, func(conn *pgx.Conn) error {
		return m.book.Journal(ctx, conn, "forgive", "after", map[string]string{"table": t.name.String(), "at": why.At.String()})
	})
}

// mayForgive is forgive where a repair is what runs and err is of such a row.
func (m *Move) mayForgive(ctx context.Context, inv *inventory, o MigrateOptions, err error) (bool, error) {
	var why *sink.DivergedError
	if !o.forgives || inv == nil || !errors.As(err, &why) {
		return false, nil
	}
	return m.forgive(ctx, inv, why)
}

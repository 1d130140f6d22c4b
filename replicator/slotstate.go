package replicator

import (
	"context"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// SlotState is what the server says about a slot now.
type SlotState struct {
	Name           string
	Plugin         string // empty for a physical slot
	Database       string
	Temporary      bool
	Here           bool   // it belongs to the database asked
	ActivePID      int32  // of the walsender that streams from it, 0 for none
	ConfirmedFlush pg.LSN // what lies before is never sent again
	Restart        pg.LSN // the oldest log the server keeps for it; 0 where the slot is lost
	WALStatus      string // reserved, extended, unreserved or lost
	SafeWALSize    int64  // bytes that can be written before it may get lost; -1 without a limit
	Invalid        string // why the server has invalidated it (17 and later), else empty
}

// Check says why the slot cannot be streamed from: ErrSlotForeign, ErrSlotLost or nil.
func (s *SlotState) Check() error {
	switch {
	case s.foreign():
		return fmt.Errorf("replication slot %s: %w: it belongs to plugin %q and database %q", s.Name, ErrSlotForeign, s.Plugin, s.Database)
	case s.WALStatus == "lost" || s.Invalid != "" || s.Restart == 0:
		return fmt.Errorf("replication slot %s: %w (wal_status %q, reason %q)", s.Name, ErrSlotLost, s.WALStatus, s.Invalid)
	}
	return nil
}

func (s *SlotState) foreign() bool { return s.Plugin != plugin || !s.Here }

// The columns of later versions are read by way of JSON, so that one statement suits all.
const slotSQL = `
select coalesce(plugin, ''), coalesce(database, ''), temporary, coalesce(database = current_database(), false),
       coalesce(active_pid, 0), coalesce(confirmed_flush_lsn, '0/0'), coalesce(restart_lsn, '0/0'),
       coalesce(wal_status, ''), coalesce(safe_wal_size, -1), coalesce(to_jsonb(s) ->> 'invalidation_reason', '')
  from pg_replication_slots s where slot_name = '%s'`

// InspectSlot reads a slot's state; ErrSlotMissing where there is none.
func InspectSlot(ctx context.Context, conn *pgx.Conn, name string) (*SlotState, error) {
	return inspectSlot(ctx, conn.PgConn(), name)
}

// inspectSlot speaks the simple protocol, the only one a replication connection has.
func inspectSlot(ctx context.Context, conn *pgconn.PgConn, name string) (*SlotState, error) {
	if !slotName.MatchString(name) {
		return nil, fmt.Errorf("replication slot %q: a name has 1 to 63 of the characters a-z, 0-9 and _", name)
	}
	rows, err := simpleQuery(ctx, conn, fmt.Sprintf(slotSQL, name))
	if err != nil {
		return nil, fmt.Errorf("read replication slot %s: %w", name, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("replication slot %s: %w", name, ErrSlotMissing)
	}
	r := rows[0]
	pid, err1 := strconv.ParseInt(r[4], 10, 32)
	confirmed, err2 := pg.ParseLSN(r[5])
	restart, err3 := pg.ParseLSN(r[6])
	safe, err4 := strconv.ParseInt(r[8], 10, 64)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return nil, fmt.Errorf("read replication slot %s: %w", name, err)
		}
	}
	return &SlotState{
		Name: name, Plugin: r[0], Database: r[1], Temporary: r[2] == "t", Here: r[3] == "t", ActivePID: int32(pid),
		ConfirmedFlush: confirmed, Restart: restart, WALStatus: r[7], SafeWALSize: safe, Invalid: r[9],
	}, nil
}

// simpleQuery runs one statement and returns its rows as text.
func simpleQuery(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, r := range results[0].Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = string(v)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

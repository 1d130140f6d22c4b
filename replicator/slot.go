package replicator

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

const (
	plugin    = "pgoutput"
	slotApp   = "pgreshard slot"
	closeWait = 2 * time.Second
)

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Slot is a slot just made. Its snapshot can be imported until Close: it shows every transaction that committed
// before ConsistentPoint; the stream sends every one that committed at or after it.
type Slot struct {
	Name            string
	ConsistentPoint pg.LSN
	Snapshot        string // for set transaction snapshot
	SystemID        string // of the cluster it was made on
	Timeline        int32  // that cluster was on

	conn *pgconn.PgConn
}

// Close ends the connection that exports the snapshot. Transactions that imported it go on; a temporary slot is gone.
func (s *Slot) Close() { closeConn(s.conn) }

// CreateSlot makes a logical slot and exports the snapshot that belongs to it. Its publication must be committed
// before. The server lets it wait for every transaction that is open when it starts, in any database; the end of ctx
// bounds that wait, and then the error is a *BlockedError.
func CreateSlot(ctx context.Context, shard pg.Shard, slot string, temporary bool) (*Slot, error) {
	if !slotName.MatchString(slot) {
		return nil, fmt.Errorf("replication slot %q: a name has 1 to 63 of the characters a-z, 0-9 and _", slot)
	}
	conn, err := pg.OpenReplication(ctx, shard, slotApp, nil)
	if err != nil {
		return nil, err
	}
	lasts := onStandbys
	if temporary {
		lasts = asSession
	}
	made, err := createSlot(ctx, conn, slot, lasts)
	if err == nil {
		return made, nil
	}
	closeConn(conn)
	return nil, fmt.Errorf("create on %s: %w", shard, waited(ctx, shard, slot, err))
}

// waited is an error of a slot's making, with those it waited for in vain.
func waited(ctx context.Context, shard pg.Shard, slot string, err error) error {
	if pg.Code(err) == "55P03" || errors.Is(err, context.DeadlineExceeded) {
		return blocked(ctx, shard, slot, err)
	}
	return err
}

// lasting is for how long a slot stays.
type lasting int

const (
	onStandbys lasting = iota // until it is dropped, where a standby may take it over, if servers know such (17 and later)
	onlyHere                  // until it is dropped, on this server alone
	asSession                 // as long as the session that made it
)

func createSlot(ctx context.Context, conn *pgconn.PgConn, slot string, lasts lasting) (*Slot, error) {
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("identify the system: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		// Only lock_timeout ends the server's wait. It strikes a little earlier than ctx, which can but cut the connection.
		wait := time.Until(deadline)
		wait -= min(wait/5, time.Second)
		set := fmt.Sprintf("set lock_timeout = %d", max(1, wait.Milliseconds()))
		if _, err := conn.Exec(ctx, set).ReadAll(); err != nil {
			return nil, fmt.Errorf("bound the wait: %w", err)
		}
	}
	r, err := create(ctx, conn, slot, lasts)
	if err != nil {
		return nil, slotError(slot, err)
	}
	point, err := pg.ParseLSN(r.ConsistentPoint)
	if err != nil {
		return nil, fmt.Errorf("consistent point of replication slot %s: %w", slot, err)
	}
	return &Slot{Name: slot, ConsistentPoint: point, Snapshot: r.SnapshotName, SystemID: system.SystemID, Timeline: system.Timeline, conn: conn}, nil
}

func create(ctx context.Context, conn *pgconn.PgConn, slot string, lasts lasting) (pglogrepl.CreateReplicationSlotResult, error) {
	var major int
	if _, err := fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &major); err == nil && major >= 17 && lasts == onStandbys {
		const command = "CREATE_REPLICATION_SLOT %s LOGICAL " + plugin + " (SNAPSHOT 'export', FAILOVER true)"
		return pglogrepl.ParseCreateReplicationSlot(conn.Exec(ctx, fmt.Sprintf(command, quoted(slot))))
	}
	return pglogrepl.CreateReplicationSlot(ctx, conn, quoted(slot), plugin, pglogrepl.CreateReplicationSlotOptions{
		Temporary: lasts == asSession, SnapshotAction: "EXPORT_SNAPSHOT", Mode: pglogrepl.LogicalReplication,
	})
}

// blocked finds out who kept a slot waiting, although ctx may have ended.
func blocked(ctx context.Context, shard pg.Shard, slot string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWait)
	defer cancel()
	e := &BlockedError{Slot: slot, Err: cause}
	conn, err := pg.Open(ctx, shard, pg.Reader, slotApp)
	if err != nil {
		return e
	}
	defer pg.Close(conn)
	e.Blockers, _ = Blockers(ctx, conn)
	return e
}

const openTransactions = `
select coalesce(pid, 0), '' as gid, coalesce(datname, ''), extract(epoch from clock_timestamp() - xact_start)::float8 as age
  from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid()
union all
select 0, gid, database, extract(epoch from clock_timestamp() - prepared)::float8 from pg_prepared_xacts
order by age desc nulls last`

// Blockers lists the transactions a slot made now would wait for, oldest first.
func Blockers(ctx context.Context, conn *pgx.Conn) ([]Blocker, error) {
	rows, err := conn.Query(ctx, openTransactions)
	if err != nil {
		return nil, fmt.Errorf("list open transactions: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Blocker, error) {
		var b Blocker
		var seconds *float64
		err := row.Scan(&b.PID, &b.Prepared, &b.Database, &seconds)
		if seconds != nil {
			b.Age = time.Duration(*seconds * float64(time.Second))
		}
		return b, err
	})
}

const (
	dropWait  = 10 * time.Second
	dropRetry = 50 * time.Millisecond
	dropSQL   = `select pg_drop_replication_slot($1)`
)

// DropSlot drops a slot of ours; one that is not there is no error. A walsender that is still ending is waited for, up
// to ten seconds, never terminated.
func DropSlot(ctx context.Context, conn *pgx.Conn, name string) error {
	for end := time.Now().Add(dropWait); ; {
		s, err := InspectSlot(ctx, conn, name)
		if errors.Is(err, ErrSlotMissing) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("drop: %w", err)
		}
		if s.foreign() {
			return fmt.Errorf("drop: %w", s.Check())
		}
		if s.ActivePID == 0 {
			_, err := conn.Exec(ctx, dropSQL, name)
			switch pg.Code(err) {
			case "42704":
				return nil
			case "55006": // taken in between
			default:
				if err != nil {
					return fmt.Errorf("drop: %w", slotError(name, err))
				}
				return nil
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("drop replication slot %s: %w by pid %d", name, ErrSlotInUse, s.ActivePID)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drop replication slot %s: %w", name, ctx.Err())
		case <-time.After(dropRetry):
		}
	}
}

// quoted is a name inside a replication command.
func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }

// closeConn ends a connection and waits, briefly, until it is.
func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	_ = conn.Close(ctx)
	select {
	case <-conn.CleanupDone():
	case <-ctx.Done():
	}
}

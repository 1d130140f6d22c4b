package move

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// What counts as durable on a shard.
const (
	ConfirmStandby = "standby" // what its leader has flushed and, where it has streaming standbys, one of them too
	ConfirmLeader  = "leader"  // what its leader has flushed
)

const selectOnStandby = `select n = 0 or flushed >= $1::text::pg_lsn from ` + pg.StandbysSQL

const (
	standbyEvery = 5 * time.Millisecond
	standbyLong  = 5 * time.Second // from then on who is waited for is told
)

// onStandby waits until one streaming standby of a shard, where it has any, has flushed everything written there up to
// now, so that a fail-over keeps it. All of it is asked on the one session: after a fail-over that is broken, and whoever
// looked at the shard before the wait looks again.
func (m *Move) onStandby(ctx context.Context, shard int, conn *pgx.Conn) error {
	if m.Confirm == ConfirmLeader {
		return nil
	}
	var end string
	if err := conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end); err != nil {
		return err
	}
	var s stall
	defer m.ends(&s)
	for began := time.Now(); ; {
		var there bool
		if err := conn.QueryRow(ctx, selectOnStandby, end).Scan(&there); err != nil || there {
			return err
		}
		behind := fmt.Errorf("no standby of destination shard %d has flushed %s yet", shard, end)
		if time.Since(began) > standbyLong {
			m.interrupted(&s, behind)
		}
		if err := sleep(ctx, standbyEvery); err != nil {
			return fmt.Errorf("%w: %w", err, behind)
		}
	}
}

// allOnStandbys waits until what a phase did is on a standby of every shard that has any, before the phase counts as done.
func (m *Move) allOnStandbys(ctx context.Context) error { return m.dests(ctx, m.onStandby) }

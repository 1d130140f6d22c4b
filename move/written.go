package move

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// countedKey is under what is kept how many rows each shard had written when the new layout began to serve.
const countedKey = "counted"

// A server's statistics come up to a second late, and count what was rolled back.
const selectWritten = `select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint from pg_stat_user_tables where schemaname <> 'pgreshard'`

// countFrom keeps from where the rows that applications write on the new layout are counted, for what a rollback would lose
// where there is no way back any more. Only right behind the switch can they be counted from now.
func (m *Move) countFrom(ctx context.Context, now bool) error {
	var counted []int64
	if err := m.detail(ctx, countedKey, &counted); err != nil {
		return err
	}
	if counted == nil && now {
		counted = make([]int64, len(m.Destination.Shards))
		err := m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, selectWritten).Scan(&counted[n])
		})
		if err == nil {
			err = m.setDetail(ctx, countedKey, counted)
		}
		if err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counted = counted
	return nil
}

func (m *Move) setLost(why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost = why
}

func (m *Move) wayBackLost() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost != ""
}

// count asks a shard how many rows were written there.
func (m *Move) count(ctx context.Context, shard int, conn *pgx.Conn) error {
	var n int64
	if err := conn.QueryRow(ctx, selectWritten).Scan(&n); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.counts == nil {
		m.health.counts = map[int]int64{}
	}
	m.health.counts[shard] = n
	return nil
}

// writtenSince is how many rows were written since the switch, nil where that is not known, as after a fail-over, whose server
// counts anew; m.mu is held.
func (m *Move) writtenSince() *int64 {
	if len(m.counted) == 0 || len(m.health.counts) < len(m.counted) {
		return nil
	}
	var all int64
	for n, from := range m.counted {
		since := m.health.counts[n] - from
		if since < 0 {
			return nil
		}
		all += since
	}
	return &all
}

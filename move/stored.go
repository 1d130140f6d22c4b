package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// Status reads the bookkeeping tables, whether or not a worker runs. A shard that does not answer is named in it; where
// that is the home, which knows most, what the others tell comes with an error.
func (m *Move) Status(ctx context.Context) (Status, error) {
	m.lookAtNodes(ctx)
	if err := m.homeSilent(); err != nil {
		m.setServing(0)
		s := m.Snapshot()
		s.SafeToCutOver.Because = s.Waiting
		return s, err
	}
	known, err := m.find(ctx)
	if err != nil {
		return Status{}, err
	}
	if known == nil {
		return Status{}, ErrNoMove
	}
	m.setState(known.State)
	m.mu.Lock()
	m.failure = known.Error
	m.mu.Unlock()
	if err := m.lastVerified(ctx); err != nil {
		return Status{}, err
	}
	if version, err := m.readServing(ctx); err == nil && version != 0 {
		m.setServing(version)
	}
	s := m.Snapshot()
	lease, err := m.lease(ctx)
	switch {
	case err != nil:
		return s, err
	case lease.Live() && !gone(*lease):
		s.SafeToCutOver = m.storedSafe(s, "the worker does not answer, so how far its streams are is not known")
		s.Worker = fmt.Sprintf("pid %d on %s, last heard %.0f s ago", lease.PID, lease.Host, lease.Age.Seconds())
		s.Address = lease.Address
	default:
		s.Idle = true
		s.SafeToCutOver = m.storedSafe(s, "no worker runs")
	}
	s.Fences = m.storedFences(ctx)
	s.Streams = m.storedStreams(ctx, s.Streams)
	if s.State == StateSwitched || s.State == StateRollingBack {
		s.Reverse, err = m.storedReverse(ctx)
	}
	if err == nil && s.CDC == nil {
		s.CDC, err = m.storedCDC(ctx)
	}
	return s, errors.Join(err, ctx.Err())
}

// storedReverse is how far the old layout follows the new one, nil where it is not to.
func (m *Move) storedReverse(ctx context.Context) (*ReverseStatus, error) {
	if follow, err := m.followable(ctx); err != nil || !follow {
		return nil, err
	}
	back := m.wayBack()
	back.lookAtNodes(ctx)
	out := &ReverseStatus{Streams: back.storedStreams(ctx, back.Snapshot().Streams),
		Rollback: SafeToCutOver{Because: []string{"no worker runs, or it does not answer"}}}
	return out, back.detail(ctx, lostKey, &out.Lost)
}

// storedSafe is never yes: who is no worker does not know how far the streams are. After the switch nothing else counts.
func (m *Move) storedSafe(s Status, why string) SafeToCutOver {
	switch s.State {
	case StateSwitched, StateCompleted, StateCancelled:
		return SafeToCutOver{Because: []string{"the move is " + s.State}}
	case StateStreaming:
		return SafeToCutOver{Because: append([]string{why}, s.Waiting...)}
	}
	return SafeToCutOver{Because: append([]string{why, "the move is " + s.State}, s.Waiting...)}
}

// storedFences reads what the fence of each source does, where it has one and answers.
func (m *Move) storedFences(ctx context.Context) (out []FenceStatus) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for n := range m.Source.Shards {
		if _, silent := m.silent(node{true, n}); silent {
			continue
		}
		var state fenceState
		err := m.source(ctx, n, func(conn *pgx.Conn) (err error) {
			state, err = readFence(ctx, conn)
			return err
		})
		if err != nil || !state.Installed {
			continue
		}
		f := FenceStatus{Source: n, Refuses: state.Refuses()}
		if f.Refuses && !state.Sealed() {
			until := time.UnixMicro(state.Until).UTC()
			f.Until = &until
		}
		out = append(out, f)
	}
	return out
}

// homeSilent is an error where the home did not answer when last looked at.
func (m *Move) homeSilent() error {
	if why, silent := m.silent(m.homeNode()); silent {
		return fmt.Errorf("%s does not answer: %s; hint: the move's state is kept there: bring it back, and ask again", m.nodeWords(m.homeNode()), why)
	}
	return nil
}

// silent says whether a node did not answer when last looked at, and why.
func (m *Move) silent(n node) (why string, silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	why, silent = m.health.silent[n]
	return why, silent
}

func (m *Move) lease(ctx context.Context) (lease *checkpoints.Lease, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		lease, err = checkpoints.ReadLease(ctx, conn, m.Name)
		return err
	})
	return lease, err
}

const selectBehindInsert = `select (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::bigint`

// storedStreams adds to what each source's slot tells what the shards' checkpoints tell, where all of them answer. A node
// may have gone since it was looked at: what it would have told stays unknown.
func (m *Move) storedStreams(ctx context.Context, fromSlots []StreamStatus) (out []StreamStatus) {
	if m.publishesOnly() {
		return nil
	}
	for n := range m.Source.Shards {
		s := StreamStatus{Source: n}
		for _, t := range fromSlots {
			if t.Source == n {
				s = t
			}
		}
		low, known := m.storedPosition(ctx, n)
		if known {
			s.Applied = low.String()
			s.LagBytes = m.storedLag(ctx, n, low)
		}
		if known || s.Confirmed != "" {
			out = append(out, s)
		}
	}
	return out
}

// storedLag is the log a source has written behind a position, nil where it does not answer.
func (m *Move) storedLag(ctx context.Context, source int, at pg.LSN) *int64 {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	var behind int64
	if _, silent := m.silent(node{true, source}); silent {
		return nil
	}
	err := m.source(ctx, source, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectBehindInsert, at.String()).Scan(&behind)
	})
	if err != nil {
		return nil
	}
	return &behind
}

// storedPosition is the lowest of a source's checkpoints; known is false where a shard has none or does not answer.
func (m *Move) storedPosition(ctx context.Context, source int) (low pg.LSN, known bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	for shard := range m.Destination.Shards {
		if _, silent := m.silent(node{number: shard}); silent {
			return 0, false
		}
		var at pg.LSN
		var ok bool
		err := m.dest(ctx, shard, func(conn *pgx.Conn) (err error) {
			at, ok, err = m.stream(source).Position(ctx, conn)
			return err
		})
		if err != nil || !ok {
			return 0, false
		}
		if low == 0 || at < low {
			low = at
		}
	}
	return low, true
}

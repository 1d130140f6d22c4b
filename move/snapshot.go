package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/copier"
)

// Snapshot is what this worker knows now; it asks nobody.
func (m *Move) Snapshot() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Status{Move: m.Name, State: m.state, Layout: StatusLayout{Serving: m.serving, Next: m.Destination.Layout},
		Verify: m.verified, Cutover: m.cutover, Copy: m.copyStatus(), Streams: m.streamStatus(), Shards: m.shardStatus(), Lookup: m.lookupStatus()}
	if m.failure != "" {
		s.Error = &m.failure
	}
	s.SafeToCutOver = m.safe()
	return s
}

// safe says whether a cutover may be tried now; m.mu is held.
func (m *Move) safe() SafeToCutOver {
	var because []string
	if m.state != StateStreaming {
		because = append(because, "the move is "+m.state)
	}
	if m.failure != "" {
		because = append(because, "it stopped: "+m.failure)
	}
	if m.state == StateStreaming && len(m.followers) == 0 {
		because = append(because, "the streams are only being started")
	}
	because = append(because, m.lagging(m.followers)...)
	return SafeToCutOver{OK: len(because) == 0, Because: because}
}

func (m *Move) copyStatus() (out []CopyStatus) {
	for source, progress := range m.progress {
		if progress == nil {
			continue
		}
		for _, t := range progress.Tables() {
			out = append(out, tableStatus(source, t))
		}
	}
	return out
}

func tableStatus(source int, t copier.TableProgress) CopyStatus {
	s := CopyStatus{Source: source, Table: t.Table.String(), Rows: t.Rows, Bytes: t.SizeDone, BytesTotal: t.Size, State: "copying"}
	switch t.ChunksDone {
	case 0:
		s.State = "waiting"
	case t.Chunks:
		s.State = "done"
	}
	return s
}

func (m *Move) streamStatus() (out []StreamStatus) {
	for _, f := range m.followers {
		s := StreamStatus{Source: f.source, Applied: f.sink.Applied().String()}
		if reader := f.reader.Load(); reader != nil {
			stats := reader.Stats()
			s.Received, s.Confirmed = stats.Received.String(), stats.Confirmed.String()
		}
		if bytes, age, ok := f.lag(); ok {
			seconds := age.Seconds()
			s.LagBytes, s.LagSeconds = &bytes, &seconds
		}
		out = append(out, s)
	}
	return out
}

func (m *Move) shardStatus() []ShardStatus {
	out := make([]ShardStatus, len(m.Destination.Shards))
	for i, shard := range m.Destination.Shards {
		out[i] = ShardStatus{Shard: i, Node: m.node(shard)}
		for _, f := range m.followers {
			stats := f.sink.Stats()[i]
			out[i].Rows.Inserted += stats.Inserted
			out[i].Rows.Updated += stats.Updated
			out[i].Rows.Deleted += stats.Deleted
			out[i].ZeroRowChanges += stats.ZeroRow
			out[i].Transactions += stats.Transactions
			out[i].Batches += stats.Batches
			out[i].ApplySeconds += stats.ApplyTime.Seconds()
		}
	}
	return out
}

func (m *Move) lookupStatus() LookupStatus {
	s := m.router.Lookups.Stats()
	return LookupStatus{Hits: int64(s.Hits), Misses: int64(s.Misses), Queries: int64(s.Queries), Bytes: int64(s.Bytes), Entries: int64(s.Entries),
		Evictions: int64(s.Evictions), QuerySeconds: s.QueryTime.Seconds()}
}

// Status reads the bookkeeping tables, whether or not a worker runs.
func (m *Move) Status(ctx context.Context) (Status, error) {
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
	if version, err := m.readServing(ctx); err == nil && version != 0 {
		m.setServing(version)
	}
	s := m.Snapshot()
	lease, err := m.lease(ctx)
	switch {
	case err != nil:
		return s, err
	case lease.Live():
		s.Worker = fmt.Sprintf("pid %d on %s, last heard %.0f s ago", lease.PID, lease.Host, lease.Age.Seconds())
		s.Address = lease.Address
	default:
		s.SafeToCutOver = SafeToCutOver{Because: []string{"no worker runs"}}
	}
	return s, m.storedStreams(ctx, &s)
}

func (m *Move) lease(ctx context.Context) (lease *checkpoints.Lease, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		lease, err = checkpoints.ReadLease(ctx, conn, m.Name)
		return err
	})
	return lease, err
}

// storedStreams reads each stream's checkpoints and the source's position.
func (m *Move) storedStreams(ctx context.Context, s *Status) error {
	for n := range m.Source.Shards {
		f := &follower{move: m, source: n}
		low, known := ^uint64(0), true
		for shard := range m.Destination.Shards {
			err := m.dest(ctx, shard, func(conn *pgx.Conn) error {
				at, ok, err := m.stream(n).Position(ctx, conn)
				known = known && ok
				low = min(low, uint64(at))
				return err
			})
			if err != nil {
				return err
			}
		}
		if !known {
			continue
		}
		var end string
		var behind int64
		err := m.source(ctx, f.source, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text, (pg_current_wal_insert_lsn() - $1::text::pg_lsn)::bigint`,
				lsnText(low)).Scan(&end, &behind)
		})
		if err != nil {
			return err
		}
		s.Streams = append(s.Streams, StreamStatus{Source: n, Applied: lsnText(low), Confirmed: lsnText(low), LagBytes: &behind})
	}
	return nil
}

func lsnText(n uint64) string { return fmt.Sprintf("%X/%X", uint32(n>>32), uint32(n)) }

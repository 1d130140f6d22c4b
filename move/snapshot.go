package move

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/copier"
)

// Snapshot is what this worker knows now; it asks nobody.
func (m *Move) Snapshot() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.snapshot()
	if m.reverse != nil && (m.state == StateSwitched || m.state == StateRollingBack) {
		m.reverse.mu.Lock()
		defer m.reverse.mu.Unlock()
		m.addReverse(&s)
	}
	return s
}

// addReverse tells of the way back; m.mu and its own are held.
func (m *Move) addReverse(s *Status) {
	back := m.reverse.snapshot()
	s.Reverse = &ReverseStatus{Streams: back.Streams, Rollback: back.SafeToCutOver, Lost: m.lost, Written: m.writtenSince()}
	if because := m.noWayBack(); len(because) > 0 {
		s.Reverse.Rollback = SafeToCutOver{Because: because}
	}
	for _, w := range back.Waiting { // both look at every node
		if !slices.Contains(s.Waiting, w) {
			s.Waiting = append(s.Waiting, w)
		}
	}
	s.Alarms = append(s.Alarms, back.Alarms...)
	if back.Cutover.Step != "" || back.Cutover.FreezeSeconds != nil {
		s.Cutover.Step, s.Cutover.FreezeSeconds, s.Cutover.Steps = back.Cutover.Step, back.Cutover.FreezeSeconds, back.Cutover.Steps
	}
}

// snapshot is what is known of one way; m.mu is held.
func (m *Move) snapshot() Status {
	s := Status{Move: m.Name, State: m.state, Layout: StatusLayout{Serving: m.serving, Next: m.Destination.Layout},
		Verify: m.verified, Cutover: m.cutover, Waiting: m.waiting(), Alarms: m.alarms(), Copy: m.copyStatus(), Streams: m.streamStatus(), Shards: m.shardStatus(), Lookup: m.lookupStatus()}
	if p := m.proving; p != nil {
		s.Verify.Verified, s.Verify.TablesTotal, s.Verify.Interrupted = p.verifiedTables(), p.Of, !p.Ended && s.Verify.State != "running"
	}
	m.reading.tell(&s.Verify)
	s.Cutover.MaxFreezeSeconds = m.MaxFreeze.Seconds()
	s.Cutover.Hooks, s.Cutover.Steps = slices.Clone(m.hooks), slices.Clone(m.steps)
	if m.failure != "" {
		s.Error = &m.failure
	}
	if m.cdc != nil {
		s.CDC = m.cdc.status()
		s.Alarms = append(s.Alarms, s.CDC.alarms()...)
	}
	if m.state == StateCopying {
		s.CopyETA = m.rates.copyETA(len(m.Source.Shards))
	}
	s.SafeToCutOver = m.safe()
	return s
}

// safe says whether a cutover may be tried now; m.mu is held.
func (m *Move) safe() SafeToCutOver {
	if m.publishesOnly() {
		return SafeToCutOver{Because: []string{"there is no [destination]: changes are published only"}}
	}
	var because []string
	if m.state != m.steady() {
		because = append(because, "the move is "+m.state)
	}
	if m.failure != "" {
		because = append(because, "it stopped: "+m.failure)
	}
	if m.state == m.steady() && len(m.followers) == 0 {
		because = append(because, "the streams are only being started")
	}
	if m.verified.differs() && m.MustVerify && m.forward == nil { // a rollback compares again in its check
		because = append(because, fmt.Sprintf("the last comparison found %d differences, in %s", m.verified.Differences, strings.Join(m.verified.Tables, ", ")))
	}
	because = append(because, m.lagging(m.followers)...)
	because = append(because, m.waiting()...)
	return SafeToCutOver{OK: len(because) == 0, Because: because}
}

func (m *Move) copyStatus() (out []CopyStatus) {
	for source, progress := range m.progress {
		if progress == nil {
			continue
		}
		for _, t := range progress.Tables() {
			s := tableStatus(source, t)
			if m.state == StateCopying && s.State == "copying" {
				s.ETASeconds = m.rates.tables[tableKey{source, s.Table}].eta()
			}
			out = append(out, s)
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

// streamStatus has every source whose stream runs, and before that every one whose slot is there.
func (m *Move) streamStatus() (out []StreamStatus) {
	for n := range m.Source.Shards {
		s := StreamStatus{Source: n}
		slot := m.health.slots[n]
		if slot != nil {
			s.Confirmed, s.Retained, s.SafeWAL, s.Budget = slot.confirmed, slot.retained, slot.safe, &slot.budget
			s.Growth, s.LossSeconds = m.rates.slots[n].growth(), m.lossSeconds(n, slot)
		}
		if f := m.followerOf(n); f != nil {
			m.describe(f, &s)
		} else if slot == nil {
			continue
		}
		out = append(out, s)
	}
	return out
}

func (m *Move) followerOf(source int) *follower {
	for _, f := range m.followers {
		if f.source == source {
			return f
		}
	}
	return nil
}

// describe fills in what a running stream knows.
func (m *Move) describe(f *follower, s *StreamStatus) {
	s.Applied = f.sink.Applied().String()
	if reader := f.reader.Load(); reader != nil {
		stats := reader.Stats()
		s.Received, s.Confirmed = stats.Received.String(), stats.Confirmed.String()
	}
	if bytes, age, ok := f.lag(); ok {
		seconds := age.Seconds()
		s.LagBytes, s.LagSeconds = &bytes, &seconds
	}
	if h := m.rates.lags[f.source]; h != nil {
		s.LagHistory = slices.Clone(h.values)
	}
	s.RowsPerSecond, s.ETASeconds = m.rates.streams[f].perSecond(), m.rates.streams[f].eta()
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

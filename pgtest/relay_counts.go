package pgtest

import "sync/atomic"

// Counts is what passed through a relay.
type Counts struct {
	Connections int
	// RoundTrips counts the times a client asked (a run of messages that ends in Query, Sync, Flush, CopyDone,
	// CopyFail, FunctionCall or a password) and the server began to answer.
	RoundTrips int
	ToServer   map[string]Count // by message type; inside replication by the name of what CopyData carries too
	ToClient   map[string]Count
}

// Count is how many messages there were and their bytes on the wire.
type Count struct{ Messages, Bytes int }

type counts struct {
	connections, roundTrips atomic.Int64

	types  [2][256]tally // by the first byte
	inner  [2][256]tally // of what CopyData carries in replication
	output [256]tally    // of what XLogData carries
	first  [2]tally      // packets without a type: StartupMessage, CancelRequest
}

type tally struct{ messages, bytes atomic.Int64 }

func (t *tally) add(size int) {
	t.messages.Add(1)
	t.bytes.Add(int64(size))
}

// into adds what was tallied under a name, where there was any.
func (t *tally) into(m map[string]Count, name string) {
	if n := int(t.messages.Load()); n > 0 {
		m[name] = Count{Messages: n, Bytes: int(t.bytes.Load())}
	}
}

// add counts one message under each of its names.
func (c *counts) add(l *link, m *Message) {
	switch {
	case m.Direction == ToServer && asks[m.letter]:
		l.awaiting.Store(true)
	case m.Direction == ToClient && l.awaiting.Load() && l.awaiting.CompareAndSwap(true, false):
		c.roundTrips.Add(1)
	}
	if m.letter == 0 {
		c.first[m.startup].add(m.Size)
		return
	}
	c.types[m.Direction][m.letter].add(m.Size)
	if m.Inner != "" {
		c.inner[m.Direction][m.body[0]].add(m.Size)
	}
	if m.Innermost != "" {
		c.output[m.body[xlogDataHead]].add(m.Size)
	}
}

// Counts is what has passed since the relay began or ResetCounts was called.
func (r *Relay) Counts() Counts {
	c := r.counts.Load()
	out := Counts{
		Connections: int(c.connections.Load()), RoundTrips: int(c.roundTrips.Load()),
		ToServer: map[string]Count{}, ToClient: map[string]Count{},
	}
	for i, name := range startupTypes {
		c.first[i].into(out.ToServer, name)
	}
	for letter := range 256 {
		c.types[ToServer][letter].into(out.ToServer, clientTypes[letter])
		c.types[ToClient][letter].into(out.ToClient, serverTypes[letter])
		c.inner[ToServer][letter].into(out.ToServer, replicationTypes[ToServer][letter])
		c.inner[ToClient][letter].into(out.ToClient, replicationTypes[ToClient][letter])
		c.output[letter].into(out.ToClient, outputTypes[letter])
	}
	return out
}

// ResetCounts begins counting anew.
func (r *Relay) ResetCounts() { r.counts.Store(&counts{}) }

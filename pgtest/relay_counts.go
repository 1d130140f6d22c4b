package pgtest

import (
	"sync"
	"sync/atomic"
)

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

	mu     sync.Mutex
	byType [2]map[string]*Count
}

// add counts one message under each of its names.
func (c *counts) add(l *link, m *Message) {
	switch {
	case m.Direction == ToServer && asks[m.letter]:
		l.awaiting.Store(true)
	case m.Direction == ToClient && l.awaiting.CompareAndSwap(true, false):
		c.roundTrips.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	byType := c.byType[m.Direction]
	if byType == nil {
		byType = map[string]*Count{}
		c.byType[m.Direction] = byType
	}
	for _, name := range [...]string{m.Type, m.Inner, m.Innermost} {
		if name == "" {
			break
		}
		n := byType[name]
		if n == nil {
			n = &Count{}
			byType[name] = n
		}
		n.Messages++
		n.Bytes += m.Size
	}
}

// Counts is what has passed since the relay began or ResetCounts was called.
func (r *Relay) Counts() Counts {
	c := &r.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Counts{
		Connections: int(c.connections.Load()), RoundTrips: int(c.roundTrips.Load()),
		ToServer: map[string]Count{}, ToClient: map[string]Count{},
	}
	for name, n := range c.byType[ToServer] {
		out.ToServer[name] = *n
	}
	for name, n := range c.byType[ToClient] {
		out.ToClient[name] = *n
	}
	return out
}

// ResetCounts begins counting anew.
func (r *Relay) ResetCounts() {
	c := &r.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connections.Store(0)
	c.roundTrips.Store(0)
	c.byType = [2]map[string]*Count{}
}

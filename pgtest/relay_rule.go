package pgtest

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// Action is what a rule does to the connection whose message it names.
type Action int

const (
	// Nothing lets the message pass; with Then the rule is a signal.
	Nothing Action = iota
	// Reset breaks both sides with a TCP reset, as a crashed machine between them does.
	Reset
	// Close closes both sides in order.
	Close
	// ResetClient breaks the client's side only: the server's backend lives on, does what it was sent and waits for
	// more until the relay is closed. (pgx then asks to cancel it, on a new connection: call Refuse in Then.)
	ResetClient
	// Stall stops passing on in the rule's direction on this connection, until Resume.
	Stall
)

// Where says at which byte of its message a rule acts: everything before it is delivered, nothing after it is.
type Where int

// The places in a message.
const (
	Before Where = iota
	Inside       // half of the message's bytes have passed
	After
)

// Rule names a message and what happens there.
type Rule struct {
	Direction Direction
	// Type is a message's type as the protocol documentation names it ("CommandComplete", "CopyData", …), or in
	// replication the message inside CopyData ("XLogData", "PrimaryKeepalive", "StandbyStatusUpdate"), or pgoutput's
	// inside that ("XLogData.Commit"). Empty: any.
	Type string
	// Contains must be in the first 16 kB of the message's body, where not empty.
	Contains string
	// Nth counts the matching messages of all connections since the rule was added; 0 means the first.
	Nth int
	// Every makes it act again at each match after that.
	Every bool
	Where Where
	Do    Action
	// Then runs when everything before the place has been delivered, just before Do.
	Then func(Message)
}

// active is a rule that was added.
type active struct {
	Rule
	seen  int
	fired chan struct{}
	once  sync.Once
}

// rules are those that still wait for their message.
type rules struct {
	some atomic.Bool // spares the lock while there are none

	mu   sync.Mutex
	list []*active
}

// Add makes a rule apply from now on. The channel is closed when it has acted first.
func (r *Relay) Add(rule Rule) <-chan struct{} {
	a := &active{Rule: rule, fired: make(chan struct{})}
	r.rules.mu.Lock()
	defer r.rules.mu.Unlock()
	r.rules.list = append(r.rules.list, a)
	r.rules.some.Store(true)
	return a.fired
}

// Clear takes every rule away.
func (r *Relay) Clear() {
	r.rules.mu.Lock()
	defer r.rules.mu.Unlock()
	r.rules.list = nil
	r.rules.some.Store(false)
}

// match returns the rules that act at this message, in the order of their places in it.
func (r *rules) match(m *Message) []*active {
	if !r.some.Load() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var hits []*active
	r.list = slices.DeleteFunc(r.list, func(a *active) bool {
		if !a.covers(m) {
			return false
		}
		a.seen++
		if a.seen < cmp.Or(a.Nth, 1) {
			return false
		}
		hits = append(hits, a)
		return !a.Every
	})
	slices.SortStableFunc(hits, func(a, b *active) int { return cmp.Compare(a.Where, b.Where) })
	return hits
}

func (a *active) covers(m *Message) bool {
	return a.Direction == m.Direction && (a.Type == "" || a.Type == m.Type || a.Type == m.Inner || a.Type == m.Innermost) &&
		bytes.Contains(m.body, []byte(a.Contains))
}

// fire is what the writing goroutine calls at the rule's place.
func (a *active) fire(m Message) func() {
	m.body = nil // belongs to the reader's buffer
	return func() {
		if a.Then != nil {
			a.Then(m)
		}
		a.once.Do(func() { close(a.fired) })
	}
}

// keepServer holds the server's side of a link open until the relay is closed.
func (r *Relay) keepServer(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		reset(l.server)
		return
	}
	r.orphans = append(r.orphans, l.server)
}

// resetOrphans ends what keepServer held.
func (r *Relay) resetOrphans() {
	r.mu.Lock()
	orphans := r.orphans
	r.orphans = nil
	r.mu.Unlock()
	for _, c := range orphans {
		reset(c)
	}
}

package pgtest

import (
	"fmt"
	"io"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Direction is the way a message travels through a relay.
type Direction int

// The two directions.
const (
	ToServer Direction = iota
	ToClient
)

func (d Direction) String() string { return [...]string{"to server", "to client"}[d] }

// Relay listens on a port of its own and passes every byte on to one server and back. It knows where messages begin
// and end, so it can do harm at an exact place. TLS is declined, cancel requests are passed on.
type Relay struct {
	listener net.Listener
	wait     sync.WaitGroup
	counts   atomic.Pointer[counts]
	rules    rules
	delay    [2]atomic.Int64 // nanoseconds
	gates    [2]gate
	refuse   atomic.Bool

	prints   atomic.Bool // spares the lock while nothing is printed
	printing sync.Mutex
	print    io.Writer

	mu     sync.Mutex
	target string
	links  map[*link]struct{}
	closed bool

	orphans []*net.TCPConn // server connections whose client was reset alone
}

// NewRelay puts a relay before a server (host:port) until the test ends.
func NewRelay(t testing.TB, target string) *Relay {
	t.Helper()
	r, err := ListenRelay(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// ListenRelay puts a relay before a server (host:port) until it is closed.
func ListenRelay(target string) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay before %s: %w", target, err)
	}
	r := &Relay{listener: listener, target: target, links: map[*link]struct{}{}}
	r.ResetCounts()
	r.wait.Go(r.accept)
	return r, nil
}

// Addr is where the relay listens, as host:port.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// SetTarget sends connections made from now on to another server.
func (r *Relay) SetTarget(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

// Print writes one line for each message from now on: type, size, what it is about, never a value. nil ends it.
func (r *Relay) Print(w io.Writer) {
	r.printing.Lock()
	defer r.printing.Unlock()
	r.print = w
	r.prints.Store(w != nil)
}

// Delay makes every byte in one direction arrive later by d. Bytes follow each other as closely as before, so the
// throughput stays.
func (r *Relay) Delay(direction Direction, d time.Duration) { r.delay[direction].Store(int64(d)) }

// Stall stops passing on in one direction, on all connections and without closing any, until Resume.
func (r *Relay) Stall(direction Direction) { r.gates[direction].shut() }

// Resume ends every stall in one direction, also those that rules began.
func (r *Relay) Resume(direction Direction) {
	r.gates[direction].open()
	for l := range r.open() {
		l.gates[direction].open()
	}
}

// Refuse resets new connections at once while on is true.
func (r *Relay) Refuse(on bool) { r.refuse.Store(on) }

// Cut resets every connection that is open.
func (r *Relay) Cut() {
	for l := range r.open() {
		l.end(Reset)
	}
}

// Close resets every connection and ends the relay.
func (r *Relay) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	_ = r.listener.Close()
	r.Cut()
	r.resetOrphans()
	r.wait.Wait()
}

// open is the set of connections at this moment.
func (r *Relay) open() map[*link]struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.links)
}

func (r *Relay) accept() {
	for number := 1; ; number++ {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		if r.refuse.Load() {
			reset(client)
			continue
		}
		r.wait.Go(func() { r.serve(client.(*net.TCPConn), number) })
	}
}

const dialLimit = 10 * time.Second

// serve passes one connection on until it ends.
func (r *Relay) serve(client *net.TCPConn, number int) {
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, dialLimit)
	if err != nil {
		reset(client)
		return
	}
	l := newLink(r, number, client, server.(*net.TCPConn))
	if !r.enter(l) {
		l.end(Reset)
		return
	}
	r.counts.Load().connections.Add(1)
	l.run()
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
}

// enter makes a connection known; it is too late once the relay is closed.
func (r *Relay) enter(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.links[l] = struct{}{}
	}
	return !r.closed
}

// reset ends a connection so that its peer reads ECONNRESET.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// gate lets everybody through until it is shut.
type gate struct {
	mu     sync.Mutex
	closed chan struct{} // nil while open; closing it lets the waiting ones go
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// pass waits while the gate is shut; false means that done came first.
func (g *gate) pass(done <-chan struct{}) bool {
	for {
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		if closed == nil {
			return true
		}
		select {
		case <-closed:
		case <-done:
			return false
		}
	}
}

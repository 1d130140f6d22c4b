package pg

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// Known is what all who open sessions to a shard know of it together: which system its nodes must be of, which of them
// leads, and which sessions are open. The zero value expects nothing.
type Known struct {
	mu     sync.Mutex
	system string // system identifier and database: 7421…/prod
	leader string
	open   map[*wire]struct{}
}

// Expect names the system identifier and database, "7421…/prod", that every node must have from now on.
func (k *Known) Expect(system string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.system = system
}

// Leader is the node, as host:port, that led when that was last asked; empty before.
func (k *Known) Leader() string {
	if k == nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leader
}

func (k *Known) expected() string {
	if k == nil {
		return ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.system
}

// leads notes which node leads, by its address and by when it was started, nobody where both are empty, and ends every
// session to another server, whatever its address: an address may have moved with the lead.
func (k *Known) leads(node, started string) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leader = node
	for w := range k.open {
		if w.started != "" && w.started != started {
			delete(k.open, w)
			_ = w.Conn.Close() // whoever reads or writes there sees the connection broken
		}
	}
}

// wire is a network connection that is known to be open.
type wire struct {
	net.Conn
	known   *Known
	started string // when the server at its other end was; empty until it has said so. known.mu guards it
}

// Close ends it and forgets it.
func (w *wire) Close() error {
	w.known.mu.Lock()
	delete(w.known.open, w)
	w.known.mu.Unlock()
	return w.Conn.Close()
}

// leadsTo notes which server a session is with.
func (k *Known) leadsTo(conn net.Conn, started string) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if w, ok := conn.(*wire); ok {
		k.mu.Lock()
		defer k.mu.Unlock()
		w.started = started
	}
}

// dialing makes connections known.
func (k *Known) dialing(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w := &wire{Conn: conn, known: k}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.open == nil {
			k.open = map[*wire]struct{}{}
		}
		k.open[w] = struct{}{}
		return w, nil
	}
}

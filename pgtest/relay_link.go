package pgtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client connection and its server connection. In each direction one goroutine reads messages and queues
// parcels of bytes, another writes each parcel when its time has come: so a delay does not slow the flow.
type link struct {
	relay    *Relay
	number   int
	client   *net.TCPConn
	server   *net.TCPConn
	gates    [2]gate
	awaiting atomic.Bool // the client has asked for an answer that has not begun yet
	copyBoth atomic.Bool // replication: CopyData carries a message of its own
	done     chan struct{}
	once     sync.Once
}

func newLink(r *Relay, number int, client, server *net.TCPConn) *link {
	return &link{relay: r, number: number, client: client, server: server, done: make(chan struct{})}
}

// run passes on until both sides have ended.
func (l *link) run() {
	clientReader := bufio.NewReaderSize(l.client, readBuffer)
	first, err := l.start(clientReader)
	if err != nil || first == nil {
		l.end(Close)
		return
	}
	var wait sync.WaitGroup
	for _, p := range []*pump{
		{link: l, direction: ToServer, from: clientReader, to: l.server, batch: first},
		{link: l, direction: ToClient, from: bufio.NewReaderSize(l.server, readBuffer), to: l.client},
	} {
		p.queue = make(chan parcel, queueLength)
		wait.Go(p.read)
		wait.Go(p.write)
	}
	wait.Wait()
	l.end(Close)
}

// The codes that stand in place of a version in the first packet (PostgreSQL documentation, "Message Formats").
const (
	sslRequest    = 80877103
	gssRequest    = 80877104
	cancelRequest = 80877102
)

// start reads the packets that have no type. It declines encryption and returns the startup packet; for a cancel
// request, which it passes on itself, it returns nil.
func (l *link) start(from *bufio.Reader) ([]byte, error) {
	for {
		head, err := from.Peek(8)
		if err != nil {
			return nil, err
		}
		packet := make([]byte, binary.BigEndian.Uint32(head))
		if len(packet) < 8 || len(packet) > headBytes {
			return nil, errors.New("not a startup packet")
		}
		code := binary.BigEndian.Uint32(head[4:])
		if _, err := io.ReadFull(from, packet); err != nil {
			return nil, err
		}
		switch code {
		case sslRequest, gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		case cancelRequest:
			l.relay.observe(l, &Message{Direction: ToServer, Type: startupTypes[1], startup: 1, Size: len(packet)})
			if _, err := l.server.Write(packet); err != nil {
				return nil, err
			}
			_, err := io.Copy(io.Discard, l.server) // the server closes when it has acted
			return nil, err
		default:
			l.awaiting.Store(true)
			l.relay.observe(l, &Message{Direction: ToServer, Type: startupTypes[0], Size: len(packet)})
			return packet, nil
		}
	}
}

// end breaks the connection once.
func (l *link) end(how Action) {
	l.once.Do(func() {
		close(l.done)
		switch how {
		case ResetClient:
			reset(l.client)
			l.relay.keepServer(l)
		case Close:
			_ = l.client.Close()
			_ = l.server.Close()
		default:
			reset(l.client)
			reset(l.server)
		}
	})
}

// sleep waits; false means that the link has ended.
func (l *link) sleep(d time.Duration) bool {
	if d <= 0 {
		return !l.ended()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

func (l *link) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

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

// parcel is a run of bytes, at whose end something may happen.
type parcel struct {
	data   []byte
	due    time.Time
	action Action
	then   func()
	last   bool // the sender has ended its side
}

const (
	readBuffer  = 256 << 10
	parcelBytes = 64 << 10
	queueLength = 512      // parcels in flight per direction: 32 MB at most
	headBytes   = 16 << 10 // of a message, for rules and descriptions
)

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
			l.relay.observe(l, &Message{Direction: ToServer, Type: "CancelRequest", Size: len(packet)})
			if _, err := l.server.Write(packet); err != nil {
				return nil, err
			}
			_, err := io.Copy(io.Discard, l.server) // the server closes when it has acted
			return nil, err
		default:
			l.awaiting.Store(true)
			l.relay.observe(l, &Message{Direction: ToServer, Type: "StartupMessage", Size: len(packet)})
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

// pump is one direction of a link.
type pump struct {
	link      *link
	direction Direction
	from      *bufio.Reader
	to        *net.TCPConn
	queue     chan parcel
	batch     []byte
}

// read takes whole messages in and queues them; what a rule wants is queued at its exact place.
func (p *pump) read() {
	defer close(p.queue)
	for {
		m, err := p.next()
		if err != nil {
			_ = p.pass(&Message{}, p.from.Buffered()) // what there is of a message that broke off
			p.send(parcel{last: true, action: brokenBy(err)})
			return
		}
		p.link.relay.observe(p.link, m)
		for _, hit := range p.link.relay.rules.match(m) {
			cut := [...]int{Before: 0, Inside: m.Size / 2, After: m.Size}[hit.Where] - m.passed
			if p.pass(m, cut) != nil || !p.send(parcel{action: hit.Do, then: hit.fire(*m)}) {
				return
			}
		}
		if err := p.pass(m, m.Size-m.passed); err != nil {
			p.send(parcel{last: true, action: Reset})
			return
		}
	}
}

// brokenBy says how to treat the other side when this side's reading ended.
func brokenBy(err error) Action {
	if errors.Is(err, io.EOF) {
		return Nothing
	}
	return Reset
}

// next looks at the head of the next message without taking it.
func (p *pump) next() (*Message, error) {
	head, err := p.peek(5)
	if err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(head[1:]))
	if length < 4 || length > 1<<30 {
		return nil, errors.New("not a message")
	}
	size := 1 + length
	head, err = p.peek(min(size, headBytes))
	if err != nil {
		return nil, err
	}
	return p.link.identify(p.direction, head[0], head[5:], size), nil
}

// peek queues what was gathered before it waits for the sender.
func (p *pump) peek(n int) ([]byte, error) {
	if p.from.Buffered() < n && !p.flush() {
		return nil, net.ErrClosed
	}
	return p.from.Peek(n)
}

// pass takes n bytes of a message into the batch.
func (p *pump) pass(m *Message, n int) error {
	m.passed += n
	for n > 0 {
		if len(p.batch) == cap(p.batch) || p.from.Buffered() == 0 {
			if !p.flush() {
				return net.ErrClosed
			}
			p.batch = make([]byte, 0, min(parcelBytes, max(p.from.Buffered(), 512)))
		}
		room := p.batch[len(p.batch):min(cap(p.batch), len(p.batch)+n)]
		got, err := p.from.Read(room)
		p.batch = p.batch[:len(p.batch)+got]
		if n -= got; err != nil {
			return err
		}
	}
	return nil
}

// flush queues the batch; false means that the link has ended.
func (p *pump) flush() bool { return len(p.batch) == 0 || p.send(parcel{}) }

// send queues the batch with what comes after it.
func (p *pump) send(after parcel) bool {
	after.data, p.batch = p.batch, nil
	after.due = time.Now().Add(time.Duration(p.link.relay.delay[p.direction].Load()))
	select {
	case p.queue <- after:
		return true
	case <-p.link.done:
		return false
	}
}

// write sends each parcel on when it is due and no stall is on.
func (p *pump) write() {
	l := p.link
	for parcel := range p.queue {
		if !l.sleep(time.Until(parcel.due)) || !l.relay.gates[p.direction].pass(l.done) || !l.gates[p.direction].pass(l.done) {
			continue // the link has ended: let the reader go
		}
		if _, err := p.to.Write(parcel.data); err != nil {
			l.end(Reset)
			continue
		}
		if parcel.action != Nothing {
			awaitSent(p.to)
		}
		if parcel.then != nil {
			parcel.then()
		}
		switch {
		case parcel.action == Stall:
			l.gates[p.direction].shut()
		case parcel.action != Nothing:
			l.end(parcel.action)
		case parcel.last:
			_ = p.to.CloseWrite()
		}
	}
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

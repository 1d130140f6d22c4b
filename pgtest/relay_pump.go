package pgtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"
)

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

// pump is one direction of a link.
type pump struct {
	link      *link
	direction Direction
	from      *bufio.Reader
	to        *net.TCPConn
	queue     chan parcel
	batch     []byte
	message   Message // the one being read
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
	p.message = p.link.identify(p.direction, head[0], head[5:], size)
	return &p.message, nil
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

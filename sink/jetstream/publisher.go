package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"
)

const (
	requestWait = 5 * time.Second
	ackWait     = 30 * time.Second // for the oldest message that is not acknowledged
	inFlight    = 8 << 20          // bytes sent and not acknowledged
	mostSent    = 2000             // messages
	headerRoom  = 1 << 10          // of a message's payload, for its headers
)

// wrongLastMsgID is JSStreamWrongLastMsgIDErrF of the server.
const wrongLastMsgID = 10070

// ErrDisturbed means that somebody else has written to the stream, or that it had a message already: what was sent behind it
// was refused. Where the stream is now must be asked anew.
var ErrDisturbed = errors.New("the stream is not where it was expected to be")

// Publisher sends messages to a move's stream, many before the first is acknowledged. The first names the sequence number that
// the stream must be at, each other one the message that must be its last: so none is stored where one before it was not, and
// none of a worker that was superseded. (Numbers alone would not do: a message of somebody else takes the refused one's.)
type Publisher struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	name   string
	limit  int // bytes of data in a message
	room   *semaphore.Weighted

	mu     sync.Mutex // held while a message is sent
	begins uint64     // sequence number of the stream's last message before ours
	last   string     // Msg-Id of the last message that was sent, empty before the first

	sent   chan sent
	failed chan error    // why a message could not be sent
	ended  chan struct{} // closed when Run has ended
}

// sent is a message on its way, or, without an ack to wait for, something to be done when those before it are stored.
type sent struct {
	ack   jetstream.PubAckFuture
	bytes int64
	then  func()
}

// Open readies the stream of a move, which is made where there is none. Nothing is sent before Run runs.
func Open(ctx context.Context, conn *nats.Conn, move string) (*Publisher, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	p := &Publisher{name: StreamName(move), room: semaphore.NewWeighted(inFlight), sent: make(chan sent, mostSent), failed: make(chan error, 1), ended: make(chan struct{})}
	var err error
	if p.js, err = jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(2*mostSent)); err != nil {
		return nil, fmt.Errorf("NATS: %w", err)
	}
	p.stream, err = p.js.Stream(ctx, p.name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		p.stream, err = p.js.CreateStream(ctx, jetstream.StreamConfig{Name: p.name, Description: "changes of move " + move, Subjects: []string{Subjects(move)}})
	}
	if err != nil {
		return nil, fmt.Errorf("NATS stream %s: %w", p.name, err)
	}
	info := p.stream.CachedInfo()
	p.begins, p.limit = info.State.LastSeq, int(conn.MaxPayload())
	if most := int(info.Config.MaxMsgSize); most > 0 {
		p.limit = min(p.limit, most)
	}
	if p.limit -= headerRoom; p.limit < headerRoom {
		return nil, fmt.Errorf("NATS stream %s takes messages of %d bytes only; hint: max_payload of the server and max_msg_size of the stream must be at least %d", p.name, p.limit+headerRoom, 2*headerRoom)
	}
	return p, nil
}

// Published is how far a feed was published, as the stream has it; the zero Mark where it has nothing of it.
func (p *Publisher) Published(ctx context.Context, o *Origin) (Mark, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	last, err := p.stream.GetLastMsgForSubject(ctx, fmt.Sprintf("pgreshard.%s.cdc.*.*.%d", o.Move, o.Shard))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Mark{}, nil
	}
	if err != nil {
		return Mark{}, fmt.Errorf("read the last message of NATS stream %s: %w", p.name, err)
	}
	m, _ := o.markOf(last.Header)
	return m, nil
}

// publish sends a message and does then once it is stored. It waits while too much is on its way.
func (p *Publisher) publish(ctx context.Context, msg *nats.Msg, then func()) error {
	bytes := min(int64(len(msg.Data)+headerRoom), inFlight)
	if err := p.room.Acquire(ctx, bytes); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	behind := jetstream.WithExpectLastSequence(p.begins)
	if p.last != "" {
		behind = jetstream.WithExpectLastMsgID(p.last)
	}
	ack, err := p.js.PublishMsgAsync(msg, jetstream.WithExpectStream(p.name), behind)
	if err != nil { // as while the connection is broken
		select {
		case p.failed <- err:
		default:
		}
		return errEnded
	}
	p.last = msg.Header.Get(jetstream.MsgIDHeader)
	return p.note(sent{ack, bytes, then})
}

// after does something once all that was sent before is stored.
func (p *Publisher) after(then func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.note(sent{then: then})
}

// stored waits until all that was sent before is stored.
func (p *Publisher) stored(ctx context.Context) error {
	all := make(chan struct{})
	if err := p.after(func() { close(all) }); err != nil {
		return err
	}
	select {
	case <-all:
		return nil
	case <-p.ended:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errEnded = errors.New("the publisher has ended")

// note never waits for longer than Run runs.
func (p *Publisher) note(s sent) error {
	select {
	case p.sent <- s:
		return nil
	case <-p.ended:
		return errEnded
	}
}

// Run waits for the acknowledgements, in their order, until ctx ends or one does not come. What was sent behind that one is
// refused by the stream.
func (p *Publisher) Run(ctx context.Context) error {
	defer close(p.ended)
	defer p.js.CleanupPublisher()
	patience := time.NewTimer(ackWait)
	defer patience.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-p.failed:
			return fmt.Errorf("publish to NATS stream %s: %w", p.name, err)
		case s := <-p.sent:
			if s.ack == nil {
				s.then()
				continue
			}
			patience.Reset(ackWait)
			if err := p.await(ctx, s, patience.C); err != nil {
				return fmt.Errorf("publish to NATS stream %s: %w", p.name, err)
			}
		}
	}
}

func (p *Publisher) await(ctx context.Context, s sent, patience <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-patience:
		return fmt.Errorf("no answer for %s", ackWait)
	case err := <-s.ack.Err():
		if api, ok := errors.AsType[*jetstream.APIError](err); ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongLastMsgID) {
			return fmt.Errorf("%w: %w", ErrDisturbed, err)
		}
		return err
	case ack := <-s.ack.Ok():
		s.then()
		p.room.Release(s.bytes)
		if ack.Duplicate { // what was sent behind it is refused
			return fmt.Errorf("%w: it has a message already, as number %d", ErrDisturbed, ack.Sequence)
		}
		return nil
	}
}

package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// ErrReread means that the stream is to be read again from the lowest checkpoint: nothing is wrong and nothing is lost,
// rows turned out to have moved in a way that must be asked for row by row, which the next Run does.
var ErrReread = errors.New("the stream is to be read again from the lowest checkpoint")

// ErrRemapped means that rows are to move because their mapping was changed, which with several sources only a stream may do
// that runs alone.
var ErrRemapped = errors.New("a mapping was changed, and rows are to move with it")

// MessagePrefix marks our own messages in the log (pg_logical_emit_message). One of them makes every shard commit at
// once, rows or not.
const MessagePrefix = "pgreshard"

// Stream writes one source's changes to every shard. Its fields are set before Run and not changed after.
type Stream struct {
	Checkpoint checkpoints.Stream
	Source     pg.Shard // asked only for rows a resumed copy left incomplete
	Shards     []pg.Shard
	Router     Router
	// Tables finds how a relation of the source (a leaf, or an ordinary table) is written, by its OID.
	Tables map[uint32]*Table
	// Leaves tells, by the leaf's OID, the destination's table to empty when a leaf is truncated alone.
	Leaves map[uint32]pg.Name
	// Mine says whether the source layout places a row with this key (Table.SourceKey) on this source; nil where there is
	// but one.
	Mine func(t *Table, key []pg.Datum) (bool, error)
	// Alone says that, where there are several sources, no other's stream runs, and that what each has written is the same on
	// every shard: only then may rows move with their mappings.
	Alone bool
	// Level says that nothing is read but what some shard has committed in runs that moved no rows with their mappings.
	Level bool
	// Settle waits until the other sources' streams that carry the table's mapping have passed the positions their sources
	// have now: a key without mapping at the end of its transaction is asked once more then. nil where there is one source.
	Settle func(ctx context.Context, t *Table) error
	// Now asks the sources, as they are now, for translations; nil: Source.
	Now func(ctx context.Context, t *Table, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error)
	// Unmapped is shared by the streams of all sources.
	Unmapped *Unmapped
	// Forgive records on every shard that a table forgives up to a position, before a row read there is written.
	Forgive func(ctx context.Context, t *Table, until pg.LSN) error
	// StopAt ends the stream in order before the first transaction that commits at or after it: every shard then holds
	// exactly what was committed before. 0: it goes on.
	StopAt pg.LSN
	// Confirm is told the position every shard has committed, whenever it grew.
	Confirm func(pg.LSN)
	// Standbys has Confirm told, where a shard has streaming standbys, only what one of them has flushed too.
	Standbys bool
	// Away is told of a shard that was lost, and why; the others go on until it is back. nil: nobody is.
	Away       func(shard layout.Shard, err error)
	BatchBytes int // most that one destination transaction gathers; 0: 4 MB
	// BatchDelay is the longest a shard goes on gathering changes that come without a pause; 0: 50 ms.
	BatchDelay time.Duration
	AppName    string

	beforeCommit func(ctx context.Context, shard layout.Shard, end pg.LSN) error // tests stop a shard there; nil otherwise

	ran        bool
	pauses     chan *Paused
	batchBytes int
	batchDelay time.Duration
	appliers   []*applier
	gate       *gate
	counters   counters
	careful    map[*Table]care
	applied    atomic.Uint64
	stopped    atomic.Bool  // at StopAt
	moved      atomic.Int64 // Unix nanoseconds when applied last grew
}

// NewStream readies the counters; the exported fields are the caller's to set.
func NewStream(shards []pg.Shard) *Stream {
	return &Stream{Shards: shards, counters: counters{shards: make([]shardCounters, len(shards))}, careful: map[*Table]care{}, pauses: make(chan *Paused), Unmapped: &Unmapped{}}
}

// care is how far a table is asked row by row, because a row was not where its new key places it.
type care struct {
	end    pg.LSN
	window pg.LSN // bytes of log
}

// together says that other sources' streams run, so that no mapping may change now.
func (s *Stream) together() bool { return s.Mine != nil && !s.Alone && !s.Level }

// firstCare is how much log is read with care after a row has moved. Where the next one moves soon after that, it is
// four times as much, so that a table whose rows move all the time is not begun again for each.
const firstCare pg.LSN = 1 << 20

func (c care) until(at pg.LSN) care {
	window := firstCare
	if c.window > 0 && at <= c.end+8*c.window {
		window = min(4*c.window, 1<<40)
	}
	return care{end: at + window, window: window}
}

// isCareful says that a table's rows are asked for one by one in the open transaction.
func (r *router) isCareful(t *Table) bool { return r.tx.Commit <= r.careful[t].end }

// Applied is the position every shard has committed, 0 before the first Run has read the checkpoints.
func (s *Stream) Applied() pg.LSN { return pg.LSN(s.applied.Load()) }

// Stopped says that the last Run came to StopAt, and did not end because there were no more blocks.
func (s *Stream) Stopped() bool { return s.stopped.Load() }

// Run takes blocks until the channel is closed (then it commits what is whole and returns nil), until ctx ends, or until
// anything fails. Where a shard is lost, the failure waits until the shard is there again, and the others go on so long. release is called for each block when nothing refers to it any more. It may be run again with blocks
// from a stream started at or before Applied; transactions a shard already has are skipped there.
func (s *Stream) Run(ctx context.Context, blocks <-chan *pg.Block, release func(*pg.Block)) error {
	s.batchBytes = cmp.Or(s.BatchBytes, 4<<20)
	s.batchDelay = cmp.Or(s.BatchDelay, 50*time.Millisecond)
	s.gate = newGate(len(s.Shards))
	s.stopped.Store(false)
	s.forgetFuture()
	err := s.connect(ctx)
	if err == nil {
		s.applied.Store(s.lowest()) // a shard that failed over may have less than the run before had seen
		s.committed()
		err = s.apply(ctx, blocks, release)
	}
	s.disconnect()
	var again *carefulError
	if errors.As(err, &again) {
		s.careful[again.table] = s.careful[again.table].until(again.at)
		return ErrReread
	}
	return s.overtaken(ctx, err)
}

// forgetFuture drops translations the run before learnt from transactions that are now to come again.
func (s *Stream) forgetFuture() {
	if s.ran {
		for _, t := range s.Tables {
			if !t.fixed() {
				s.Router.Lookups.Forget(t.Query)
			}
		}
	}
	s.ran = true
}

// apply writes until the blocks end, and looks at the shards' standbys as long.
func (s *Stream) apply(ctx context.Context, blocks <-chan *pg.Block, release func(*pg.Block)) error {
	g, ctx := errgroup.WithContext(ctx)
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if s.Standbys {
		for _, a := range s.appliers {
			g.Go(func() error { return a.watchStandbys(watching) })
		}
	}
	g.Go(func() error {
		defer stop()
		return s.write(ctx, blocks, release)
	})
	return g.Wait()
}

// write runs the router and an applier a shard until all have ended.
func (s *Stream) write(ctx context.Context, blocks <-chan *pg.Block, release func(*pg.Block)) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, a := range s.appliers {
		g.Go(func() error {
			if err := a.run(ctx); err != nil {
				return fmt.Errorf("apply source %d to %s: %w", s.Checkpoint.Source, a.shard, err)
			}
			return nil
		})
	}
	g.Go(func() error { return newRouter(s, release).run(ctx, blocks) })
	return g.Wait()
}

// overtaken says what a row that was not as expected means where a checkpoint moved under this run: an older
// connection's backend committed after all what this run then tried to write again.
func (s *Stream) overtaken(ctx context.Context, err error) error {
	var diverged *DivergedError
	if !errors.As(err, &diverged) {
		return err
	}
	for _, a := range s.appliers {
		conn, opened := pg.Open(ctx, s.Shards[a.shard], pg.Writer, s.AppName)
		if opened != nil {
			return opened // whether it diverged is not known
		}
		at, locked := s.Checkpoint.Lock(ctx, conn)
		pg.Close(conn)
		switch {
		case locked != nil:
			return locked
		case at != a.at:
			return fmt.Errorf("%w: %s is at %s, not at %s (%w)", checkpoints.ErrPositionMoved, a.shard, at, a.at, err)
		}
	}
	return err
}

// connect opens each shard and waits there until no older connection's transaction can move the checkpoint any more.
func (s *Stream) connect(ctx context.Context) error {
	s.appliers = nil
	for i, shard := range s.Shards {
		conn, err := pg.Open(ctx, shard, pg.Writer, s.AppName)
		if err != nil {
			return err
		}
		a := &applier{stream: s, shard: layout.Shard(i), conn: conn, queue: make(chan unit, 8), emptied: make(chan []op, 8), gone: make(chan error, 1), prepared: map[string]string{}, last: time.Now()}
		s.appliers = append(s.appliers, a)
		if _, err := conn.Exec(ctx, plannerSettings); err != nil {
			return err
		}
		if a.at, err = s.Checkpoint.Lock(ctx, conn); err != nil {
			return err
		}
		if err := s.Checkpoint.UnmappedKeys(ctx, conn, s.Unmapped.add); err != nil {
			return err
		}
		a.durable.Store(uint64(a.at))
		a.ahead = a.at
		a.secured = &secured{shard: a}
		if s.Standbys { // before anything is confirmed
			if err := a.secured.ask(ctx, conn); err != nil {
				return err
			}
		}
	}
	return nil
}

// plannerSettings keep a plan made while a table was small, or never analysed, from scanning it whole when it is large.
const plannerSettings = `set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off`

func (s *Stream) disconnect() {
	for _, a := range s.appliers {
		pg.Close(a.conn)
	}
}

// lowest is the checkpoint every shard has committed.
func (s *Stream) lowest() uint64 {
	low := ^uint64(0)
	for _, a := range s.appliers {
		low = min(low, a.durable.Load())
	}
	return low
}

// committed is called by every applier after a commit, and when a standby has got further.
func (s *Stream) committed() {
	low, safe := s.lowest(), ^uint64(0)
	for _, a := range s.appliers {
		safe = min(safe, a.safe())
	}
	for {
		was := s.applied.Load()
		if low <= was {
			break
		}
		if s.applied.CompareAndSwap(was, low) {
			s.moved.Store(time.Now().UnixNano())
			break
		}
	}
	if s.Confirm != nil {
		s.Confirm(pg.LSN(safe))
	}
}

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/copier"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
	"pgreshard/verify"
)

// Move is one move. Make it with New; one goroutine runs one of its verbs at a time, Snapshot may be called by any.
type Move struct {
	Config
	log      *slog.Logger
	sessions sessions
	spares   spares
	router   sink.Router
	unmapped sink.Unmapped
	book     checkpoints.Book
	resumed  bool // an earlier worker got the move to its present state, and may have died within it
	// returning: this run has found a rollback to be brought to its end, with which it ends itself, however often it is
	// interrupted: to go on would be to cut over again, which nobody asked for.
	returning bool

	anyNode     bool                // what is only read may be read on a replica, where a leader does not answer (Check)
	forward     *Move               // of the way back (reverse.go): the move it belongs to; else nil
	requests    chan request        // of people, to the goroutine that conducts the cutover
	completes   chan completion     // of people, to the goroutine that keeps the source following after the switch
	amend       func([]step) []step // nil, but in tests: changes the recipe
	mostChanges int                 // 0, but in tests: bounds the keys of what changed
	beforeStep  func(step string)   // nil, but in tests: runs before each step of a cutover

	still     sync.Mutex           // who holds the streams still, or the sources frozen
	verifying sync.Mutex           // who compares, or cuts over
	forgiven  map[pg.Name]struct{} // tables whose rows a repair has taken as they came
	since     *changes             // what changed since then; nil before the first comparison. verifying guards it

	mu        sync.Mutex // guards what follows, for Snapshot
	state     string
	serving   int
	failure   string
	progress  []*copier.Progress // by source
	followers []*follower
	verified  VerifyStatus
	compared  map[string]int64 // rows of each table when it was last compared whole
	reading   *readingNow      // of the comparison that runs; nil: none
	witnessed *moment          // what both sides were at the switch, until it is read
	proving   *proving         // how far the last comparison of everything has come
	// stopComparing ends the comparison that somebody has asked for.
	stopComparing context.CancelFunc
	cutover       CutoverStatus
	hooks         []HookStatus // the last run of each
	reverse       *Move        // the way back, once there is one
	settled       bool         // what follows the switch is done
	lost          string       // why there is no way back any more, empty while there is
	counted       []int64      // rows each shard had written when the new layout began to serve
	cdc           *cdc         // nil where nothing is published
	steps         []StepReport // of the last cutover
	health        health
	rates         rates
}

// New makes a Move; nothing is connected or changed before a verb runs.
func New(c Config, log *slog.Logger) *Move {
	for side, s := range map[string]*Side{"source": &c.Source, "destination": &c.Destination} {
		s.Shards = named(side, s.Shards)
		s.Replicas = replicasOf(s)
	}
	m := &Move{Config: c, log: log, router: sink.Router{Lookups: lookup.New(c.LookupBytes)}, serving: c.Source.Layout,
		requests: make(chan request), completes: make(chan completion)}
	m.verified.State = "none"
	return m
}

// named gives a side's shards the names of messages, and each a memory of its nodes.
func named(side string, shards []pg.Shard) (out []pg.Shard) {
	for n, s := range shards {
		out = append(out, pg.Shard{Side: side, Number: n, URL: s.URL, Known: new(pg.Known)})
	}
	return out
}

// replicasOf are a side's replicas, of which is known what is known of their shards.
func replicasOf(side *Side) (out [][]pg.Shard) {
	for n, replicas := range side.Replicas {
		var list []pg.Shard
		for _, r := range replicas {
			of := side.Shards[n]
			of.URL = r.URL
			list = append(list, of)
		}
		out = append(out, list)
	}
	return out
}

// Close ends every session.
func (m *Move) Close() {
	m.endReverse()
	m.sessions.close()
	m.spares.close()
}

// stream keys one source's bookkeeping on the shards.
func (m *Move) stream(source int) checkpoints.Stream {
	name := m.Name
	if m.forward != nil {
		name += reverseStreams
	}
	return checkpoints.Stream{Move: name, Source: source, Epoch: m.book.Epoch}
}

// MigrateOptions is what the command line adds.
type MigrateOptions struct {
	// Ready is called once everything is copied, caught up and about to be cut over; it may wait. nil: go on at once.
	// Not going on (false) leaves the move streaming until Cutover is called or ctx ends, which then is Migrate's error.
	Ready func(context.Context) (bool, error)
	// Serve: nothing ends but by being asked for. A move that has switched waits for its completion also where the old layout
	// does not follow, and after a rollback the source is followed again.
	Serve bool
	CDC   *CDC // nil: nothing is published

	forgives bool // it runs for a repair (RepairStopped)
}

// Migrate takes the move to its end, from wherever it is. What can be tried again is tried again; everything else
// ends it with the state kept, so that the same call goes on later.
func (m *Move) Migrate(ctx context.Context, o MigrateOptions) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	return m.whileHeld(ctx, func(ctx context.Context) error {
		whole, stop := context.WithCancelCause(ctx)
		var beside sync.WaitGroup
		beside.Go(func() { m.watchNodes(whole, stop) })
		err := m.retry(whole, func(ctx context.Context) error {
			if m.publishing() == nil {
				publisher, err := m.newCDC(ctx, o.CDC)
				if err != nil {
					return err
				}
				if publisher != nil {
					beside.Go(func() { publisher.run(whole) })
				}
			}
			if m.publishesOnly() {
				return m.publishOnly(ctx)
			}
			return m.advance(ctx, o)
		})
		if err == nil && !o.Serve && m.publishing() != nil {
			m.log.Warn("changes go on to be published once `pgreshard serve` runs; meanwhile the slots keep the log")
		}
		if err == nil && o.Serve && o.CDC != nil { // what the layout that serves commits goes on to be published
			<-whole.Done()
			err = whole.Err()
		}
		var over *BudgetError
		if errors.As(context.Cause(whole), &over) {
			err = m.giveUp(ctx, over)
		}
		err = m.hidden(err)
		m.recordFailure(ctx, err)
		m.leaveAccount(ctx)
		m.dropWitness()
		stop(nil)
		beside.Wait()
		return err
	})
}

// begin makes this process the move's one worker: plan if the move is new, bookkeeping on every node, the lease, and
// a new epoch everywhere.
func (m *Move) begin(ctx context.Context) error {
	err := m.takeUp(ctx)
	var other *pg.OtherSystemError
	if errors.As(err, &other) {
		return fmt.Errorf("%w: %w", ErrChangedConfig, err)
	}
	return err
}

func (m *Move) takeUp(ctx context.Context) error {
	known, err := m.find(ctx)
	if known == nil { // or not known because its home cannot be asked: a plan tells why, and all else that is wrong
		if blocked := m.mayStart(ctx); blocked != nil {
			return blocked
		}
		if err != nil {
			return err
		}
	} else if err := m.expect(known.Spec); err != nil {
		return err
	}
	if known != nil && known.State == StateCancelled {
		return ErrCancelled
	}
	if err := m.nodes(ctx, checkpoints.Install); err != nil {
		return err
	}
	if err := m.takeOver(ctx, m.allNodes()); err != nil {
		return err
	}
	if known == nil {
		spec, err := m.recordedSpec(ctx)
		if err != nil {
			return err
		}
		state := StateCreated
		if m.publishesOnly() {
			state = StateStreaming
		}
		if err := m.home(ctx, func(conn *pgx.Conn) error { return m.book.Start(ctx, conn, state, spec) }); err != nil {
			return err
		}
	}
	if known, err = m.find(ctx); err != nil {
		return err
	}
	if known == nil {
		return ErrNoMove
	}
	m.resumed, m.returning = known.State != StateCreated, false
	m.setState(known.State)
	if serving, err := m.readServing(ctx); err != nil {
		return err
	} else if serving != 0 {
		m.setServing(serving)
	}
	if err := m.lastVerified(ctx); err != nil {
		return err
	}
	if err := m.sameSpec(ctx, known.Spec); err != nil {
		return err
	}
	return m.expect(known.Spec)
}

// expect holds every session from now on to the databases the move was made with.
func (m *Move) expect(spec json.RawMessage) error {
	var r recorded
	if err := json.Unmarshal(spec, &r); err != nil {
		return err
	}
	for i, shard := range slices.Concat(m.Source.Shards, m.Destination.Shards) {
		if i < len(r.Systems) { // else sameSpec refuses it
			shard.Known.Expect(r.Systems[i])
		}
	}
	return nil
}

func (m *Move) find(ctx context.Context) (known *checkpoints.Move, err error) {
	err = m.home(ctx, func(conn *pgx.Conn) error {
		known, err = checkpoints.FindMove(ctx, conn, m.Name)
		return err
	})
	return known, err
}

// hiddenKeyError tells the key of the row that an error is of by its hash.
type hiddenKeyError struct {
	error
	key string
}

func (e *hiddenKeyError) Unwrap() error  { return e.error }
func (e *hiddenKeyError) RowKey() string { return verify.HiddenKey(e.key) }

// hidden is err as the configuration has it told.
func (m *Move) hidden(err error) error {
	var row interface{ RowKey() string }
	if m.HideKeys && errors.As(err, &row) && row.RowKey() != "" {
		return &hiddenKeyError{err, row.RowKey()}
	}
	return err
}

// recordFailure leaves what stopped the move in its record, for status, with the key of the row if it was one.
func (m *Move) recordFailure(ctx context.Context, err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, checkpoints.ErrSuperseded) {
		return
	}
	text := err.Error()
	var row interface{ RowKey() string }
	if errors.As(err, &row) && row.RowKey() != "" {
		text += " (key " + row.RowKey() + ")"
	}
	if hint := Hint(err); hint != "" {
		text += "; hint: " + hint
	}
	m.mu.Lock()
	m.failure = text
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = m.home(ctx, func(conn *pgx.Conn) error { return m.book.SetError(ctx, conn, text) })
}

// advance runs the phases from the state the move is in. Each may be run again after a kill at any point in it.
func (m *Move) advance(ctx context.Context, o MigrateOptions) error {
	phases := []struct {
		state string
		run   func(context.Context) error
		next  string
	}{
		{StateCreated, m.recordLayouts, StateSchema},
		{StateSchema, m.makeSchema, StateCopying},
		{StateCopying, m.copyTables, StateIndexing},
		{StateIndexing, m.buildIndexes, StateStreaming},
		{StateStreaming, func(ctx context.Context) error { return m.streamAndCutOver(ctx, o) }, StateSwitched},
		{StateCuttingOver, m.decideCutover, ""},
		{StateSwitched, func(ctx context.Context) error { return m.finishSwitch(ctx, o.Serve) }, ""},
		{StateRollingBack, m.decideRollback, ""},
		{StateRolledBack, m.finishRollback, ""},
	}
	for {
		state := m.currentState()
		done := true
		for _, p := range phases {
			if p.state != state {
				continue
			}
			done = false
			err := p.run(ctx)
			if errors.Is(err, errEnd) && o.Serve {
				m.endReverse() // as a worker that is started finds it
				m.returning = false
				continue
			} else if errors.Is(err, errEnd) {
				return nil
			} else if err != nil {
				return fmt.Errorf("%s: %w", p.state, err)
			}
			if p.state != StateStreaming && p.state != StateSwitched {
				if err := m.allOnStandbys(ctx); err != nil {
					return fmt.Errorf("%s: %w", p.state, err)
				}
			}
			if p.next != "" {
				if err := m.enter(ctx, p.next); err != nil {
					return err
				}
			}
		}
		if done {
			return nil
		}
	}
}

// enter records a state on the home and then takes it on.
func (m *Move) enter(ctx context.Context, state string) error {
	if err := m.home(ctx, func(conn *pgx.Conn) error { return m.book.SetState(ctx, conn, state) }); err != nil {
		return err
	}
	m.log.Info("state", "state", state)
	m.setState(state)
	m.resumed = false
	return nil
}

func (m *Move) setState(state string) {
	m.bothWays(func(m *Move) { m.state, m.failure = state, "" })
}

func (m *Move) currentState() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// follower carries one source's changes to the shards: a replicator and a sink that live and end together.
type follower struct {
	move      *Move
	inv       *inventory
	evolution *evolution
	source    int
	sink      *sink.Stream
	reader    atomic.Pointer[replicator.Stream] // of the present run
	waits     atomic.Bool                       // for other streams to bring a mapping
	behind    lagMeter
	waited    pg.LSN // commit of the transaction that last waited for the other streams
}

// newFollowers readies every source's stream: how each table is written, and what a resumed copy left it to know.
func (m *Move) newFollowers(ctx context.Context, inv *inventory, e *evolution) ([]*follower, error) {
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return nil, err
	}
	var all []*follower
	for n := range m.Source.Shards {
		tables, leaves, err := inv.sinkTables(n, dest, e)
		if err != nil {
			return nil, err
		}
		var resumed map[string]checkpoints.Resumed
		err = m.home(ctx, func(conn *pgx.Conn) (err error) {
			resumed, err = m.stream(n).ResumedTables(ctx, conn)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(m.Source.Shards) > 1 || len(resumed) > 0 { // a copy was told of mapping rows that are yet to come
			m.router.Lookups.Clear()
		}
		for _, t := range tables {
			t.Forgive, t.StartsAt = resumed[t.Source.String()].ForgiveUntil, max(t.StartsAt, resumed[t.Source.String()].StartsAt)
		}
		s := sink.NewStream(m.Destination.Shards)
		s.Checkpoint, s.Source, s.Router, s.Tables, s.Leaves = m.stream(n), m.Source.Shards[n], m.router, tables, leaves
		s.BatchBytes, s.BatchDelay, s.AppName, s.Standbys = m.BatchBytes, m.BatchDelay, m.streamApp(), m.Confirm != ConfirmLeader
		s.Away = func(shard layout.Shard, err error) {
			m.log.Warn("a shard is lost; the others go on until it is back", "source", n, "shard", int(shard), "error", oneLine(err))
		}
		s.Forgive = func(ctx context.Context, t *sink.Table, until pg.LSN) error {
			return m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
				return m.stream(n).Resume(ctx, conn, t.Source.String(), checkpoints.Resumed{ForgiveUntil: until})
			})
		}
		if len(m.Source.Shards) > 1 {
			s.Mine = func(t *sink.Table, key []pg.Datum) (bool, error) {
				return m.isOf(ctx, n, inv.byName[t.Source], t, key)
			}
			s.Now = func(ctx context.Context, t *sink.Table, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
				return m.askSources(ctx, t.AskAll, q, keys)
			}
		}
		s.Unmapped = &m.unmapped
		f := &follower{move: m, inv: inv, evolution: e, source: n, sink: s}
		if len(m.Source.Shards) > 1 {
			s.Settle = f.settle
		}
		all = append(all, f)
	}
	m.mu.Lock()
	m.followers = all
	m.mu.Unlock()
	return all, nil
}

// isOf says whether the source layout places a row on a source. Where a server must be asked before, the shards are; where
// they have no translation, because its mapping row went or is still to come, a row is another's only if another source has
// rows of its key.
func (m *Move) isOf(ctx context.Context, source int, from *moved, t *sink.Table, key []pg.Datum) (bool, error) {
	rule := from.sourceRule
	if rule.Lookup == "" && rule.HashQuery == "" {
		shard, err := rule.Place(key)
		return int(shard) == source, err
	}
	of := *t
	of.Rule, of.RuleKey, of.Query = rule, t.SourceKey, from.query
	if from.sourceQuery != nil {
		of.Query = from.sourceQuery
		if rule.Lookup != "" { // nothing tells when its answers change
			m.router.Lookups.Forget(of.Query)
		}
	}
	shard, err := m.router.Place(ctx, &of, key, destAsker{m, t})
	if lookup.Missing(err) == nil {
		return int(shard) == source, err
	}
	for n := range m.Source.Shards {
		if n == source {
			continue
		}
		var carried bool
		err := m.source(ctx, n, func(conn *pgx.Conn) (err error) {
			carried, err = of.Carries(ctx, conn, key[0])
			return err
		})
		if err != nil || carried {
			return false, err
		}
	}
	return true, nil
}

// settleTime is how long a stream that misses a mapping waits for the others; then the whole is tried again.
const settleTime = 30 * time.Second

// settle waits until the other streams that carry a table's mapping have passed where their sources are now, or wait
// themselves. An omnisharded mapping comes from the first source alone, which therefore waits for nobody.
func (f *follower) settle(ctx context.Context, t *sink.Table) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	f.waits.Store(true)
	defer f.waits.Store(false)
	m := f.move
	m.mu.Lock()
	all := m.followers
	m.mu.Unlock()
	for _, other := range all {
		if other == f || !t.AskAll && (other.source != 0 || f.source == 0) {
			continue
		}
		var end pg.LSN
		err := m.source(ctx, other.source, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end)
		})
		for err == nil && other.sink.Applied() < end && !other.waits.Load() {
			err = sleep(ctx, 5*time.Millisecond)
		}
		if err != nil {
			return fmt.Errorf("wait for the stream of source %d, which may bring a mapping: %w", other.source, err)
		}
	}
	return nil
}

// run streams until ctx ends or anything fails.
func (f *follower) run(ctx context.Context) error {
	c, at, err := f.move.slotConfig(ctx, f.source)
	if err != nil {
		return err
	}
	if err := f.move.samePublication(ctx, f.inv, f.source); err != nil {
		return err
	}
	reader := replicator.New(c)
	f.reader.Store(reader)
	f.sink.Confirm = reader.Confirm
	whole := ctx
	g, ctx := errgroup.WithContext(whole)
	read := make(chan error, 1)
	g.Go(func() error {
		err := reader.Run(ctx)
		read <- err
		return err
	})
	g.Go(func() error {
		if err := f.sink.Run(ctx, reader.Blocks(), reader.Release); err != nil {
			return err
		}
		if f.sink.Stopped() {
			return errReached
		}
		return cmp.Or(<-read, errStreamEnded) // there are no more blocks: the reader says why
	})
	g.Go(func() error { return f.watch(ctx) })
	return f.afterOthers(whole, f.move.slotError(whole, f.source, at, g.Wait()))
}

// errStreamEnded is of a reader that ended without saying why.
var errStreamEnded = errors.New("the stream ended")

// queueBytes bounds what one source has received and not applied.
const queueBytes = 16 << 20

// watch asks the source where its log is, so that the lag is known, looks every three seconds for changes the log does
// not show, and sweeps what shards remember for a replay.
func (f *follower) watch(ctx context.Context) error {
	for n := 0; ; n++ {
		if err := f.ask(ctx); err != nil {
			return err
		}
		if n%12 == 8 {
			if err := f.move.lookForDDL(ctx, f.inv, f.evolution, f.source); err != nil {
				return err
			}
			if err := f.move.samePublication(ctx, f.inv, f.source); err != nil {
				return err
			}
		}
		if n%120 == 60 {
			if err := f.sweep(ctx); err != nil && !pg.Transient(err) { // a shard may be down while the others go on
				return err
			}
		}
		if err := sleep(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// ask notes where the source's log is.
func (f *follower) ask(ctx context.Context) error {
	var end pg.LSN
	err := f.move.source(ctx, f.source, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&end)
	})
	if err == nil {
		f.behind.asked(end, time.Now())
	}
	return err
}

// reach waits until the shards hold what the source has written up to now, or until a time. The message it
// writes makes every shard commit at once.
func (f *follower) reach(ctx context.Context, until time.Time) error {
	var end pg.LSN
	err := f.move.source(ctx, f.source, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_logical_emit_message(true, $1, 'level')::text`, sink.MessagePrefix).Scan(&end)
	})
	for err == nil && f.sink.Applied() < end && time.Now().Before(until) {
		err = sleep(ctx, time.Millisecond)
	}
	return err
}

// sweep drops what shards remember for a replay and no replay can ask for any more.
func (f *follower) sweep(ctx context.Context) error {
	reader := f.reader.Load()
	confirmed := reader.Stats().Confirmed
	return f.move.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		s := f.move.stream(f.source)
		for _, sql := range []string{checkpoints.SweepSQL, checkpoints.SweepUnmappedSQL} {
			if _, err := conn.Exec(ctx, sql, s.Move, s.Source, confirmed.String()); err != nil {
				return err
			}
		}
		return nil
	})
}

// lag is how far the shards are behind the source, in bytes of log and in time; ok is false while it is not known.
func (f *follower) lag() (bytes int64, age time.Duration, ok bool) {
	return f.behind.at(f.sink.Applied(), time.Now())
}

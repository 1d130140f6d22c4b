package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
)

// With several sources the rows that go by one mapping come with streams that know nothing of each other. Where one changes it,
// all of them stop before that change. What each has written is made the same on every shard, and then each is followed alone, one
// after the other, up to where its source is: rows move within its transactions as they do with one source, and nobody else has
// a row under way by the old translation. How far this is stands on the home, because who comes after a death must go on with it.

// turnRecorded is the move's detail that says whose turn it is to be followed alone; levelling before the first.
const (
	turnRecorded = "followed_alone"
	levelling    = -1
)

// followAll runs every source's stream until ctx ends or anything fails.
func (m *Move) followAll(ctx context.Context, followers []*follower) error {
	for {
		if len(followers) > 1 {
			if err := m.retry(ctx, func(ctx context.Context) error { return m.followInTurn(ctx, followers) }); err != nil {
				return err
			}
		}
		if err := m.followTogether(ctx, followers); !errors.Is(err, sink.ErrRemapped) {
			return err
		}
		m.log.Debug("a mapping was changed: the sources are followed one after the other, and rows move with it")
		if err := m.recordTurn(ctx, levelling); err != nil {
			return err
		}
	}
}

func (m *Move) followTogether(ctx context.Context, followers []*follower) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range followers {
		g.Go(func() error { return m.retry(ctx, f.run) })
	}
	return g.Wait()
}

func (m *Move) recordTurn(ctx context.Context, turn any) error {
	return m.retry(ctx, func(ctx context.Context) error { return m.setDetail(ctx, turnRecorded, turn) })
}

// followInTurn follows each source alone, as far as that was begun.
func (m *Move) followInTurn(ctx context.Context, followers []*follower) error {
	var turn *int
	if err := m.detail(ctx, turnRecorded, &turn); err != nil || turn == nil {
		return err
	}
	if *turn == levelling {
		if err := m.endStreams(ctx); err != nil {
			return err
		}
		for _, f := range followers {
			if err := f.level(ctx); err != nil {
				return err
			}
		}
	}
	for n := max(*turn, 0); n < len(followers); n++ {
		if err := m.recordTurn(ctx, n); err != nil {
			return err
		}
		m.router.Lookups.Clear() // each stream's translations are its own, and others' turns have changed mappings
		if err := followers[n].alone(ctx); err != nil {
			return err
		}
	}
	m.router.Lookups.Clear()
	return m.recordTurn(ctx, nil)
}

// streamApp is the application_name of the streams' sessions.
func (m *Move) streamApp() string { return m.app() + " stream" }

const selectStreams = `select pid from pg_stat_activity where datname = current_database() and application_name = $1`

// endStreams ends what streams that have ended here still have open on a shard: it may be about to commit a row by the old
// translation.
func (m *Move) endStreams(ctx context.Context) error {
	return m.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return m.endSessions(ctx, conn, selectStreams, m.streamApp())
	})
}

// level brings every shard to where the foremost is.
func (f *follower) level(ctx context.Context) error {
	at := make([]pg.LSN, len(f.move.Destination.Shards))
	err := f.move.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) (err error) {
		at[n], _, err = f.move.stream(f.source).Position(ctx, conn)
		return err
	})
	low, high := at[0], at[0]
	for _, p := range at {
		low, high = min(low, p), max(high, p)
	}
	if err != nil || low == high {
		return err
	}
	f.sink.Level = true
	defer func() { f.sink.Level = false }()
	return f.upTo(ctx, high)
}

// alone follows the source up to where it is now, while no other is followed.
func (f *follower) alone(ctx context.Context) error {
	var now pg.LSN
	err := f.move.source(ctx, f.source, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select pg_current_wal_insert_lsn()::text`).Scan(&now)
	})
	if err != nil {
		return err
	}
	f.sink.Alone = true
	defer func() { f.sink.Alone = false }()
	return f.upTo(ctx, now)
}

// upTo follows the source, while no other is followed, up to a position and no further: every shard then holds exactly what was
// committed before.
func (f *follower) upTo(ctx context.Context, at pg.LSN) error {
	settle := f.sink.Settle
	f.sink.StopAt, f.sink.Settle = at, nil // nobody brings anything
	defer func() { f.sink.StopAt, f.sink.Settle = 0, settle }()
	// A transaction beyond the position shows that it is reached.
	err := f.move.source(ctx, f.source, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `select pg_logical_emit_message(true, $1, 'beyond')`, sink.MessagePrefix)
		return err
	})
	if err == nil {
		err = f.move.retry(ctx, f.run)
	}
	if errors.Is(err, errReached) {
		return nil
	}
	return err
}

// askSources asks the sources for translations, as they are now: the first, or all, of which exactly one must answer.
func (m *Move) askSources(ctx context.Context, all bool, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	total := make([]lookup.Answer, len(keys))
	for n := range m.Source.Shards {
		if n > 0 && !all {
			break
		}
		err := m.source(ctx, n, func(conn *pgx.Conn) error {
			answers, err := askReadOnly(ctx, conn, q, keys)
			lookup.AddUp(total, answers)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("ask source %d for a mapping: %w", n, err)
		}
	}
	return total, nil
}

// askReadOnly asks where nothing that a query calls may write.
func askReadOnly(ctx context.Context, conn *pgx.Conn, q *lookup.Query, keys [][]byte) (answers []lookup.Answer, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		answers, err = lookup.Ask(ctx, tx.Conn().PgConn(), q, keys)
		return err
	})
	return answers, err
}

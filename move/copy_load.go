package move

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
)

// load copies chunks under a snapshot; upsert says of a table whether its rows may be there already.
func (c *sourceCopy) load(ctx context.Context, snapshot string, snap *copier.Snapshot, chunks []*pg.Chunk, upsert func(pg.Name) bool) error {
	tables, _, err := c.inv.sinkTables(c.n, c.dest, nil)
	if err != nil {
		return err
	}
	stream := c.stream(c.n)
	var askers sync.Map // by worker
	defer askers.Range(func(_, a any) bool { a.(*snapshotAsker).close(); return true })
	var worker atomic.Int64
	err = copier.Run(ctx, copier.Config{
		Shard: c.Source.Shards[c.n], App: c.app(), Snapshot: snapshot, Workers: c.CopyWorkers, Chunks: chunks, Progress: c.progress[c.n],
		Loader: func(int) copier.Loader {
			ask := &snapshotAsker{move: c.Move, own: snap, source: c.n}
			askers.Store(worker.Add(1), ask)
			return sink.NewLoader(sink.LoadConfig{
				Shards: c.Destination.Shards, App: c.app(), Done: c.holds,
				Table: func(k *pg.Copy) (*sink.LoadTable, error) {
					return c.loadTable(tables[k.From.OID], ask, upsert(k.Into.Name)), nil
				},
				Mark: func(k *pg.Chunk, _ int) (string, []any) {
					return checkpoints.MarkSQL, []any{stream.Move, stream.Source, leafKey(k), k.Number, int64(k.Copy.From.Filenode), stream.Epoch}
				},
			})
		},
	})
	if pg.Code(err) == "23505" && len(c.Source.Shards) > 1 {
		return fmt.Errorf("%w; hint: two sources have a row with this key for one shard: the key must hold what tells them apart, or the rows must "+
			"be placed apart; then %s", err, startOver)
	}
	return checkpoints.Refused(err)
}

func (c *sourceCopy) loadTable(t *sink.Table, worker *snapshotAsker, upsert bool) *sink.LoadTable {
	var ask lookup.Asker = worker
	if c.n > 0 && !t.AskAll {
		ask = lookup.AskerFunc(worker.askFirst)
	}
	l := &sink.LoadTable{Upsert: upsert}
	switch {
	case t.Rule.Omni:
		l.Route = func([]pg.Datum) (int, bool, error) { return 0, true, nil }
	case t.Query == nil:
		l.Route = func(key []pg.Datum) (int, bool, error) {
			shard, err := c.router.Place(context.Background(), t, key, nil)
			return int(shard), false, err
		}
	default:
		l.RouteMany = func(ctx context.Context, keys [][]pg.Datum, shards []int) error {
			out := make([]layout.Shard, len(keys))
			err := c.router.PlaceMany(ctx, t, keys, ask, out)
			for i, s := range out {
				shards[i] = int(s)
			}
			return err
		}
	}
	return l
}

// snapshotAsker asks a copy's own snapshot for translations, and for keys unknown there the other sources.
type snapshotAsker struct {
	move   *Move
	own    *copier.Snapshot
	source int
	conns  []*pgx.Conn // the own source's first
}

// askFirst asks the first source, as it is now: an omnisharded mapping is copied and followed there, and other sources' copies of
// it may be of another moment.
func (a *snapshotAsker) askFirst(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	return lookup.Ask(ctx, a.conns[1].PgConn(), q, keys) // the own is before it
}

func (a *snapshotAsker) Ask(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	if err := a.open(ctx); err != nil {
		return nil, err
	}
	answers, err := lookup.Ask(ctx, a.conns[0].PgConn(), q, keys)
	if err != nil {
		return nil, err
	}
	for _, conn := range a.conns[1:] {
		var open [][]byte
		var where []int
		for i, answer := range answers {
			if answer.Rows == 0 {
				open, where = append(open, keys[i]), append(where, i)
			}
		}
		if len(open) == 0 {
			break
		}
		more, err := lookup.Ask(ctx, conn.PgConn(), q, open)
		if err != nil {
			return nil, err
		}
		for i, answer := range more {
			answers[where[i]] = answer
		}
	}
	return answers, nil
}

func (a *snapshotAsker) open(ctx context.Context) error {
	if a.conns != nil {
		return nil
	}
	own, err := a.own.Open(ctx)
	if err != nil {
		return err
	}
	a.conns = append(a.conns, own)
	for n, shard := range a.move.Source.Shards {
		if n == a.source {
			continue
		}
		conn, err := pg.Open(ctx, shard, pg.Reader, a.move.app())
		if err != nil {
			return err
		}
		a.conns = append(a.conns, conn)
	}
	return nil
}

func (a *snapshotAsker) close() {
	for _, conn := range a.conns {
		pg.Close(conn)
	}
}

package move

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
	"pgreshard/verify"
)

// destAsker asks the destination for translations, as it stands: one shard, or all where the mapping is sharded.
type destAsker struct {
	move  *Move
	table *sink.Table
}

// Ask adds the shards' answers up: a sharded mapping must answer from exactly one.
func (a destAsker) Ask(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	total := make([]lookup.Answer, len(keys))
	var mu sync.Mutex
	ask := func(ctx context.Context, _ int, conn *pgx.Conn) error {
		answers, err := lookup.Ask(ctx, conn.PgConn(), q, keys)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		lookup.AddUp(total, answers)
		return nil
	}
	if a.table.AskAll {
		return total, a.move.dests(ctx, ask)
	}
	return total, a.move.dest(ctx, 0, func(conn *pgx.Conn) error { return ask(ctx, 0, conn) })
}

// placer places rows again for verify, by the same router as copy and stream.
func (m *Move) placer(inv *inventory, dest *pg.Catalog) verify.Placer {
	return m.placing(inv, dest, &m.router, func(t *sink.Table) lookup.Asker { return destAsker{m, t} })
}

func (m *Move) placing(inv *inventory, dest *pg.Catalog, router *sink.Router, asker func(*sink.Table) lookup.Asker) verify.Placer {
	return func(ctx context.Context, table pg.Name, keys [][]pg.Datum) ([]int, error) {
		t, err := inv.placing(table, dest)
		if err != nil {
			return nil, err
		}
		shards := make([]int, len(keys))
		out := make([]layout.Shard, len(keys))
		err = router.PlaceMany(ctx, t, keys, asker(t), out)
		for i, s := range out {
			shards[i] = int(s)
		}
		var none *sink.PlaceError
		if !errors.As(err, &none) {
			return shards, err
		}
		for i, key := range keys { // one of them has no shard: find out which
			shard, err := router.Place(ctx, t, key, asker(t))
			switch {
			case errors.As(err, &none):
				shards[i] = verify.Nowhere
			case err != nil:
				return nil, err
			default:
				shards[i] = int(shard)
			}
		}
		return shards, nil
	}
}

// placing is a table as the router wants it.
func (inv *inventory) placing(name pg.Name, dest *pg.Catalog) (*sink.Table, error) {
	t := inv.byName[name]
	if t == nil {
		return nil, fmt.Errorf("table %s is not moved", name)
	}
	root, into := inv.sources[0].Table(name), dest.Table(name)
	if into == nil {
		into = root
	}
	return t.sinkTable(root, root, into, nil, noStream)
}

// node is the host and port of a shard's leader as last found, else what its address names first. Nobody is asked.
func (m *Move) node(shard pg.Shard) string {
	if leader := shard.Known.Leader(); leader != "" {
		return leader
	}
	c, err := pg.Config(shard, pg.Reader, m.app())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d", c.Host, c.Port)
}

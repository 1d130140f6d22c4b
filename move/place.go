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
		for i, answer := range answers {
			if answer.Rows > 0 {
				answer.Rows += total[i].Rows
				total[i] = answer
			}
		}
		return nil
	}
	if a.table.AskAll {
		return total, a.move.dests(ctx, ask)
	}
	return total, a.move.dest(ctx, 0, func(conn *pgx.Conn) error { return ask(ctx, 0, conn) })
}

// placer places rows again for verify, by the same router as copy and stream.
func (m *Move) placer(inv *inventory, dest *pg.Catalog) verify.Placer {
	return func(ctx context.Context, table pg.Name, keys [][]pg.Datum) ([]int, error) {
		t, err := inv.placing(table, dest)
		if err != nil {
			return nil, err
		}
		shards := make([]int, len(keys))
		out := make([]layout.Shard, len(keys))
		err = m.router.PlaceMany(ctx, t, keys, destAsker{m, t}, out)
		for i, s := range out {
			shards[i] = int(s)
		}
		var none *sink.PlaceError
		if !errors.As(err, &none) {
			return shards, err
		}
		for i, key := range keys { // one of them has no shard: find out which
			shard, err := m.router.Place(ctx, t, key, destAsker{m, t})
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
	return t.sinkTable(root, root, into)
}

// Route is where a key belongs.
type Route struct {
	Table      string         `json:"table,omitempty"`
	Database   string         `json:"database"`
	Version    int            `json:"version"`
	Key        string         `json:"key"`
	Translated string         `json:"translated,omitempty"` // where the rule has a lookup
	Shards     []layout.Shard `json:"shards"`               // one, or all of an omnisharded table's
	Nodes      []string       `json:"nodes"`                // host:port of each
}

// Route names the shard a key belongs to in the destination's layout, by the very functions copy and stream use. table
// may be empty where every sharded table's rule agrees.
func (m *Move) Route(ctx context.Context, table, key string) (Route, error) {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return Route{}, err
	}
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return Route{}, err
	}
	var found *Route
	for _, t := range inv.tables {
		if table != "" && table != t.name.String() && table != t.name.Table {
			continue
		}
		if table == "" && t.rule.Omni {
			continue
		}
		r, err := m.routeIn(ctx, inv, dest, t, key)
		if err != nil {
			return Route{}, err
		}
		if found != nil && fmt.Sprint(found.Shards) != fmt.Sprint(r.Shards) {
			return Route{}, fmt.Errorf("the rules of %s and %s place this key differently; hint: name the table", found.Table, r.Table)
		}
		found = &r
	}
	if found == nil {
		return Route{}, fmt.Errorf("no moved table is called %q; hint: `pgreshard plan` lists them", table)
	}
	return *found, nil
}

func (m *Move) routeIn(ctx context.Context, inv *inventory, dest *pg.Catalog, t *moved, key string) (Route, error) {
	r := Route{Table: t.name.String(), Database: m.Destination.Database, Version: m.Destination.Layout, Key: key}
	if t.rule.Omni {
		for n := range m.Destination.Shards {
			r.Shards = append(r.Shards, layout.Shard(n))
		}
	} else {
		st, err := inv.placing(t.name, dest)
		if err != nil {
			return r, err
		}
		datums := []pg.Datum{{Kind: pg.Text, Bytes: []byte(key)}}
		if len(t.rule.Columns) == 0 {
			datums = nil
		}
		shard, err := m.router.Place(ctx, st, datums, destAsker{m, st})
		if err != nil {
			return r, err
		}
		if t.query != nil {
			value, _ := m.router.Lookups.Cached(t.query, []byte(key))
			r.Translated = string(value)
		}
		r.Shards = []layout.Shard{shard}
	}
	for _, s := range r.Shards {
		r.Nodes = append(r.Nodes, m.node(m.Destination.Shards[s]))
	}
	return r, nil
}

// node is the host and port a shard's address leads to, without asking it.
func (m *Move) node(shard pg.Shard) string {
	c, err := pg.Config(shard, pg.Reader, m.app())
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s:%d", c.Host, c.Port)
}

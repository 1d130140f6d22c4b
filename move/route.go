package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/sink"
)

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

// NoRouteError means that a key was asked for that belongs to no shard. It is an answer and changes nothing.
type NoRouteError struct {
	Table pg.Name
	Err   error
}

func (e *NoRouteError) Error() string {
	return fmt.Sprintf("%s: the key has no shard: %v", e.Table, e.Err)
}
func (e *NoRouteError) Unwrap() error { return e.Err }

// Hint says what the answer means.
func (e *NoRouteError) Hint() string {
	var none *layout.NoShardError
	if errors.As(e.Err, &none) && strings.Contains(none.Reason, "not a value of the type") {
		return "give a value of the column's type"
	}
	return "a row with this key would stop the move: give it a mapping, or name another key"
}

// Route names the shard a key belongs to in the destination's layout, by the very functions copy and stream use. key
// has the text of each of the sharding columns. table may be empty where every sharded table's rule agrees.
func (m *Move) Route(ctx context.Context, table string, key []string) (Route, error) {
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
		if found != nil && !slices.Equal(found.Shards, r.Shards) {
			return Route{}, fmt.Errorf("the rules of %s and %s place this key differently; hint: name the table", found.Table, r.Table)
		}
		found = &r
	}
	if found == nil {
		return Route{}, fmt.Errorf("no moved table is called %q; hint: `pgreshard plan` lists them", table)
	}
	return *found, nil
}

func (m *Move) routeIn(ctx context.Context, inv *inventory, dest *pg.Catalog, t *moved, key []string) (Route, error) {
	r := Route{Table: t.name.String(), Database: m.Destination.Database, Version: m.Destination.Layout, Key: strings.Join(key, ",")}
	if t.rule.Omni {
		for n := range m.Destination.Shards {
			r.Shards = append(r.Shards, layout.Shard(n))
		}
	} else if err := m.routeRow(ctx, inv, dest, t, key, &r); err != nil {
		return r, err
	}
	for _, s := range r.Shards {
		r.Nodes = append(r.Nodes, m.node(m.Destination.Shards[s]))
	}
	return r, nil
}

// routeRow fills in the one shard of a sharded table's key.
func (m *Move) routeRow(ctx context.Context, inv *inventory, dest *pg.Catalog, t *moved, key []string, r *Route) error {
	if columns := t.rule.Columns; len(columns) > 0 && len(columns) != len(key) {
		return fmt.Errorf("%s is placed by %d columns and %d values are given; hint: give one for each of %s, in this order, after the table",
			t.name, len(columns), len(key), strings.Join(columns, ", "))
	}
	st, err := inv.placing(t.name, dest)
	if err != nil {
		return err
	}
	var datums []pg.Datum // none where a rule places the whole table
	for i := range t.rule.Columns {
		datums = append(datums, pg.Datum{Kind: pg.Text, Bytes: []byte(key[i])})
	}
	shard, err := m.router.Place(ctx, st, datums, destAsker{m, st})
	var none *sink.PlaceError
	switch code := pg.Code(err); {
	case errors.As(err, &none):
		return &NoRouteError{t.name, none.Err}
	case t.rule.HashQuery != "" && (code == "42704" || code == "3F000"):
		return fmt.Errorf("%s: a server is asked for the hash of a key, and the destination has not its type yet: %w; hint: ask again once `pgreshard migrate` has made the schema",
			t.name, err)
	case t.rule.HashQuery != "" && strings.HasPrefix(code, "22"):
		return fmt.Errorf("%s: the key is not a value of the type of %s: %w; hint: write it as PostgreSQL prints it", t.name, t.rule.Columns[0], err)
	case code == "42P01" || code == "3F000":
		return fmt.Errorf("%s: a key is translated by what its lookup_query reads on the destination, and that is not there yet: %w; hint: ask again once `pgreshard migrate` has copied it",
			t.name, err)
	case strings.HasPrefix(code, "22"):
		return fmt.Errorf("%s: the key is not a value lookup_query takes: %w; hint: give a value of the type of %s", t.name, err, strings.Join(t.rule.Columns, ", "))
	case err != nil:
		return err
	}
	if t.rule.Lookup != "" {
		value, _ := m.router.Lookups.Cached(t.query, []byte(key[0]))
		r.Translated = string(value)
	}
	r.Shards = []layout.Shard{shard}
	return nil
}

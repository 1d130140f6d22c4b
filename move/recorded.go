package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// recorded is what a move is held to: a later start that differs in it is refused.
type recorded struct {
	Source, Destination json.RawMessage
	Include, Exclude    []string
	Systems             []string // system identifier and database of every shard, sources first
}

func (m *Move) recordedSpec(ctx context.Context) (json.RawMessage, error) {
	r := recorded{Include: m.Include, Exclude: m.Exclude}
	var err error
	if r.Source, err = json.Marshal(m.Source.spec()); err != nil {
		return nil, err
	}
	if r.Destination, err = json.Marshal(m.Destination.spec()); err != nil {
		return nil, err
	}
	if r.Systems, err = m.systems(ctx); err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// systems names the database behind every URL, so that two URLs of the same one, and a URL that now leads elsewhere,
// are seen.
func (m *Move) systems(ctx context.Context) ([]string, error) {
	out := make([]string, len(m.Source.Shards)+len(m.Destination.Shards))
	identify := func(conn *pgx.Conn, into *string) error {
		return conn.QueryRow(ctx, `select system_identifier::text || '/' || current_database() from pg_control_system()`).Scan(into)
	}
	err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error { return identify(conn, &out[n]) })
	if err == nil {
		err = m.dests(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
			return identify(conn, &out[len(m.Source.Shards)+n])
		})
	}
	return out, err
}

// sameSpec refuses a configuration that is not the one the move was made with.
func (m *Move) sameSpec(ctx context.Context, was json.RawMessage) error {
	now, err := m.recordedSpec(ctx)
	if err != nil {
		return err
	}
	var a, b recorded
	if err := errors.Join(json.Unmarshal(was, &a), json.Unmarshal(now, &b)); err != nil {
		return err
	}
	for _, part := range []struct {
		what     string
		was, now any
	}{
		{"the shards (system identifier and database)", a.Systems, b.Systems},
		{"the source's layout or rules", a.Source, b.Source},
		{"the destination's layout or rules", a.Destination, b.Destination},
		{"[tables] include", a.Include, b.Include},
		{"[tables] exclude", a.Exclude, b.Exclude},
	} {
		if jsonOf(part.was) != jsonOf(part.now) {
			return fmt.Errorf("%w in %s; hint: put it back, or `cancel` and start a new move", ErrChangedConfig, part.what)
		}
	}
	return nil
}

// jsonOf compares by meaning: what came back from jsonb has its keys in another order.
func jsonOf(v any) string {
	text, _ := json.Marshal(v)
	var any any
	_ = json.Unmarshal(text, &any)
	text, _ = json.Marshal(any)
	return string(text)
}

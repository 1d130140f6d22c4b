package move

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// detail reads one thing an earlier run remembered on the home; into stays as it is where there is none.
func (m *Move) detail(ctx context.Context, key string, into any) error {
	known, err := m.find(ctx)
	if err != nil || known == nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(known.Detail, &all); err != nil || all[m.detailKey(key)] == nil {
		return err
	}
	return json.Unmarshal(all[m.detailKey(key)], into)
}

// setDetail remembers one thing on the home for a later start.
func (m *Move) setDetail(ctx context.Context, key string, value any) error {
	return m.home(ctx, func(conn *pgx.Conn) error { return m.book.SetDetail(ctx, conn, m.detailKey(key), value) })
}

// detailKey tells what is kept of the way back from what is kept of the move.
func (m *Move) detailKey(key string) string {
	if m.forward != nil {
		return "reverse_" + key
	}
	return key
}

package move

import (
	"context"
	"encoding/json"
)

// detail reads one thing an earlier run remembered on the home; into stays as it is where there is none.
func (m *Move) detail(ctx context.Context, key string, into any) error {
	known, err := m.find(ctx)
	if err != nil || known == nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(known.Detail, &all); err != nil || all[key] == nil {
		return err
	}
	return json.Unmarshal(all[key], into)
}

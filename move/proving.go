package move

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"pgreshard/pg"
)

// TableVerified is a table that was found equal on both sides.
type TableVerified struct {
	Table    string    `json:"table"`
	At       []string  `json:"at"` // as of which position of each source
	Rows     int64     `json:"rows"`
	Finished time.Time `json:"finished"`
}

// proving is one comparison of everything beside the writers, as far as it has come.
type proving struct {
	Began  time.Time                `json:"began"`
	Of     int                      `json:"of"` // tables
	Ended  bool                     `json:"ended"`
	Tables map[string]TableVerified `json:"tables"` // found equal
}

func (p *proving) has(name pg.Name) bool {
	_, ok := p.Tables[name.String()]
	return ok
}

// provingKey is under what is kept how far the last comparison of everything has come.
const provingKey = "proving"

func (m *Move) lastProving() *proving {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proving == nil {
		return nil
	}
	p := *m.proving
	p.Tables = maps.Clone(p.Tables)
	return &p
}

// keepProving keeps how far a comparison has come, as change makes it, in memory and on the home.
func (m *Move) keepProving(ctx context.Context, change func(*proving)) error {
	m.mu.Lock()
	if m.proving == nil {
		m.proving = &proving{}
	}
	if m.proving.Tables == nil {
		m.proving.Tables = map[string]TableVerified{}
	}
	change(m.proving)
	text, err := json.Marshal(m.proving)
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return m.setDetail(ctx, provingKey, json.RawMessage(text))
}

// verifiedTables are those the last pass has found equal, in order.
func (p *proving) verifiedTables() (list []TableVerified) {
	if p == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(p.Tables)) {
		list = append(list, p.Tables[name])
	}
	return list
}

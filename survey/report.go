package survey

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"pgreshard/layout"
)

// Report is what a sample tells of one table, as data.
type Report struct {
	Table    string    `json:"table"`
	Rule     string    `json:"rule"`
	Read     Read      `json:"read"`
	Rows     int64     `json:"rows"`  // of the table, as the sample has it
	Bytes    int64     `json:"bytes"` // heap and out of line, as far as rows need it
	Shares   []Share   `json:"shares"`
	Largest  []Heavy   `json:"largest"`
	Growing  bool      `json:"growing"`  // rows written last have the highest keys
	Unplaced int       `json:"unplaced"` // rows read that no rule names a shard for
	Warnings []Warning `json:"warnings"`
	Costs    []Cost    `json:"placements,omitempty"` // where they were asked for
	Sweep    []Cost    `json:"sweep,omitempty"`
}

// Read is how much was read.
type Read struct {
	Rows   int   `json:"rows"`
	Keys   int   `json:"keys"`
	Blocks int64 `json:"blocks"`
	Of     int64 `json:"of_blocks"`
	Whole  bool  `json:"whole"` // every row was read: nothing is estimated
}

// Heavy is one key with more rows than others. Exact says that its rows were counted, not estimated.
type Heavy struct {
	Key   string       `json:"key"`
	Shard layout.Shard `json:"shard"`
	Rows  int64        `json:"rows"`
	Bytes int64        `json:"bytes"`
	Share float64      `json:"share"` // of all rows
	Alone float64      `json:"alone"` // against what an average shard has: 1 is as much
	Exact bool         `json:"exact"`

	text string
}

// Warning is what no placement mends by itself, and what can help.
type Warning struct {
	What    string    `json:"what"`
	Hint    string    `json:"hint"`
	SubKeys []SubKeys `json:"sub_keys,omitempty"`
}

// Report adds up what was read and placed. showKeys false: a key is told by its hash alone.
func (s *Sample) Report(shards int, showKeys bool) *Report {
	r := &Report{Table: s.table.Name.String(), Rule: s.table.Rule.Describe(), Read: s.read(), Shares: s.shares(shards), Growing: s.growing(),
		Largest: []Heavy{}, Warnings: []Warning{}}
	for _, k := range s.keys {
		r.Rows += int64(math.Round(k.rows))
		r.Bytes += int64(k.bytes)
	}
	for _, st := range s.strata {
		for _, row := range st.rows {
			if !s.keys[row.key].placed {
				r.Unplaced++
			}
		}
	}
	for _, at := range s.heavy(named, counted) {
		k := s.keys[at]
		if !k.placed || k.rows < 1.5*float64(r.Rows)/float64(len(s.keys)) { // a key like the others
			continue
		}
		h := Heavy{text: k.text, Key: showKey(k, showKeys), Shard: k.shard, Rows: int64(math.Round(k.rows)), Bytes: int64(k.bytes), Exact: r.Read.Whole}
		if c, ok := s.counts[at]; ok && s.counted == s.sources {
			h.Rows, h.Bytes, h.Exact = c.rows, c.bytes, true
		}
		h.Share = float64(h.Rows) / float64(max(r.Rows, h.Rows, 1))
		h.Alone = h.Share * float64(shards)
		r.Largest = append(r.Largest, h)
	}
	slices.SortStableFunc(r.Largest, func(a, b Heavy) int { return cmp.Compare(b.Rows, a.Rows) }) // as they were counted
	if r.Read.Rows > 0 {
		s.warn(r, shards)
	}
	return r
}

func (s *Sample) read() Read {
	r := Read{Keys: len(s.keys), Whole: true}
	for _, st := range s.strata {
		r.Rows += len(st.rows)
		r.Blocks += int64(st.seen())
		r.Of += st.blocks
		r.Whole = r.Whole && st.each <= 1
	}
	return r
}

// showKey is the key cut to what a line bears, or where keys are not to be shown, its hash.
func showKey(k sampledKey, show bool) string {
	const most = 64
	switch {
	case !show && k.hashed:
		return fmt.Sprintf("hash %016x", k.hash)
	case !show:
		return "(not shown)"
	case len(k.text) > most:
		return k.text[:most] + "…"
	}
	return k.text
}

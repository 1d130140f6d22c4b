package survey

import (
	"context"
	"fmt"
	"slices"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Place translates the keys that were read, where the rule has a lookup, or hashes them, by what asked says now, and names each one's
// shard by the rule itself. It is called once, when everything is read.
func (s *Sample) Place(ctx context.Context, asked lookup.Asker) error {
	if s.table.Query != nil {
		if err := s.translate(ctx, asked); err != nil {
			return fmt.Errorf("translate the keys of %s: %w", s.table.Name, err)
		}
	}
	rule := s.table.Rule
	for i := range s.keys {
		k := &s.keys[i]
		if k.datums == nil {
			continue
		}
		shard, err := rule.Place(k.datums)
		k.shard, k.placed = shard, err == nil
		k.hash, k.hashed = rule.Hash(k.datums)
	}
	s.weigh()
	return nil
}

// translate makes each key the one it is placed by; keys with one translation become one.
func (s *Sample) translate(ctx context.Context, asked lookup.Asker) error {
	var ask [][]byte
	for _, k := range s.keys {
		if k.datums[0].Kind == pg.Text {
			ask = append(ask, k.datums[0].Bytes)
		}
	}
	answers, err := asked.Ask(ctx, s.table.Query, ask)
	if err != nil {
		return err
	}
	if s.table.Rule.HashQuery != "" {
		s.placeByHashes(answers)
		return nil
	}
	raw := s.keys
	s.keys, s.byText = nil, map[string]int{}
	becomes := make([]int32, len(raw))
	for i, k := range raw {
		var found lookup.Answer
		if k.datums[0].Kind == pg.Text {
			found, answers = answers[0], answers[1:]
		}
		becomes[i] = s.translated(k, found)
	}
	for _, stratum := range s.strata {
		for i := range stratum.rows {
			stratum.rows[i].key = becomes[stratum.rows[i].key]
		}
	}
	return nil
}

// placeByHashes takes the hashes that a server answered for the keys that are not NULL, which stay what they are.
func (s *Sample) placeByHashes(answers []lookup.Answer) {
	for i := range s.keys {
		if k := &s.keys[i]; k.datums[0].Kind == pg.Text {
			k.datums = []pg.Datum{{Kind: pg.Text, Bytes: answers[0].Value}}
			answers = answers[1:]
		}
	}
}

// translated is the index of the key that one is placed by; keys without a mapping row that nothing else places are one.
func (s *Sample) translated(k sampledKey, found lookup.Answer) int32 {
	id, next := "\x00none", sampledKey{text: "(no mapping row)"}
	shard, isDefault := s.table.Rule.Default()
	switch missing := s.table.Rule.OnMissing; {
	case found.Rows == 1 && !found.Null:
		id = string(found.Value)
		next = sampledKey{text: id, datums: []pg.Datum{{Kind: pg.Text, Bytes: found.Value}}}
	case missing == layout.MissingIdentity:
		id, next = k.text, k
	case missing == layout.MissingDefault && isDefault:
		next.shard, next.placed = shard, true
	}
	at, known := s.byText[id]
	if !known {
		at = len(s.keys)
		s.byText[id] = at
		s.keys = append(s.keys, next)
	}
	return int32(at)
}

// weigh adds up what the rows read stand for.
func (s *Sample) weigh() {
	for _, st := range s.strata {
		for _, row := range st.rows {
			s.keys[row.key].rows += st.each
			s.keys[row.key].bytes += st.each * float64(row.bytes)
		}
	}
}

// Astray counts, by source, the rows read there that a rule of the source layout, over the same columns, places on another.
func (s *Sample) Astray(rule *layout.Rule) map[int]int {
	found, of := map[int]int{}, make([]layout.Shard, len(s.keys))
	for i, k := range s.keys {
		shard, err := rule.Place(k.datums)
		if of[i] = shard; err != nil {
			of[i] = -1
		}
	}
	for _, st := range s.strata {
		for _, row := range st.rows {
			if s.keys[row.key].datums != nil && of[row.key] != layout.Shard(st.source) {
				found[st.source]++
			}
		}
	}
	return found
}

// Weighed are the keys that have a hash, with what each weighs and where it stands among all in their order.
func (s *Sample) Weighed() []Weighed {
	order := make([]int, 0, len(s.keys))
	total := 0.0
	for i, k := range s.keys {
		if k.hashed {
			order = append(order, i)
			total += k.rows
		}
	}
	slices.SortFunc(order, func(a, b int) int { return s.table.Rule.Compare(s.keys[a].datums, s.keys[b].datums) })
	keys := make([]Weighed, len(order))
	before := 0.0
	for i, at := range order {
		k := s.keys[at]
		keys[i] = Weighed{Hash: k.hash, Position: position(before / total), Rows: k.rows, Bytes: k.bytes}
		before += k.rows
	}
	return keys
}

// position is a part of one as a part of 2^64.
func position(part float64) uint64 {
	if part >= 1 {
		return ^uint64(0)
	}
	return uint64(part * (1 << 63) * 2)
}

package survey

import (
	"fmt"

	"pgreshard/layout"
)

const (
	hot    = 0.5  // of an average shard: one key from which on it is named
	uneven = 1.25 // of an average shard: the fullest one
	few    = 10   // keys a shard
)

// warn adds what an operator should know before the layout is taken, the worst first.
func (s *Sample) warn(r *Report, shards int) {
	add := func(hint, what string, args ...any) *Warning {
		r.Warnings = append(r.Warnings, Warning{What: fmt.Sprintf(what, args...), Hint: hint})
		return &r.Warnings[len(r.Warnings)-1]
	}
	if r.Unplaced > 0 {
		add("give these keys a mapping row, a range or a default before the move, which stops at the first of them",
			"%d of the %d rows that were read have a key that no rule names a shard for", r.Unplaced, r.Read.Rows)
	}
	if shards == 1 || len(r.Shares) == 0 {
		return
	}
	fullest := r.Shares[0]
	for _, share := range r.Shares {
		if share.Rows > fullest.Rows {
			fullest = share
		}
	}
	isHot := false
	for _, h := range r.Largest {
		if h.Alone >= hot {
			isHot = true
			w := add(s.ownShard()+", or store it as K sub-keys, so that writes spread and reads pick one or ask for all",
				"key %s alone has %.1f %% of the rows, %.2f times what an average shard of %d has: no placement spreads one key", h.Key, 100*h.Share, h.Alone, shards)
			w.SubKeys = s.subKeys(r, h)
		}
	}
	if fullest.Rows*float64(shards) > uneven && !isHot {
		add("look at the largest keys; more keys, or a list or range mapping, can share out what a hash does not",
			"shard %d gets %.1f %% of the rows, %.2f times the average", fullest.Shard, 100*fullest.Rows, fullest.Rows*float64(shards))
	}
	if r.Read.Whole && r.Read.Keys < few*shards {
		add("a key with more values spreads better; with few, a list mapping lets you say which go where",
			"%d keys are spread over %d shards: how even that comes out is chance", r.Read.Keys, shards)
	}
	if r.Growing && s.table.Rule.Placement() == nil && len(s.table.Rule.Columns) == 1 {
		add("place by the key's hash (take the ranges away), or keep ranges ahead of the key by moving again",
			"keys increase: new rows all have the highest, which ranges send to one shard")
	}
}

// ownShard says how a key is given a shard of its own.
func (s *Sample) ownShard() string {
	if s.table.Rule.Placement() == nil {
		return "give it a shard of its own in the rule's list mapping"
	}
	return "give it a shard of its own, by a list mapping for it and ranges for the other keys"
}

// subKeys is what storing the key as 2 to 16 would do, by the rule's own placement.
func (s *Sample) subKeys(r *Report, h Heavy) []SubKeys {
	placement := s.table.Rule.Placement()
	if placement == nil {
		return nil
	}
	shares := make([]float64, len(r.Shares))
	for i, share := range r.Shares {
		shares[i] = share.Rows
	}
	shares[h.Shard] = max(0, shares[h.Shard]-h.Share)
	return SplitKey(shares, h.Share, h.Shard, placement, func(i int) uint64 { return layout.TextHash(subKey(h.text, i)) }, 1, 2, 4, 8, 16)
}

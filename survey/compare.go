package survey

import (
	"fmt"

	"pgreshard/layout"
)

// Weighed is one key with how many rows and bytes carry it.
type Weighed struct {
	Hash     uint64 // layout.Rule.Hash
	Position uint64 // the part of all rows whose key comes before it in the keys' order, of 2^64
	Rows     float64
	Bytes    float64
}

// Strategy is one way to bring keys down to shards, as a team may choose it for a layout that grows.
type Strategy struct {
	Name    string
	InMove  bool   // [[sharded_tables]] placement can ask for it
	Ordered bool   // what it places is a key's Position, not its Hash
	Scans   string // where a scan of a range of keys goes
	Between func(before, after int) (layout.Placement, layout.Placement)
}

// Strategies are those compared, in the order they are shown. The placements are those that rules use.
func Strategies() []Strategy {
	return []Strategy{
		{Name: "modulo", InMove: true, Scans: allShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.Modulo(before), layout.Modulo(after)
		}},
		slots(1024), slots(16384),
		{Name: "ranges, all bounds redrawn evenly", Ordered: true, Scans: fewShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.EvenRanges(before), layout.EvenRanges(after)
		}},
		{Name: cutName, Ordered: true, Scans: fewShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.EvenRanges(before), layout.CutRanges(before, after)
		}},
		{Name: "ring, 128 points a shard", Scans: allShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.NewRing(before, 128), layout.NewRing(after, 128)
		}},
		{Name: "rendezvous", Scans: allShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.Rendezvous(before), layout.Rendezvous(after)
		}},
		{Name: "jump hash", Scans: allShards, Between: func(before, after int) (layout.Placement, layout.Placement) {
			return layout.Jump(before), layout.Jump(after)
		}},
	}
}

// Where a scan of a range of keys goes.
const (
	allShards = "all shards"
	fewShards = "one shard, or neighbours"
)

const cutName = "ranges, cut in half"

func slots(n int) Strategy {
	return Strategy{Name: fmt.Sprintf("%d slots, handed over whole", n), InMove: true, Scans: allShards,
		Between: func(before, after int) (layout.Placement, layout.Placement) {
			from := layout.NewSlots(n, before, nil)
			if before == 1 { // as a rule hands them out for the first time
				return from, layout.NewSlots(n, after, nil)
			}
			return from, from.HandOver(after, nil)
		}}
}

// Cost is what going from one number of shards to another does with some keys. Parts are of one.
type Cost struct {
	Strategy string  `json:"strategy"`
	InMove   bool    `json:"in_move"` // false: compared only, no rule can ask for it
	From     int     `json:"from"`
	To       int     `json:"to"`
	Keys     float64 `json:"moved_keys"` // parts that change their shard
	Rows     float64 `json:"moved_rows"`
	Bytes    float64 `json:"moved_bytes"`
	Least    float64 `json:"least_share"` // of the rows, afterwards
	Largest  float64 `json:"largest_share"`
	Ratio    float64 `json:"ratio"` // Largest by Least; 0 where a shard has nothing
	Scans    string  `json:"range_scans"`
}

// Compare places every key before and after.
func (s Strategy) Compare(keys []Weighed, before, after int) Cost {
	from, to := s.Between(before, after)
	c := Cost{Strategy: s.Name, InMove: s.InMove, From: before, To: after, Scans: s.Scans}
	share := make([]float64, after)
	var rows, bytes float64
	for _, k := range keys {
		at := k.Hash
		if s.Ordered {
			at = k.Position
		}
		shard := to.Shard(at)
		share[shard] += k.Rows
		rows, bytes = rows+k.Rows, bytes+k.Bytes
		if shard != from.Shard(at) {
			c.Keys, c.Rows, c.Bytes = c.Keys+1, c.Rows+k.Rows, c.Bytes+k.Bytes
		}
	}
	if rows == 0 {
		return c
	}
	c.Keys, c.Rows, c.Bytes = c.Keys/float64(len(keys)), c.Rows/rows, c.Bytes/max(bytes, 1)
	c.Least, c.Largest = share[0]/rows, share[0]/rows
	for _, n := range share {
		c.Least, c.Largest = min(c.Least, n/rows), max(c.Largest, n/rows)
	}
	if c.Least > 0 {
		c.Ratio = c.Largest / c.Least
	}
	return c
}

// Compare is what each strategy does with the keys, step by step: from a number of shards to the first of a stretch, and
// from there on by one shard each.
func (s *Sample) Compare(before, from, to int) (costs []Cost) {
	keys := s.Weighed()
	if len(keys) == 0 {
		return nil
	}
	for after := from; after <= to; after++ {
		for _, strategy := range Strategies() {
			if after < before && strategy.Name == cutName {
				continue // nothing is cut where shards go
			}
			costs = append(costs, strategy.Compare(keys, before, after))
		}
		before = after
	}
	return costs
}

// Configured is what the rules themselves do: from the source layout's placement to the rule's, where both go by the hash.
func (s *Sample) Configured(current layout.Placement, before, after int) (c Cost, ok bool) {
	next, keys := s.table.Rule.Placement(), s.Weighed()
	if next == nil || current == nil || len(keys) == 0 {
		return c, false
	}
	strategy := Strategy{Name: "as configured: " + next.String(), InMove: true, Scans: allShards,
		Between: func(int, int) (layout.Placement, layout.Placement) { return current, next }}
	return strategy.Compare(keys, before, after), true
}

package survey

import (
	"fmt"

	"pgreshard/layout"
)

// SubKeys is what storing one heavy key as K keys would do: its rows are spread, and reads pick one part or ask for all.
type SubKeys struct {
	K       int     `json:"k"`
	Hottest float64 `json:"hottest"` // the fullest shard's share against the average shard's
	Hit     int     `json:"shards"`  // shards that then have a part of the key
}

// SplitKey spreads heavy's weight evenly over k sub-keys, hashed by hash, for each k. shares are the shards' parts of the
// whole without the key, in any unit, and heavy in the same; k = 1 leaves the key where it is.
func SplitKey(shares []float64, heavy float64, own layout.Shard, placement layout.Placement, hash func(k int) uint64, ks ...int) []SubKeys {
	total := heavy
	for _, s := range shares {
		total += s
	}
	var out []SubKeys
	for _, k := range ks {
		with, hit := append([]float64(nil), shares...), map[layout.Shard]bool{}
		for i := range k {
			shard := own
			if k > 1 {
				shard = placement.Shard(hash(i))
			}
			with[shard] += heavy / float64(k)
			hit[shard] = true
		}
		hottest := 0.0
		for _, s := range with {
			hottest = max(hottest, s)
		}
		out = append(out, SubKeys{K: k, Hottest: hottest * float64(len(shares)) / total, Hit: len(hit)})
	}
	return out
}

// subKey is the name of a sub-key: the key with its number behind it.
func subKey(key string, i int) string { return fmt.Sprintf("%s#%d", key, i) }

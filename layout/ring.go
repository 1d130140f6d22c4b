package layout

import (
	"cmp"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"slices"
)

// Ring is consistent hashing: each shard has points on a circle, a key belongs to the first point at or behind its hash
// (Karger et al.: Consistent Hashing and Random Trees, STOC 1997). The points are the first eight bytes of SHA-1 of
// "shard-<number>#<point>".
type Ring struct {
	points []arc
	shards int
}

// NewRing gives every shard so many points.
func NewRing(shards, points int) Ring {
	r := Ring{shards: shards}
	for s := range shards {
		for p := range points {
			sum := sha1.Sum(fmt.Appendf(nil, "shard-%d#%d", s, p))
			r.points = append(r.points, arc{binary.BigEndian.Uint64(sum[:]), Shard(s)})
		}
	}
	slices.SortFunc(r.points, func(a, b arc) int { return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.shard, b.shard)) })
	return r
}

// Shard finds the key's point; behind the last one the circle begins again.
func (r Ring) Shard(hash uint64) Shard {
	i, _ := slices.BinarySearchFunc(r.points, hash, func(a arc, h uint64) int { return cmp.Compare(a.last, h) })
	return r.points[i%len(r.points)].shard
}

func (r Ring) String() string {
	return fmt.Sprintf("ring over %d, %d points each", r.shards, len(r.points)/r.shards)
}

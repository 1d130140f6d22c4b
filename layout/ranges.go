package layout

import (
	"cmp"
	"fmt"
	"slices"
)

// Ranges cuts the 64-bit space into ranges with a shard each. What is placed is a position in it: the hash, or where a
// key stands among all keys in their order, which is how range partitions of the key itself behave.
type Ranges struct {
	name string
	of   []arc // by their ends
}

// arc ends at last, which is part of it, and begins behind the one before it.
type arc struct {
	last  uint64
	shard Shard
}

// EvenRanges are ranges of one width, in the order of the shards.
func EvenRanges(shards int) Ranges {
	r := Ranges{name: fmt.Sprintf("%d even ranges", shards)}
	width := ^uint64(0)/uint64(shards) + 1
	for s := range shards {
		r.of = append(r.of, arc{uint64(s+1)*width - 1, Shard(s)})
	}
	r.of[shards-1].last = ^uint64(0)
	return r
}

// CutRanges begins with even ranges for before shards; each further shard gets the upper half of the range that is the
// widest then, the first of them.
func CutRanges(before, shards int) Ranges {
	r := EvenRanges(before)
	for s := before; s < shards; s++ {
		widest, low, width := 0, uint64(0), uint64(0)
		for i := range r.of {
			begin := uint64(0)
			if i > 0 {
				begin = r.of[i-1].last + 1
			}
			if w := r.of[i].last - begin; w > width+uint64(shards) { // even ranges differ by less
				widest, low, width = i, begin, w
			}
		}
		whole := r.of[widest]
		r.of = slices.Insert(r.of, widest, arc{low + width/2, whole.shard})
		r.of[widest+1].shard = Shard(s)
	}
	r.name = fmt.Sprintf("%d ranges, cut into %d", before, shards)
	return r
}

// Shard finds the range of a position.
func (r Ranges) Shard(position uint64) Shard {
	i, _ := slices.BinarySearchFunc(r.of, position, func(a arc, p uint64) int { return cmp.Compare(a.last, p) })
	return r.of[i].shard
}

func (r Ranges) String() string { return r.name }

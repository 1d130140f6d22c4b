package layout

import (
	"cmp"
	"fmt"
	"slices"
)

// Slots is placement by a table: the hash modulo the number of slots is looked up in it. A slot is a hash partition of
// modulus slots; a layout gives whole slots to shards, so the next layout need only hand over as many as its shares ask
// for (Redis Cluster's hash slots are this: redis.io/docs/reference/cluster-spec).
type Slots struct {
	owner  []Shard
	shards int
}

// Shard looks up the hash's slot.
func (s Slots) Shard(hash uint64) Shard { return s.owner[hash%uint64(len(s.owner))] }

func (s Slots) String() string {
	return fmt.Sprintf("modulo %d slots over %d shards", len(s.owner), s.shards)
}

// NewSlots hands slots out for the first time. One shard begins with all of them and the others come one by one, each
// taking just its share; so the table follows from its arguments alone, and that of n shards becomes that of n+1 by the
// new shard's slots only. weights, where given, are the shards' parts of the whole, else all are alike.
func NewSlots(slots, shards int, weights []int) Slots {
	s := Slots{owner: make([]Shard, slots), shards: 1}
	for n := 2; n <= shards; n++ {
		s = s.HandOver(n, weights)
	}
	return s
}

// HandOver is the table of so many shards made from this one: a shard that has more than its share gives up its highest
// slots, one that has less takes what is given up. No fewer slots can change their shard.
func (s Slots) HandOver(shards int, weights []int) Slots {
	want, has := slotShares(len(s.owner), shards, weights), make([]int, shards)
	for _, owner := range s.owner {
		if int(owner) < shards {
			has[owner]++
		}
	}
	next := Slots{owner: slices.Clone(s.owner), shards: shards}
	taker := 0
	for slot := len(s.owner) - 1; slot >= 0; slot-- {
		owner := int(s.owner[slot])
		if owner < shards {
			if has[owner] <= want[owner] {
				continue
			}
			has[owner]--
		}
		for has[taker] >= want[taker] {
			taker++
		}
		has[taker]++
		next.owner[slot] = Shard(taker)
	}
	return next
}

// slotShares divides the slots by weight: whole numbers first, what is left to the largest remainders, of equal ones to
// the first.
func slotShares(slots, shards int, weights []int) []int {
	weight := func(s int) int {
		if s < len(weights) {
			return weights[s]
		}
		return 1
	}
	total, order := 0, make([]int, shards)
	for s := range shards {
		total += weight(s)
		order[s] = s
	}
	shares, left := make([]int, shards), slots
	for s := range shards {
		shares[s] = slots * weight(s) / total
		left -= shares[s]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(slots*weight(b)%total, slots*weight(a)%total) })
	for _, s := range order[:left] {
		shares[s]++
	}
	return shares
}

// SlotTable is which shard has which slots, as the layout record keeps it: one for each number of slots the rules use,
// so that tables with one key stay together.
type SlotTable struct {
	Layout int       `json:"layout"` // the version it was made for
	Slots  int       `json:"slots"`
	Owners []SlotRun `json:"owners"` // in order, without gaps
}

// SlotRun is the slots from First to Last, which one shard has.
type SlotRun struct {
	First int   `json:"first"`
	Last  int   `json:"last"`
	Shard Shard `json:"shard"`
}

func (s Slots) table(layout int) SlotTable {
	t := SlotTable{Layout: layout, Slots: len(s.owner)}
	for slot, owner := range s.owner {
		if n := len(t.Owners); n > 0 && t.Owners[n-1].Shard == owner {
			t.Owners[n-1].Last = slot
		} else {
			t.Owners = append(t.Owners, SlotRun{slot, slot, owner})
		}
	}
	return t
}

// read is the table a record holds, of a number of shards it does not say; ok is false where it does not say of each slot, once, which shard has it.
func (t SlotTable) read() (s Slots, ok bool) {
	for _, run := range t.Owners {
		if t.Slots > mostSlots || run.First != len(s.owner) || run.Last < run.First || run.Last >= t.Slots || run.Shard < 0 {
			return s, false
		}
		for range run.Last - run.First + 1 {
			s.owner = append(s.owner, run.Shard)
		}
	}
	return s, len(s.owner) == t.Slots && t.Slots > 0
}

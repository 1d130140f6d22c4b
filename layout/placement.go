package layout

import "fmt"

// Placement brings the 64-bit hash of a key down to a shard. Rules place rows by Modulo or Slots; the others are there to
// be compared with (package survey). Every one is a pure function of its arguments, the same on every machine and in
// every version (testdata/placement.tsv).
type Placement interface {
	Shard(hash uint64) Shard
	String() string
}

// Modulo is the remainder by the number of shards: what PostgreSQL's hash partitioning does with the same modulus for
// every partition (satisfies_hash_partition, src/backend/partitioning/partbounds.c).
type Modulo uint64

// Shard is the remainder.
func (m Modulo) Shard(hash uint64) Shard { return Shard(hash % uint64(m)) }

func (m Modulo) String() string { return fmt.Sprintf("modulo %d", uint64(m)) }

// Jump is the number of shards for jump consistent hashing: the shard a key jumps to last as shards are added one by one
// (Lamping, Veach: A Fast, Minimal Memory, Consistent Hash Algorithm, 2014, arXiv:1406.2294).
type Jump int

// Shard follows the key's jumps.
func (j Jump) Shard(hash uint64) Shard {
	at, next := int64(-1), int64(0)
	for next < int64(j) {
		at = next
		hash = hash*2862933555777941757 + 1
		next = int64(float64(at+1) * (float64(1<<31) / float64(hash>>33+1)))
	}
	return Shard(at)
}

func (j Jump) String() string { return fmt.Sprintf("jump hash over %d", int(j)) }

// Rendezvous is the number of shards for highest random weight hashing: each shard has a score for the key, the highest
// wins (Thaler, Ravishankar: Using Name-Based Mappings to Increase Hit Rates, IEEE/ACM ToN 6(1), 1998).
type Rendezvous int

// Shard compares the scores.
func (r Rendezvous) Shard(hash uint64) Shard {
	best, highest := Shard(0), uint64(0)
	for s := range Shard(r) {
		if score := mix64(hash ^ mix64(uint64(s)+1)); score > highest {
			best, highest = s, score
		}
	}
	return best
}

func (r Rendezvous) String() string { return fmt.Sprintf("rendezvous over %d", int(r)) }

// mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
func mix64(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

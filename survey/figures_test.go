package survey

import (
	"crypto/sha1"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// The figures are a published study's: 100,000 keys user-0 …, hashed by the first eight bytes of their SHA-1.
const studied = 100_000

func hashed(key string) uint64 {
	sum := sha1.Sum([]byte(key))
	return binary.BigEndian.Uint64(sum[:])
}

func studyKeys() []Weighed {
	keys := make([]Weighed, studied)
	for i := range keys {
		h := hashed("user-" + strconv.Itoa(i))
		keys[i] = Weighed{Hash: h, Position: h, Rows: 1, Bytes: 1}
	}
	return keys
}

// near fails where two percentages are further apart than a tolerance.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.2f, the study has %.2f, further apart than %.2f", what, got, want, tolerance)
	}
}

// The study does not give its hash away: read as it says, modulo moves 88.80 % of these keys, not 88.9 %. So each figure
// is held to rounding where ours comes within it, else to what two samples of 100,000 keys differ by: one standard error
// of a share of a ninth is 0.1 %, of the difference of two 0.14 %.
func TestGrowingFromEightToNineCostsWhatAStudyFound(t *testing.T) {
	t.Parallel()
	const rounding, sample = 0.0501, 0.3
	keys := studyKeys()
	found := map[string]Cost{}
	for _, s := range Strategies() {
		found[s.Name] = s.Compare(keys, 8, 9)
	}
	for _, f := range []struct {
		strategy                       string
		moved, least, largest, ratio   float64
		tMoved, tLeast, tLarge, tRatio float64
	}{
		{"modulo", 88.9, 10.9, 11.3, 1.04, 0.11, rounding, rounding, 0.005},
		{"ranges, all bounds redrawn evenly", 50.0, 10.9, 11.3, 1.03, 0.1, rounding, rounding, 0.0051},
		{"ranges, cut in half", 6.4, 6.3, 12.6, 1.99, 0.07, rounding, rounding, 0.025},
		{"1024 slots, handed over whole", 11.0, 11.0, 11.3, 1.03, sample, 0.11, 0.11, 0.0051},
		{"16384 slots, handed over whole", 11.2, 11.0, 11.2, 1.02, sample, 0.06, rounding, 0.01},
		{"rendezvous", 11.3, 10.9, 11.3, 1.03, sample, rounding, rounding, 0.005},
		{"jump hash", 10.9, 10.9, 11.3, 1.04, sample, rounding, 0.11, 0.005},
		// The ring's points depend on how nodes are named: with 128 each a share is off by a tenth of itself.
		{"ring, 128 points a shard", 10.7, 9.4, 13.3, 1.41, 2, 1, 1.5, 0.25},
	} {
		c := found[f.strategy]
		near(t, f.strategy+": moved", 100*c.Keys, f.moved, f.tMoved)
		near(t, f.strategy+": least share", 100*c.Least, f.least, f.tLeast)
		near(t, f.strategy+": largest share", 100*c.Largest, f.largest, f.tLarge)
		near(t, f.strategy+": ratio", c.Ratio, f.ratio, f.tRatio)
	}
}

// postgresRule is the rule of a table of these shards whose key is a bigint.
func postgresRule(t *testing.T, spec layout.Spec) *layout.Rule {
	t.Helper()
	spec.Tables = append(spec.Tables, layout.ShardedTable{Column: "id"})
	if spec.Tables[0].Column != "id" {
		t.Fatal("a rule for another column")
	}
	table := &pg.Table{Name: pg.Name{Schema: "public", Table: "t"}, Kind: 'r', Columns: []pg.Column{{Num: 1, Name: "id", Type: "bigint", TypeOID: 20, BaseOID: 20, Deterministic: true}}}
	l, err := layout.Compile(spec, []*pg.Table{table})
	if err != nil {
		t.Fatal(err)
	}
	return l.Rule(table.Name)
}

// PostgreSQL's own hash over 200,000 ids; a partition of modulus 8 is split into two of modulus 16, since a modulus must
// divide the next.
func TestPostgresPartitionsGrowAsAStudyFound(t *testing.T) {
	t.Parallel()
	const rows = 200_000
	rule := postgresRule(t, layout.Spec{Shards: 8})
	many := layout.NewSlots(72, 8, nil)
	more := many.HandOver(9, nil)
	nine, whole, split := 0, 0, make([]int, 9)
	for i := range rows {
		hash, ok := rule.Hash([]pg.Datum{{Kind: pg.Text, Bytes: strconv.AppendInt(nil, int64(i)+1, 10)}})
		if !ok {
			t.Fatal("a key without a hash")
		}
		if rule.Placement().Shard(hash) != layout.Modulo(9).Shard(hash) {
			nine++
		}
		if many.Shard(hash) != more.Shard(hash) {
			whole++
		}
		if hash%16 == 8 {
			split[8]++
		} else {
			split[hash%8]++
		}
	}
	// 88.5 % is further from 8/9 than 200,000 ids of their own come: the study's rows shared keys.
	near(t, "an even nine moves", 100*float64(nine)/rows, 88.5, 0.6)
	near(t, "one of eight split in two moves", 100*float64(split[8])/rows, 6.3, 0.15)
	near(t, "largest by smallest after the split", float64(slices.Max(split))/float64(slices.Min(split)), 2.12, 0.1)
	near(t, "72 partitions on eight become 72 on nine", 100*float64(whole)/rows, 11.1, 0.25)
}

// zipf is the part of all requests that each of the study's keys has, the first one the most.
func zipf(s float64) []float64 {
	parts, total := make([]float64, studied), 0.0
	for i := range parts {
		parts[i] = math.Pow(float64(i+1), -s)
		total += parts[i]
	}
	for i := range parts {
		parts[i] /= total
	}
	return parts
}

// What the heaviest key puts on its shard does not depend on the hash; which shard the next ones meet does. So the study's
// hottest shard must be an ordinary draw: between the 2nd and the 98th of a hundred that this many keys of other names give.
func TestEvenKeysAreNotEvenLoadAsAStudyFound(t *testing.T) {
	t.Parallel()
	for _, f := range []struct{ s, top, hottest, alone float64 }{{0.8, 2.2, 1.11, 0.18}, {1.0, 8.3, 1.46, 0.66}, {1.2, 19.6, 2.14, 1.57}} {
		parts := zipf(f.s)
		near(t, "the top key", 100*parts[0], f.top, 0.0501)
		near(t, "the top key alone", 8*parts[0], f.alone, 0.00501)
		var draws []float64
		for draw := range 100 {
			load := make([]float64, 8)
			for i, p := range parts[:5000] { // the others are spread evenly
				load[layout.Modulo(8).Shard(hashed(strconv.Itoa(draw)+"-"+strconv.Itoa(i)))] += p
			}
			rest := 1.0
			for _, l := range load {
				rest -= l
			}
			draws = append(draws, 8*slices.Max(load)+rest)
		}
		slices.Sort(draws)
		if f.hottest < draws[2]-0.005 || f.hottest > draws[97]+0.005 {
			t.Errorf("s = %.1f: hottest shard %.2f, ours are %.2f to %.2f", f.s, f.hottest, draws[2], draws[97])
		}
	}
}

// The same for one hot key stored as K: its load halves with each doubling until what else is on the shards counts.
func TestSubKeysCoolAHotKeyAsAStudyFound(t *testing.T) {
	t.Parallel()
	parts := zipf(1.2)
	ks := []int{1, 2, 4, 8, 16}
	study := []SubKeys{{1, 2.14, 1}, {2, 1.67, 2}, {4, 1.80, 3}, {8, 1.60, 5}, {16, 1.50, 7}}
	draws := make([][]float64, len(ks))
	hits := make([][]int, len(ks))
	for draw := range 100 {
		shares := make([]float64, 8)
		for i, p := range parts[:5000] {
			if i > 0 {
				shares[layout.Modulo(8).Shard(hashed(strconv.Itoa(draw)+"-"+strconv.Itoa(i)))] += p
			}
		}
		for _, p := range parts[5000:] {
			for s := range shares {
				shares[s] += p / 8
			}
		}
		key := strconv.Itoa(draw) + "-0"
		for n, sub := range SplitKey(shares, parts[0], layout.Modulo(8).Shard(hashed(key)), layout.Modulo(8), func(k int) uint64 { return hashed(subKey(key, k)) }, ks...) {
			draws[n], hits[n] = append(draws[n], sub.Hottest), append(hits[n], sub.Hit)
		}
	}
	for n, f := range study {
		slices.Sort(draws[n])
		slices.Sort(hits[n])
		if f.Hottest < draws[n][2]-0.005 || f.Hottest > draws[n][97]+0.005 {
			t.Errorf("K = %d: hottest %.2f, ours are %.2f to %.2f", f.K, f.Hottest, draws[n][2], draws[n][97])
		}
		if f.Hit < hits[n][0] || f.Hit > hits[n][99] {
			t.Errorf("K = %d: %d shards hit, ours are %d to %d", f.K, f.Hit, hits[n][0], hits[n][99])
		}
		if n > 0 && draws[n][50] >= draws[n-1][50] {
			t.Errorf("K = %d does not cool the hottest shard: median %.2f, %.2f before", f.K, draws[n][50], draws[n-1][50])
		}
	}
}

func TestAnIncreasingKeyGoesWhereAStudyFound(t *testing.T) {
	t.Parallel()
	last, busiest := 0, make([]int, 8)
	const fresh = 1000
	for i := range fresh {
		if layout.EvenRanges(8).Shard(^uint64(0)-uint64(i)) == 7 {
			last++
		}
		busiest[layout.Modulo(8).Shard(hashed("user-"+strconv.Itoa(studied+i)))]++
	}
	near(t, "new rows on the last range", 100*float64(last)/fresh, 100, 0)
	// The study does not say how many rows it took; 13.1 % is what some thousands give.
	near(t, "on the busiest of eight", 100*float64(slices.Max(busiest))/fresh, 13.1, 1.5)
}

// Whatever the keys and their weights, handing slots over moves no more rows than modulo and strategies that only add
// move rows to new shards alone.
func TestStrategiesThatOnlyAddMoveOnlyToNewShards(t *testing.T) {
	t.Parallel()
	for _, seed := range pgtest.Seeds(t, "SURVEY_SEED", 3) {
		random := rand.New(rand.NewPCG(seed, seed))
		before := 1 + random.IntN(20)
		after := before + 1 + random.IntN(5)
		for _, s := range Strategies() {
			if s.Name == "modulo" || s.Name == "ranges, all bounds redrawn evenly" {
				continue
			}
			from, to := s.Between(before, after)
			for range 2000 {
				h := random.Uint64()
				if a, b := from.Shard(h), to.Shard(h); a != b && int(b) < before || int(a) >= before || int(b) >= after {
					t.Fatalf("%s, %d to %d shards: hash %d goes from %v to %v", s.Name, before, after, h, a, b)
				}
			}
		}
	}
}

package layout

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// placements are the strategies whose answers testdata/placement.tsv keeps, by its columns.
func placements(shards int) []Placement {
	return []Placement{
		Modulo(shards), Jump(shards), Rendezvous(shards), NewRing(shards, 128), EvenRanges(shards), CutRanges(max(1, shards-3), shards),
		NewSlots(1024, shards, nil), NewSlots(16384, shards, nil),
	}
}

// The file was written once; a placement that changes would send every row of a layout that serves elsewhere.
func TestPlacementsAreTheSameInEveryVersion(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/placement.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		fields := strings.Split(scanner.Text(), "\t")
		hash, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil { // the line of names
			continue
		}
		lines++
		shards, _ := strconv.Atoi(fields[1])
		for i, p := range placements(shards) {
			if got := fmt.Sprint(int(p.Shard(hash))); got != fields[2+i] {
				t.Errorf("%s: hash %d is on shard %s, it was on %s", p, hash, got, fields[2+i])
			}
		}
	}
	if lines < 500 {
		t.Errorf("only %d hashes", lines)
	}
}

// FuzzPlacement: every strategy answers with a shard there is, twice the same, and of those that only add shards a key
// moves to none but the new one.
func FuzzPlacement(f *testing.F) {
	f.Add(uint64(0), uint8(0))
	f.Add(^uint64(0), uint8(8))
	of := [18][]Placement{}
	for shards := 1; shards < len(of); shards++ {
		of[shards] = placements(shards)
	}
	f.Fuzz(func(t *testing.T, hash uint64, n uint8) {
		shards := int(n)%16 + 1
		for i, p := range of[shards] {
			s, next := p.Shard(hash), of[shards+1][i].Shard(hash)
			if s < 0 || int(s) >= shards || s != p.Shard(hash) {
				t.Fatalf("%s: hash %d is on %v", p, hash, s)
			}
			switch p.(type) {
			case Modulo, Ranges:
			default:
				if next != s && int(next) != shards {
					t.Fatalf("%s: hash %d goes from %v to %v with shard %d", p, hash, s, next, shards)
				}
			}
		}
		cut := CutRanges(shards, shards+1).Shard(hash)
		if was := EvenRanges(shards).Shard(hash); cut != was && int(cut) != shards {
			t.Fatalf("cut ranges: hash %d goes from %v to %v", hash, was, cut)
		}
	})
}

// FuzzHandOver: from any table to any number of shards and weights the shares come out exactly, and only what a shard has
// too many moves.
func FuzzHandOver(f *testing.F) {
	f.Add([]byte{0, 0, 1, 1, 2, 2, 2}, []byte{1, 2}, uint8(2))
	f.Add([]byte{5, 5, 5, 0}, []byte{}, uint8(3))
	f.Fuzz(func(t *testing.T, owners, heavy []byte, n uint8) {
		shards := int(n)%16 + 1
		if len(owners) < shards || len(owners) > 4096 {
			return
		}
		var weights []int
		for s := range min(shards, len(heavy)) {
			weights = append(weights, int(heavy[s])+1)
		}
		before := Slots{shards: 256}
		had := make([]int, 256)
		for _, o := range owners {
			before.owner = append(before.owner, Shard(o))
			had[o]++
		}
		after := before.HandOver(shards, weights)
		has, moved := make([]int, shards), 0
		for slot, s := range after.owner {
			has[s]++
			if s != before.owner[slot] {
				moved++
			}
		}
		least := 0
		for s, count := range had {
			want := 0
			if s < shards {
				want = slotShares(len(owners), shards, weights)[s]
				if has[s] != want {
					t.Fatalf("shard %d has %d slots, its share is %d", s, has[s], want)
				}
			}
			least += max(0, count-want)
		}
		if moved != least {
			t.Fatalf("%d slots moved, %d had to", moved, least)
		}
		if again, ok := after.table(1).read(); !ok || fmt.Sprint(again.owner) != fmt.Sprint(after.owner) {
			t.Fatal("a table does not read back from its record")
		}
	})
}

package layout

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"pgreshard/pg"
)

func TestSlotsAreSharedEvenlyAndNeverMoveBetweenOldShards(t *testing.T) {
	t.Parallel()
	for _, slots := range []int{1, 7, 100, 1024} {
		before := NewSlots(slots, 1, nil)
		for shards := 2; shards <= min(slots, 40); shards++ {
			after, count := NewSlots(slots, shards, nil), make([]int, shards)
			for slot, s := range after.owner {
				count[s]++
				if s != before.owner[slot] && int(s) != shards-1 {
					t.Fatalf("%d slots, %d shards: slot %d moved from %v to %v", slots, shards, slot, before.owner[slot], s)
				}
			}
			if low, high := slices.Min(count), slices.Max(count); high-low > 1 {
				t.Fatalf("%d slots, %d shards: %v", slots, shards, count)
			}
			if !slices.Equal(before.HandOver(shards, nil).owner, after.owner) {
				t.Fatalf("%d slots: the table of %d shards is not that of one fewer with a shard more", slots, shards)
			}
			before = after
		}
	}
}

func TestWeightsDivideTheSlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		weights []int
		want    []int
	}{
		"one has half":         {[]int{2, 1, 1}, []int{50, 25, 25}},
		"what is left":         {[]int{1, 1, 1}, []int{34, 33, 33}},
		"to the largest parts": {[]int{3, 3, 1}, []int{43, 43, 14}},
		"a shard too small":    {[]int{1, 1000}, []int{0, 100}},
	} {
		if got := slotShares(100, len(c.weights), c.weights); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The table of a layout made from the one before it, as its record has it.
func TestALayoutHandsOverOnlyTheSlotsItsSharesAskFor(t *testing.T) {
	t.Parallel()
	table := tableOf("public.t", "k bigint")
	version := 0
	compile := func(shards int, weights []int, before []SlotTable) *Layout {
		t.Helper()
		version++
		l, err := Compile(Spec{Version: version, Shards: shards, Weights: weights, SlotTables: before, Tables: []ShardedTable{{Column: "k", Placement: PlacementSlots, Slots: 100}}}, []*pg.Table{table})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	three := compile(3, []int{2, 1, 1}, nil)
	four := compile(4, []int{2, 1, 1, 1}, three.Describe().SlotTables)
	if got := moved(three, four); got != 20 {
		t.Errorf("a fourth shard with a fifth of the weight was given %d of 100 slots", got)
	}
	two := compile(2, nil, four.Describe().SlotTables)
	if got := moved(four, two); got != 40 { // all that the two that go have, and no other
		t.Errorf("%d slots moved, 40 had to", got)
	}
	version = four.Version() - 1
	if again := compile(4, nil, four.Describe().SlotTables); moved(four, again) != 0 {
		t.Error("a layout compiled from its own record is another")
	}
	for name, wrong := range map[string]SlotTable{
		"a gap":             {1, 100, []SlotRun{{0, 49, 0}, {51, 99, 1}}},
		"an overlap":        {1, 100, []SlotRun{{0, 50, 0}, {50, 99, 1}}},
		"an end":            {1, 100, []SlotRun{{0, 49, 0}}},
		"too many":          {1, 100, []SlotRun{{0, 100, 0}}},
		"a shard below 0":   {1, 100, []SlotRun{{0, 99, -1}}},
		"a number of slots": {1, 1 << 40, []SlotRun{{0, 1<<40 - 1, 0}}},
	} {
		if _, ok := wrong.read(); ok {
			t.Errorf("a record with %s is read", name)
		}
	}
}

// moved counts the slots whose shard is another.
func moved(from, to *Layout) (n int) {
	a, b := from.Rules()[0].Placement().(Slots), to.Rules()[0].Placement().(Slots)
	for slot := range a.owner {
		if a.owner[slot] != b.owner[slot] {
			n++
		}
	}
	return n
}

func TestKeysSpreadEvenlyOverSlots(t *testing.T) {
	t.Parallel()
	r := ruleOf(t, Spec{Shards: 5, Tables: []ShardedTable{{Column: "k", Placement: PlacementSlots, Slots: 64}}}, tableOf("public.t", "k bigint"))
	count := make([]int, 5)
	for i := range 200_000 {
		count[place(t, r, text(strconv.Itoa(i)))]++
	}
	for s, n := range count {
		if want := 200_000 * slotShares(64, 5, nil)[s] / 64; math.Abs(float64(n-want)) > 1500 {
			t.Errorf("shard %d has %d keys, its slots are worth %d", s, n, want)
		}
	}
	if got := r.Describe(); got != "hash(k) modulo 64 slots over 5 shards" {
		t.Error(got)
	}
}

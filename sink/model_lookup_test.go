package sink_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgreshard/pgtest"
)

const keyIsLogged modelRule = "with several sources the identity holds the sharding key"

// mappedWorld is an omnisharded mapping of keys to shards, and rows that live where it says: the part of the design that moves
// rows when their mapping changes.
type mappedWorld struct {
	chooser
	lowest     bool // a key without translation is asked of the shard that is least far, else of the first
	rendezvous bool // before and after a mapping changes, every shard commits
	on         []mappedShard
	log        []mappedChange
}

type mappedShard struct {
	checkpoint int
	mapping    map[int]int
	rows       map[int]int         // id to key
	outbox     map[int]map[int]int // by position
}

func (s mappedShard) clone() mappedShard {
	return mappedShard{s.checkpoint, maps.Clone(s.mapping), maps.Clone(s.rows), maps.Clone(s.outbox)}
}

type mappedChange struct {
	kind    byte // i, d: the row id; m: the mapping of key
	id, key int
	to      int
}

func (m *mappedWorld) run(shards, keys, changes int) error {
	mapping, rows := map[int]int{}, map[int]int{}
	for k := range keys {
		mapping[k] = m.pick(shards)
	}
	for range shards {
		m.on = append(m.on, mappedShard{mapping: maps.Clone(mapping), rows: map[int]int{}, outbox: map[int]map[int]int{}})
	}
	for id := range changes {
		ids := slices.Sorted(maps.Keys(rows))
		switch c := (mappedChange{kind: "iimd"[m.pick(4)], id: id, key: m.pick(keys)}); {
		case c.kind == 'i':
			rows[id] = c.key
			m.log = append(m.log, c)
		case c.kind == 'm':
			c.to = m.pick(shards)
			mapping[c.key] = c.to
			m.log = append(m.log, c)
		case len(ids) > 0:
			c.id = ids[m.pick(len(ids))]
			delete(rows, c.id)
			m.log = append(m.log, c)
		}
	}
	for m.low() < len(m.log) {
		if err := m.live(); err != nil {
			return err
		}
	}
	got := map[int]int{}
	for i, shard := range m.on {
		for id, key := range shard.rows {
			if _, twice := got[id]; twice || mapping[key] != i {
				return fmt.Errorf("%w: row %d is on shard %d, twice: %v", errModel, id, i, twice)
			}
			got[id] = key
		}
	}
	if !maps.Equal(got, rows) {
		return fmt.Errorf("%w: rows are lost", errModel)
	}
	return nil
}

func (m *mappedWorld) low() int {
	low := len(m.log)
	for _, s := range m.on {
		low = min(low, s.checkpoint)
	}
	return low
}

// live is one worker's life.
func (m *mappedWorld) live() error {
	open := make([]mappedShard, len(m.on))
	for i, s := range m.on {
		open[i] = s.clone()
	}
	var all []int
	for i := range open {
		all = append(all, i)
	}
	start := m.low()
	dies := start + 1 + m.pick(len(m.log)-start+1)
	for n := start + 1; n <= len(m.log); n++ {
		c := m.log[n-1]
		if n == dies {
			return nil
		}
		if c.kind == 'm' && m.rendezvous {
			for i := range open {
				m.on[i] = open[i].clone()
			}
		}
		if err := m.apply(open, n, c); err != nil {
			return err
		}
		for i := range open {
			open[i].checkpoint = max(open[i].checkpoint, n)
		}
		if c.kind == 'm' && m.rendezvous {
			for i := len(all) - 1; i > 0; i-- {
				k := m.pick(i + 1)
				all[i], all[k] = all[k], all[i]
			}
			for _, i := range all {
				if m.chance(7) {
					return nil // dead between two shards' commits
				}
				m.on[i] = open[i].clone()
			}
			continue
		}
		for i := range open {
			if m.chance(3) {
				m.on[i] = open[i].clone()
			}
		}
	}
	copy(m.on, open)
	return nil
}

func (m *mappedWorld) apply(open []mappedShard, n int, c mappedChange) error {
	skips := func(i int) bool { return open[i].checkpoint >= n }
	asked := 0
	for i := range open {
		if open[i].checkpoint < open[asked].checkpoint && m.lowest {
			asked = i
		}
	}
	switch c.kind {
	case 'i':
		to := open[asked].mapping[c.key]
		if _, there := open[to].rows[c.id]; there && !skips(to) {
			return fmt.Errorf("%w: insert of row %d, which is there", errModel, c.id)
		}
		if !skips(to) {
			open[to].rows[c.id] = c.key
		}
	case 'd':
		found, ahead := 0, false
		for i := range open {
			ahead = ahead || skips(i)
			if _, there := open[i].rows[c.id]; there && !skips(i) {
				delete(open[i].rows, c.id)
				found++
			}
		}
		if found != 1 && !(found == 0 && ahead) {
			return fmt.Errorf("%w: delete of row %d, which is on %d shards", errModel, c.id, found)
		}
	case 'm':
		return m.rehome(open, n, c, skips)
	}
	return nil
}

// rehome moves the rows of a key, by way of the outbox of the shards they leave.
func (m *mappedWorld) rehome(open []mappedShard, n int, c mappedChange, skips func(int) bool) error {
	moved := map[int]int{}
	for i := range open {
		if !skips(i) && i != c.to {
			left := map[int]int{}
			for id, key := range open[i].rows {
				if key == c.key {
					left[id] = key
				}
			}
			maps.DeleteFunc(open[i].rows, func(_, key int) bool { return key == c.key })
			open[i].outbox[n] = left
		}
		maps.Copy(moved, open[i].outbox[n])
	}
	for i := range open {
		if !skips(i) {
			open[i].mapping[c.key] = c.to
		}
	}
	if skips(c.to) {
		return nil
	}
	for id, key := range moved {
		if _, there := open[c.to].rows[id]; there {
			return fmt.Errorf("%w: row %d is moved to where it is", errModel, id)
		}
		open[c.to].rows[id] = key
	}
	return nil
}

// A shard that is ahead after a crash answers from the future. Asking the one that is least far, or letting none be ahead
// where a mapping changes, is enough alone; without either, rows end elsewhere or are lost.
func TestModelOfLookupsAndRowsThatFollowTheirMapping(t *testing.T) {
	t.Parallel()
	for _, right := range []mappedWorld{{lowest: true, rendezvous: true}, {lowest: true}, {rendezvous: true}} {
		for _, seed := range pgtest.Seeds(t, "MODEL_SEED", modelRuns()) {
			w := right
			w.chooser = dice{rand.New(rand.NewPCG(seed, 1))}
			if err := w.run(3, 3, 14); err != nil {
				t.Fatalf("MODEL_SEED=%d, %+v: %v", seed, right, err)
			}
		}
	}
	needed(t, "either", func(c chooser) error { return (&mappedWorld{chooser: c}).run(3, 3, 14) })
}

// Two sources whose ids are unique only within each: tenant t is of source t%2 and shard t%3, and a delete whose identity
// lacks the tenant is asked of every shard.
func TestModelOfTwoSourcesWithTheSameIds(t *testing.T) {
	t.Parallel()
	run := func(c chooser, without modelRule) error {
		const shards, tenants, ids = 3, 6, 6
		sources, on := [2]map[int]int{{}, {}}, [shards]map[int]int{{}, {}, {}}
		for range 20 {
			source, id := c.pick(2), c.pick(ids)
			tenant, there := sources[source][id]
			if !there {
				tenant = c.pick(tenants/2)*2 + source
				if _, taken := on[tenant%shards][id]; taken {
					return nil // refused loudly: two sources, one key
				}
				sources[source][id], on[tenant%shards][id] = tenant, tenant
				continue
			}
			delete(sources[source], id)
			found := 0
			for i := range on {
				if _, there := on[i][id]; there && (i == tenant%shards || without == keyIsLogged) {
					delete(on[i], id)
					found++
				}
			}
			if found != 1 {
				return fmt.Errorf("%w: a delete found %d rows", errModel, found)
			}
		}
		got := 0
		for _, rows := range on {
			got += len(rows)
		}
		if got != len(sources[0])+len(sources[1]) {
			return fmt.Errorf("%w: rows are lost", errModel)
		}
		return nil
	}
	for _, seed := range pgtest.Seeds(t, "MODEL_SEED", modelRuns()) {
		if err := run(dice{rand.New(rand.NewPCG(seed, 1))}, ""); err != nil {
			t.Fatalf("MODEL_SEED=%d: %v", seed, err)
		}
	}
	needed(t, keyIsLogged, func(c chooser) error { return run(c, keyIsLogged) })
}

// needed fails unless some run without a rule ends wrong.
func needed(t *testing.T, rule modelRule, run func(chooser) error) {
	t.Helper()
	const most = 50_000
	for seed := uint64(1); seed <= most; seed++ {
		if err := run(dice{rand.New(rand.NewPCG(seed, 2))}); errors.Is(err, errModel) {
			t.Logf("without %q: run %d: %v", rule, seed, err)
			return
		}
	}
	t.Errorf("without %q no run of %d ends wrong", rule, most)
}

package layout

import (
	"fmt"
	"slices"

	"pgreshard/pg"
)

// mapping is a rule's lists, ranges and default, ready to be searched in that order.
type mapping struct {
	keyType keyType
	list    []listed // by value
	ranges  []span   // by lower bound, none overlapping
	rest    *Shard   // the default's shard
}

type listed struct {
	value value
	text  string
	shard Shard
}

// span is a range from low (inclusive) to high (exclusive), nil where there is no bound.
type span struct {
	low, high         *value
	lowText, highText string
	shard             Shard
	label             string
}

// find searches list, range, default.
func (m *mapping) find(v value) (Shard, bool) {
	if i, ok := m.listIndex(v); ok {
		return m.list[i].shard, true
	}
	if s, ok := m.inRange(v); ok {
		return s, true
	}
	if m.rest != nil {
		return *m.rest, true
	}
	return 0, false
}

func (m *mapping) listIndex(v value) (i int, found bool) {
	low, high := 0, len(m.list)
	for low < high {
		middle := (low + high) / 2
		switch c := m.keyType.compare(v, m.list[middle].value); {
		case c == 0:
			return middle, true
		case c < 0:
			high = middle
		default:
			low = middle + 1
		}
	}
	return low, false
}

func (m *mapping) inRange(v value) (Shard, bool) {
	low, high := 0, len(m.ranges) // ranges[:low] begin at v or below
	for low < high {
		middle := (low + high) / 2
		if bound := m.ranges[middle].low; bound == nil || m.keyType.compare(*bound, v) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 {
		return 0, false
	}
	s := m.ranges[low-1]
	if s.high != nil && m.keyType.compare(v, *s.high) >= 0 {
		return 0, false
	}
	return s.shard, true
}

// compileMapping checks the entries that hold for one rule and makes them searchable.
func compileMapping(t keyType, entries []Mapping, shards int, problems *Problems) *mapping {
	m := &mapping{keyType: t}
	for _, e := range entries {
		if !e.check(shards, problems) {
			continue
		}
		switch e.Kind {
		case KindList:
			m.addList(e, problems)
		case KindRange:
			m.addRange(e, problems)
		case KindDefault:
			if m.rest != nil {
				problems.add("", fmt.Sprintf("%s: a second default", e.label()), "keep one default for a column")
			}
			shard := Shard(*e.Shard)
			m.rest = &shard
		}
	}
	m.sortRanges(problems)
	return m
}

// check refuses an entry that can mean nothing, whatever the column's type.
func (m Mapping) check(shards int, problems *Problems) bool {
	hint := ""
	switch {
	case m.Kind != KindList && m.Kind != KindRange && m.Kind != KindDefault:
		hint = `kind is "list", "range" or "default"`
	case m.Shard == nil:
		hint = "add shard = the number of the shard these keys live on"
	case *m.Shard < 0 || *m.Shard >= shards:
		problems.add("", fmt.Sprintf("%s: shard %d is out of range", m.label(), *m.Shard), fmt.Sprintf("the layout has shards 0 to %d", shards-1))
		return false
	case m.Kind == KindList && len(m.Values) == 0:
		hint = "add values = [...]"
	case m.Kind != KindList && len(m.Values) > 0:
		hint = `values belong to kind = "list"`
	case m.Kind != KindRange && (m.Start != nil || m.End != nil):
		hint = `start and end belong to kind = "range"`
	default:
		return true
	}
	problems.add("", m.label()+": the entry cannot be understood", hint)
	return false
}

func (m *mapping) addList(e Mapping, problems *Problems) {
	for _, literal := range e.Values {
		v, ok := m.literal(e, literal, problems)
		if !ok {
			continue
		}
		i, found := m.listIndex(v)
		if found {
			problems.add("", fmt.Sprintf("%s: value %s is given twice", e.label(), literal), "a value names one shard: keep it in one list")
			continue
		}
		m.list = slices.Insert(m.list, i, listed{v, literal.(string), Shard(*e.Shard)})
	}
}

func (m *mapping) addRange(e Mapping, problems *Problems) {
	s := span{shard: Shard(*e.Shard), label: e.label()}
	if e.Start != nil {
		v, ok := m.literal(e, e.Start, problems)
		if !ok {
			return
		}
		s.low, s.lowText = &v, e.Start.(string)
	}
	if e.End != nil {
		v, ok := m.literal(e, e.End, problems)
		if !ok {
			return
		}
		s.high, s.highText = &v, e.End.(string)
	}
	if s.low != nil && s.high != nil && m.keyType.compare(*s.low, *s.high) >= 0 {
		problems.add("", s.label+": the range is empty", "start is inclusive and must lie below end, which is exclusive")
		return
	}
	m.ranges = append(m.ranges, s)
}

// literal reads a value of the configuration as one of the key's type.
func (m *mapping) literal(e Mapping, literal any, problems *Problems) (value, bool) {
	v, err := m.keyType.readText([]byte(literal.(string)), nil)
	if err != nil {
		problems.add("", fmt.Sprintf("%s: %q is not a value of type %s", e.label(), literal, m.keyType),
			"write values as PostgreSQL prints them, or correct data_type")
		return v, false
	}
	return v, true
}

// sortRanges orders ranges by their lower bound; two that share a value are a problem.
func (m *mapping) sortRanges(problems *Problems) {
	slices.SortStableFunc(m.ranges, func(a, b span) int {
		switch {
		case a.low == nil || b.low == nil:
			return nilFirst(a.low, b.low)
		default:
			return m.keyType.compare(*a.low, *b.low)
		}
	})
	widest := 0 // the range that reaches highest so far
	for i := 1; i < len(m.ranges); i++ {
		a, b := m.ranges[widest], m.ranges[i]
		if a.high == nil || b.low == nil || m.keyType.compare(*a.high, *b.low) > 0 {
			problems.add("", fmt.Sprintf("%s overlaps %s", b.label, a.label), "every value belongs to one range: end is exclusive, so the next start may equal it")
		}
		if a.high != nil && (b.high == nil || m.keyType.compare(*b.high, *a.high) > 0) {
			widest = i
		}
	}
}

func nilFirst(a, b *value) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	}
	return 1
}

// gaps lists what lies before, between and behind the ranges where no default takes it.
func (m *mapping) gaps(table pg.Name, column string) (gaps []Gap) {
	if m.rest != nil || len(m.ranges) == 0 {
		return nil
	}
	if first := m.ranges[0]; first.low != nil {
		gaps = append(gaps, Gap{Table: table, Column: column, To: first.lowText})
	}
	for i := 1; i < len(m.ranges); i++ {
		a, b := m.ranges[i-1], m.ranges[i]
		if a.high != nil && b.low != nil && m.keyType.compare(*a.high, *b.low) < 0 {
			gaps = append(gaps, Gap{Table: table, Column: column, From: a.highText, To: b.lowText})
		}
	}
	if last := m.ranges[len(m.ranges)-1]; last.high != nil {
		gaps = append(gaps, Gap{Table: table, Column: column, From: last.highText})
	}
	return gaps
}

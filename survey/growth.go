package survey

import "slices"

// recent is the part of the rows that count as written last, and grown the part of those that must have the highest keys
// for the key to be one that increases.
const (
	recent = 0.1
	grown  = 0.8
)

// youngest is the age, in transactions, that a tenth of the rows do not exceed. Rows of one transaction are of one age, so
// it may be more of them.
func (s *Sample) youngest() int64 {
	type aged struct {
		age  int64
		each float64
	}
	var rows []aged
	total := 0.0
	for _, st := range s.strata {
		for _, row := range st.rows {
			rows = append(rows, aged{row.age, st.each})
			total += st.each
		}
	}
	slices.SortFunc(rows, func(a, b aged) int { return int(min(max(a.age-b.age, -1), 1)) })
	passed := 0.0
	for _, row := range rows {
		if passed += row.each; passed >= recent*total {
			return row.age
		}
	}
	return 0
}

// growing says that the rows written last have the highest keys: under ranges they would all go to the last shard.
func (s *Sample) growing() bool {
	high := map[uint64]bool{} // hashes of the keys of the last tenth
	for _, k := range s.Weighed() {
		if k.Position >= position(1-recent) {
			high[k.Hash] = true
		}
	}
	youngest, young, above := s.youngest(), 0.0, 0.0
	for _, st := range s.strata {
		for _, row := range st.rows {
			if row.age > youngest {
				continue
			}
			young += st.each
			if k := s.keys[row.key]; k.hashed && high[k.hash] {
				above += st.each
			}
		}
	}
	return young > 0 && above >= grown*young
}

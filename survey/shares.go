package survey

import (
	"math"

	"pgreshard/layout"
)

// Share is what one shard will have of a table, of one.
type Share struct {
	Shard  layout.Shard `json:"shard"`
	Rows   float64      `json:"rows"`
	Error  float64      `json:"error"` // of Rows, either way, in 95 of 100 samples; 0: the whole table was read
	Bytes  float64      `json:"bytes"`
	Recent float64      `json:"recent"` // of the tenth of the rows written last
}

// shares adds the rows up that have a shard. Rows are read block by block, and those of one block are often alike; so the
// error is that of a ratio of two sums over blocks (Cochran, Sampling Techniques, 1977, section 9A.1 and, over the files,
// 6.11), not that of as many rows chosen one by one.
func (s *Sample) shares(shards int) []Share {
	out := make([]Share, shards)
	rows, bytes, recent := 0.0, 0.0, 0.0
	youngest := s.youngest()
	for i := range out {
		out[i].Shard = layout.Shard(i)
	}
	for _, st := range s.strata {
		for _, row := range st.rows {
			k := s.keys[row.key]
			if !k.placed {
				continue
			}
			to := &out[k.shard]
			to.Rows, to.Bytes = to.Rows+st.each, to.Bytes+st.each*float64(row.bytes)
			rows, bytes = rows+st.each, bytes+st.each*float64(row.bytes)
			if row.age <= youngest {
				to.Recent, recent = to.Recent+st.each, recent+st.each
			}
		}
	}
	for i := range out {
		out[i].Rows /= max(rows, 1)
		out[i].Bytes /= max(bytes, 1)
		out[i].Recent /= max(recent, 1)
		out[i].Error = s.shareError(out[i], rows)
	}
	return out
}

// certain is how many standard errors 95 of 100 samples stay within.
const certain = 1.96

func (s *Sample) shareError(share Share, all float64) float64 {
	variance := 0.0
	for _, st := range s.strata {
		type tally struct{ there, own float64 }
		blocks := map[int64]*tally{}
		for _, row := range st.rows {
			k := s.keys[row.key]
			if !k.placed {
				continue
			}
			c := blocks[row.block]
			if c == nil {
				c = &tally{}
				blocks[row.block] = c
			}
			c.there++
			if k.shard == share.Shard {
				c.own++
			}
		}
		n := float64(len(blocks))
		if n < 2 || st.each <= 1 {
			continue
		}
		sum, squares := 0.0, 0.0
		for _, c := range blocks {
			d := c.own - share.Rows*c.there
			sum, squares = sum+d, squares+d*d
		}
		spread := (squares - sum*sum/n) / (n - 1)
		variance += st.each * st.each * n * (1 - 1/st.each) * spread
	}
	return certain * math.Sqrt(variance) / max(all, 1)
}

package move

import (
	"cmp"
	"time"

	"pgreshard/copier"
	"pgreshard/pg"
)

// How far back a rate looks, and from how much on it is worth telling.
const (
	rateSpan    = 15 * time.Second
	slotSpan    = time.Minute // a slot lets go of log in leaps
	rateEnough  = 2 * time.Second
	sampleEvery = time.Second
)

// rate is how fast something goes, from samples of the last span, rateSpan where it is 0. The zero value has none.
type rate struct {
	samples []sample
	span    time.Duration
}

type sample struct {
	at   time.Time
	done int64 // grows
	left int64 // falls, or grows where more comes than is done
}

// add takes a sample. Work that begins again from less begins the rate again too.
func (r *rate) add(s sample) {
	if n := len(r.samples); n > 0 && s.done < r.samples[n-1].done {
		r.samples = nil
	}
	r.samples = append(r.samples, s)
	for s.at.Sub(r.samples[0].at) > cmp.Or(r.span, rateSpan) {
		r.samples = r.samples[1:]
	}
}

// ends are the oldest and the newest sample, ok where they are far enough apart to tell anything.
func (r *rate) ends() (first, last sample, ok bool) {
	if r == nil || len(r.samples) == 0 {
		return first, last, false
	}
	first, last = r.samples[0], r.samples[len(r.samples)-1]
	return first, last, last.at.Sub(first.at) >= rateEnough
}

// perSecond is how much is done in a second, nil while that is not known.
func (r *rate) perSecond() *float64 {
	first, last, ok := r.ends()
	if !ok {
		return nil
	}
	v := float64(last.done-first.done) / last.at.Sub(first.at).Seconds()
	return &v
}

// eta is in how many seconds nothing will be left if what is left goes on falling as it did; nil where it does not fall.
func (r *rate) eta() *float64 {
	first, last, ok := r.ends()
	fell := float64(first.left-last.left) / last.at.Sub(first.at).Seconds()
	if !ok || last.left > 0 && fell <= 0 {
		return nil
	}
	v := 0.0
	if last.left > 0 {
		v = float64(last.left) / fell
	}
	return &v
}

// growth is by how much what is left grows in a second, below 0 where it falls; nil while that is not known.
func (r *rate) growth() *float64 {
	first, last, ok := r.ends()
	if !ok {
		return nil
	}
	v := float64(last.left-first.left) / last.at.Sub(first.at).Seconds()
	return &v
}

// rates are those of a move; Move.mu guards them.
type rates struct {
	tables  map[tableKey]*rate // bytes of a table's file copied
	sources map[int]*rate      // the same of a whole source
	streams map[*follower]*rate
	slots   map[int]*rate // by source: log written, and log the slot keeps
	lags    map[int]*history
}

// history is a figure over the last minutes, every historyEvery; below 0 where it was not known.
type history struct {
	values []float64
	last   time.Time
}

const (
	historyEvery = 3 * time.Second
	historyMost  = 120
)

func (h *history) add(at time.Time, v float64) {
	if at.Sub(h.last) < historyEvery {
		return
	}
	h.last = at
	h.values = append(h.values, v)
	if len(h.values) > historyMost {
		h.values = h.values[1:]
	}
}

type tableKey struct {
	source int
	table  string
}

// copying takes a sample of one source's copy, once this process has read anything: what an earlier one had copied is
// counted before that, all at once.
func (r *rates) copying(at time.Time, source int, tables []copier.TableProgress) {
	if r.tables == nil {
		r.tables, r.sources = map[tableKey]*rate{}, map[int]*rate{}
	}
	all, begun := sample{at: at}, false
	for _, t := range tables {
		s := sample{at, t.SizeDone, t.Size - t.SizeDone}
		all.done, all.left = all.done+s.done, all.left+s.left
		if t.Bytes > 0 {
			begun = true
			key := tableKey{source, t.Table.String()}
			if r.tables[key] == nil {
				r.tables[key] = &rate{}
			}
			r.tables[key].add(s)
		}
	}
	if begun {
		if r.sources[source] == nil {
			r.sources[source] = &rate{}
		}
		r.sources[source].add(all)
	}
}

// streaming takes a sample of every stream there is and forgets the others.
func (r *rates) streaming(at time.Time, followers []*follower) {
	now := map[*follower]*rate{}
	for _, f := range followers {
		if now[f] = r.streams[f]; now[f] == nil {
			now[f] = &rate{}
		}
		left, age, ok := f.lag()
		if r.lags == nil {
			r.lags = map[int]*history{}
		}
		if r.lags[f.source] == nil {
			r.lags[f.source] = &history{}
		}
		if !ok {
			r.lags[f.source].add(at, -1)
			continue
		}
		r.lags[f.source].add(at, age.Seconds())
		s := sample{at: at, left: left}
		for _, shard := range f.sink.Stats() {
			s.done += shard.Inserted + shard.Updated + shard.Deleted
		}
		now[f].add(s)
	}
	r.streams = now
}

// slot takes a sample of what a source's slot keeps; without a slot it forgets.
func (r *rates) slot(at time.Time, source int, end pg.LSN, s *slotHealth) {
	if s == nil || s.retained == nil {
		delete(r.slots, source)
		return
	}
	if r.slots == nil {
		r.slots = map[int]*rate{}
	}
	if r.slots[source] == nil {
		r.slots[source] = &rate{span: slotSpan}
	}
	r.slots[source].add(sample{at: at, done: int64(end), left: *s.retained})
}

// copyETA is when the last source will be copied, nil while one has not begun or its rate is not known.
func (r *rates) copyETA(sources int) *float64 {
	longest := 0.0
	for n := range sources {
		eta := r.sources[n].eta()
		if eta == nil {
			return nil
		}
		longest = max(longest, *eta)
	}
	return &longest
}

// sample takes one of everything that has a rate.
func (m *Move) sample(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == StateCopying {
		for n, progress := range m.progress {
			if progress != nil {
				m.rates.copying(at, n, progress.Tables())
			}
		}
	}
	m.rates.streaming(at, m.followers)
}

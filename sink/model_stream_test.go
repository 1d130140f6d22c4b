package sink_test

// live is one worker's life: it starts at the lowest checkpoint, applies, commits shard by shard, and may die. whole: it
// came to the end of the log.
func (w *world) live(mortal bool) (whole bool, err error) {
	open := make([]modelShard, w.shards)
	for i, s := range w.on {
		open[i] = s.clone()
	}
	for n := w.lowest() + 1; ; n++ {
		w.maybe("iaabttpmd")
		if n > len(w.log) {
			break
		}
		if mortal && w.chance(12) {
			return false, nil
		}
		if err := (&applying{w, open, n}).apply(w.log[n-1]); err != nil {
			return false, err
		}
		for i := range open {
			open[i].checkpoint = max(open[i].checkpoint, n)
			if w.chance(3) {
				w.on[i] = open[i].clone()
			}
		}
	}
	copy(w.on, open)
	return true, nil
}

func (w *world) lowest() int {
	low := w.on[0].checkpoint
	for _, s := range w.on {
		low = min(low, s.checkpoint)
	}
	return low
}

// applying is change n on the shards' open transactions.
type applying struct {
	*world
	open []modelShard
	n    int
}

func (a *applying) skips(shard int) bool {
	return a.open[shard].checkpoint >= a.n && a.without != aheadSkips
}

func (a *applying) ahead() bool {
	for i := range a.open {
		if a.skips(i) {
			return true
		}
	}
	return false
}

func (a *applying) apply(c modelChange) error {
	if a.n <= a.forgive {
		a.forgiving(c)
		return nil
	}
	switch {
	case c.new == nil:
		return a.delete(*c.old)
	case !c.update:
		return a.insert(*c.new)
	}
	return a.update(c)
}

func (a *applying) insert(row modelRow) error {
	to := a.place(row.tenant)
	if a.skips(to) {
		return nil
	}
	if _, there := a.open[to].rows[row.id]; there {
		return a.wrong("insert of row %d, which is there", row.id)
	}
	a.open[to].rows[row.id] = row
	return nil
}

// where lists the shards on which an old row may be.
func (a *applying) where(old modelRow) (list []int) {
	for i := range a.open {
		if old.tenant == noTenant || i == a.place(old.tenant) {
			list = append(list, i)
		}
	}
	return list
}

func (a *applying) delete(old modelRow) error {
	found := 0
	for _, i := range a.where(old) {
		if a.skips(i) {
			continue
		}
		if _, there := a.open[i].rows[old.id]; there {
			delete(a.open[i].rows, old.id)
			found++
		}
	}
	if found > 1 || found == 0 && !a.anySkips(a.where(old)) {
		return a.wrong("delete of row %d, which is on %d shards", old.id, found)
	}
	return nil
}

func (a *applying) anySkips(list []int) bool {
	for _, i := range list {
		if a.skips(i) {
			return true
		}
	}
	return false
}

// leave takes a row off whichever of the shards has it and keeps its image there; one that is ahead is asked for the image
// it has kept.
func (a *applying) leave(list []int, id int) (image *modelRow) {
	for _, i := range list {
		row, there := a.open[i].rows[id]
		if a.skips(i) {
			row, there = a.open[i].outbox[a.n]
		} else if there {
			delete(a.open[i].rows, id)
			if a.without != outboxKeepsImage {
				a.open[i].outbox[a.n] = row
			}
		}
		if there {
			image = &row
		}
	}
	return image
}

func (a *applying) update(c modelChange) error {
	to, id := a.place(c.new.tenant), c.new.id
	if c.old != nil {
		id = c.old.id
	}
	var from []int // but to
	for i := range a.open {
		searched := a.identity == "id" && (c.old != nil || a.without != aheadIsSearched || !a.ahead())
		if i != to && (searched || c.old != nil && c.old.tenant != noTenant && i == a.place(c.old.tenant)) {
			from = append(from, i)
		}
	}
	if a.skips(to) {
		a.leave(from, id)
		return nil
	}
	row, there := a.open[to].rows[id]
	if there {
		delete(a.open[to].rows, id)
	} else if image := a.leave(from, id); image != nil {
		row, there = *image, true
	}
	if !there && (c.partial || !a.anySkips(from)) {
		return a.wrong("update of row %d, which is on no shard", id)
	}
	if _, taken := a.open[to].rows[c.new.id]; taken {
		return a.wrong("update onto row %d, which is there", c.new.id)
	}
	a.open[to].rows[c.new.id] = c.completed(row)
	return nil
}

func (c modelChange) completed(image modelRow) modelRow {
	row := *c.new
	if c.partial {
		row.big = image.big
	}
	return row
}

// forgiving: what the change says may be in the rows already, and later ones too.
func (a *applying) forgiving(c modelChange) {
	if c.new == nil {
		a.remove(*c.old)
		return
	}
	partial := c.partial && a.identity != "full"
	if !partial {
		if c.old != nil {
			a.remove(*c.old)
		}
		a.put(*c.new)
		return
	}
	find := *c.new
	if c.old != nil {
		find = *c.old
	}
	var image *modelRow
	for i := range a.open {
		if row, there := a.open[i].rows[find.id]; there && !a.skips(i) {
			delete(a.open[i].rows, find.id)
			image = &row
		}
	}
	if find.id != c.new.id && a.without != rekeyedIsFetched {
		image = nil
	}
	if image != nil {
		a.put(c.completed(*image))
		return
	}
	if a.without == partialIsFetched {
		return
	}
	if a.without != fetchMovesEnd {
		a.world.forgive = max(a.world.forgive, len(a.log))
	}
	if now, there := a.source[c.new.id]; there {
		a.put(now)
	}
}

func (a *applying) remove(old modelRow) {
	for _, i := range a.where(old) {
		if !a.skips(i) {
			delete(a.open[i].rows, old.id)
		}
	}
}

func (a *applying) put(row modelRow) {
	to := a.place(row.tenant)
	for i := range a.open {
		switch {
		case a.skips(i):
		case i == to:
			a.open[i].rows[row.id] = row
		case a.identity == "id" && a.without != putNowhereElse:
			delete(a.open[i].rows, row.id)
		}
	}
}

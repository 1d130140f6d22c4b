package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// copyTables copies every source, as many at once as the configuration says.
func (m *Move) copyTables(ctx context.Context) error {
	inv, err := m.takeInventory(ctx)
	if err != nil {
		return err
	}
	dest, err := m.destCatalog(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.progress = make([]*copier.Progress, len(m.Source.Shards))
	for n := range m.progress {
		m.progress[n] = &copier.Progress{}
	}
	m.mu.Unlock()
	g, copying := errgroup.WithContext(ctx)
	if m.CopySources > 0 {
		g.SetLimit(m.CopySources)
	}
	opened := make([]chan struct{}, len(m.Source.Shards))
	for n := range opened {
		opened[n] = make(chan struct{})
	}
	for n := range m.Source.Shards {
		g.Go(func() error {
			c := &sourceCopy{Move: m, inv: inv, dest: dest, n: n, opened: opened}
			if err := c.run(copying); err != nil {
				return fmt.Errorf("source %d: %w", n, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return m.recordCopied(ctx, inv)
}

// sourceCopy is one run of the copy of one source.
type sourceCopy struct {
	*Move
	inv   *inventory
	dest  *pg.Catalog
	n     int
	marks []map[mark]uint32 // by shard: chunks it holds and the file they were read from
	pages map[uint32]uint32 // blocks a chunk, by leaf
	snap  *copier.Snapshot
	again bool // an earlier run has copied something
	// opened are closed, by source, once its slot is made: what is changed there after its mapping rows were asked for comes in
	// its stream.
	opened []chan struct{}
}

type mark struct {
	leaf  string
	chunk int
}

func (c *sourceCopy) run(ctx context.Context) error {
	if err := c.readMarks(ctx); err != nil {
		return err
	}
	if err := c.openSnapshot(ctx); err != nil {
		return err
	}
	defer func() { c.snap.Close() }()
	if err := c.mappingsFollowed(ctx); err != nil {
		return err
	}
	// Files, sizes and columns as the snapshot's chunks will find them.
	catalog, err := pg.ReadCatalog(ctx, c.snap.Conn())
	if err != nil {
		return err
	}
	c.inv.sources[c.n] = catalog
	if err := c.decidePages(ctx); err != nil {
		return err
	}
	jobs, err := c.jobs(ctx)
	if err != nil {
		return err
	}
	var all []*pg.Chunk
	for _, j := range jobs {
		all = append(all, j.chunks...)
		c.progress[c.n].Expect(j.chunks)
	}
	todo := c.unmarked(all)
	if err := c.load(ctx, c.snap.ID, c.snap, todo, func(t pg.Name) bool { return c.again }); err != nil {
		return err
	}
	return c.held(ctx, all)
}

// mappingsFollowed waits until the slots are made of the sources that this one's keys may be asked of: the first, which an
// omnisharded mapping is followed on, and all of them where all are copied at once.
func (c *sourceCopy) mappingsFollowed(ctx context.Context) error {
	close(c.opened[c.n])
	for n, opened := range c.opened {
		if n > 0 && c.CopySources > 0 {
			break
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// errMarksLost means that a shard failed over to a standby that had not all of the copy. The next run copies what is
// missing there.
var errMarksLost = errors.New("a shard has lost chunks it held: it failed over")

// held makes sure that every shard holds every chunk, and one of its standbys too, as its present leader says.
func (c *sourceCopy) held(ctx context.Context, all []*pg.Chunk) error {
	return c.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) error {
		list, err := c.stream(c.n).Marks(ctx, conn)
		if err != nil {
			return err
		}
		there := map[mark]bool{}
		for _, k := range list {
			there[mark{k.Table, k.Chunk}] = true
		}
		for _, chunk := range all {
			if !there[mark{leafKey(chunk), chunk.Number}] {
				return fmt.Errorf("%w: chunk %d of %s on destination shard %d", errMarksLost, chunk.Number, chunk.Copy.From.Name, shard)
			}
		}
		return c.onStandby(ctx, shard, conn)
	})
}

func (c *sourceCopy) readMarks(ctx context.Context) error {
	c.marks = make([]map[mark]uint32, len(c.Destination.Shards))
	resumed := make([]bool, len(c.marks))
	err := c.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) error {
		list, err := c.stream(c.n).Marks(ctx, conn)
		c.marks[shard] = map[mark]uint32{}
		for _, k := range list {
			c.marks[shard][mark{k.Table, k.Chunk}] = k.Filenode
		}
		if err != nil {
			return err
		}
		tables, err := c.stream(c.n).ResumedTables(ctx, conn) // all of its marks may be void
		resumed[shard] = len(list) > 0 || len(tables) > 0
		return err
	})
	if c.again = slices.Contains(resumed, true); err != nil || c.again || len(c.Source.Shards) == 1 {
		return err
	}
	c.again, err = c.askedBefore(ctx)
	return err
}

// askedBefore says that other sources have rows on the shards whose mapping rows may have been asked of this one, after its slot
// was made: that slot must stay.
func (c *sourceCopy) askedBefore(ctx context.Context) (asked bool, err error) {
	began, others := make([]bool, len(c.marks)), make([]bool, len(c.marks))
	err = c.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) error {
		for n := range c.Source.Shards {
			list, err := c.stream(n).Marks(ctx, conn)
			if err != nil {
				return err
			}
			others[shard] = others[shard] || n != c.n && len(list) > 0
		}
		_, ok, err := c.stream(c.n).Position(ctx, conn)
		began[shard] = ok
		return err
	})
	return slices.Contains(others, true) && !slices.Contains(began, false), err
}

// openSnapshot makes the slot and reads under its snapshot; where an earlier run has copied something, the slot is
// that run's, and the rest is read under a new snapshot.
func (c *sourceCopy) openSnapshot(ctx context.Context) error {
	shard := c.Source.Shards[c.n]
	if c.again {
		if err := c.beginWhereLost(ctx); err != nil {
			return err
		}
		if err := c.slotThere(ctx, c.n); err != nil {
			return err
		}
		var err error
		c.snap, err = copier.NewSnapshot(ctx, shard, c.app())
		return err
	}
	slot, err := c.makeSlot(ctx, shard)
	if err != nil {
		return err
	}
	defer slot.Close()
	if c.snap, err = copier.ImportSnapshot(ctx, shard, c.app(), slot.Snapshot); err != nil {
		return err
	}
	if err := c.rememberTimeline(ctx, c.n, slot.Timeline); err != nil {
		c.snap.Close()
		return err
	}
	err = c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		s := c.stream(c.n)
		return errors.Join(s.Forget(ctx, conn), s.Begin(ctx, conn, slot.ConsistentPoint))
	})
	if err != nil {
		c.snap.Close()
	}
	return err
}

// beginWhereLost gives a shard its first checkpoint again that has failed over to a standby without it: until the copy is
// done all have the same.
func (c *sourceCopy) beginWhereLost(ctx context.Context) error {
	at := make([]pg.LSN, len(c.Destination.Shards))
	err := c.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) (err error) {
		at[shard], _, err = c.stream(c.n).Position(ctx, conn)
		return err
	})
	if err != nil || slices.Min(at) != 0 || slices.Max(at) == 0 {
		return err
	}
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.stream(c.n).Begin(ctx, conn, slices.Max(at))
	})
}

// makeSlot makes the slot anew: no row was copied under an earlier run's. That it is made is recorded first.
func (c *sourceCopy) makeSlot(ctx context.Context, shard pg.Shard) (*replicator.Slot, error) {
	if err := c.source(ctx, c.n, func(conn *pgx.Conn) error { return c.dropSlot(ctx, c.n, conn) }); err != nil {
		return nil, err
	}
	if err := c.rememberSlot(ctx, true); err != nil {
		return nil, err
	}
	slot, err := replicator.CreateSlot(ctx, shard, c.slot(c.n), false)
	if errors.Is(err, replicator.ErrSlotExists) {
		return nil, errors.Join(err, c.rememberSlot(ctx, false))
	}
	return slot, err
}

func (c *sourceCopy) rememberSlot(ctx context.Context, ours bool) error {
	return c.setDetail(ctx, slotKey(c.n), ours)
}

// decidePages remembers on the home, before the first chunk, how large each leaf's chunks are: marks name chunks by
// number, so a later run must cut the same.
func (c *sourceCopy) decidePages(ctx context.Context) error {
	key := fmt.Sprintf("pages_%d", c.n)
	if err := c.detail(ctx, key, &c.pages); err != nil {
		return err
	}
	if c.pages == nil || !c.again {
		c.pages = map[uint32]uint32{}
	}
	for _, leaf := range c.inv.leaves(c.n) {
		if c.pages[leaf.OID] == 0 {
			c.pages[leaf.OID] = copier.ChunkPages(leaf, c.CopyWorkers)
		}
	}
	return c.setDetail(ctx, key, c.pages)
}

// job is one root's part of the copy.
type job struct {
	table  *moved
	into   *pg.Table
	chunks []*pg.Chunk
}

// jobs cuts every table, and readies those an earlier run left half done.
func (c *sourceCopy) jobs(ctx context.Context) ([]job, error) {
	var jobs []job
	for _, t := range c.inv.tables {
		if !t.follows(c.n) {
			continue
		}
		j := job{table: t, into: c.dest.Table(t.name)}
		if j.into == nil {
			return nil, fmt.Errorf("table %s is missing on the destination; hint: it was dropped there, `cancel` and start again", t.name)
		}
		for _, leaf := range c.inv.sources[c.n].Leaves(c.inv.sources[c.n].Table(t.name)) {
			plan, err := copier.Plan(leaf, j.into, t.rule.Columns, t.rule.BinaryKey(), c.CopyFormat)
			if err != nil {
				return nil, err
			}
			j.chunks = append(j.chunks, copier.Split(plan, c.pages[leaf.OID])...)
		}
		if c.again {
			if err := c.resume(ctx, &j); err != nil {
				return nil, err
			}
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

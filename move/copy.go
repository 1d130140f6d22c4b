package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink"
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
	g, ctx := errgroup.WithContext(ctx)
	if m.CopySources > 0 {
		g.SetLimit(m.CopySources)
	}
	for n := range m.Source.Shards {
		g.Go(func() error {
			c := &sourceCopy{Move: m, inv: inv, dest: dest, n: n}
			if err := c.run(ctx); err != nil {
				return fmt.Errorf("source %d: %w", n, err)
			}
			return nil
		})
	}
	return g.Wait()
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
	return c.load(ctx, c.snap.ID, c.snap, todo, func(t pg.Name) bool { return c.again })
}

func (c *sourceCopy) readMarks(ctx context.Context) error {
	c.marks = make([]map[mark]uint32, len(c.Destination.Shards))
	return c.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) error {
		list, err := c.stream(c.n).Marks(ctx, conn)
		c.marks[shard] = map[mark]uint32{}
		for _, k := range list {
			c.marks[shard][mark{k.Table, k.Chunk}] = k.Filenode
		}
		return err
	})
}

// openSnapshot makes the slot and reads under its snapshot; where an earlier run has copied something, the slot is
// that run's, and the rest is read under a new snapshot.
func (c *sourceCopy) openSnapshot(ctx context.Context) error {
	for _, marks := range c.marks {
		c.again = c.again || len(marks) > 0
	}
	shard := c.Source.Shards[c.n]
	if c.again {
		if err := c.slotThere(ctx); err != nil {
			return err
		}
		var err error
		c.snap, err = copier.NewSnapshot(ctx, shard, c.app())
		return err
	}
	if err := c.source(ctx, c.n, func(conn *pgx.Conn) error { return replicator.DropSlot(ctx, conn, c.slot(c.n)) }); err != nil {
		return err
	}
	slot, err := replicator.CreateSlot(ctx, shard, c.slot(c.n), false)
	if err != nil {
		return err
	}
	defer slot.Close()
	if c.snap, err = copier.ImportSnapshot(ctx, shard, c.app(), slot.Snapshot); err != nil {
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

func (c *sourceCopy) slotThere(ctx context.Context) error {
	return c.source(ctx, c.n, func(conn *pgx.Conn) error {
		state, err := replicator.InspectSlot(ctx, conn, c.slot(c.n))
		if err != nil {
			return err
		}
		return state.Check()
	})
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
	return c.home(ctx, func(conn *pgx.Conn) error { return c.book.SetDetail(ctx, conn, key, c.pages) })
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

// resume readies a table whose copy was interrupted. A leaf whose file changed is read again whole. Rows that are read
// again are upserted, and the stream is told to forgive up to this snapshot; without a key to upsert by, the table is
// emptied and copied as of a slot of its own.
func (c *sourceCopy) resume(ctx context.Context, j *job) error {
	for _, chunk := range j.chunks {
		if c.fileChanged(chunk) {
			if err := c.voidMarks(ctx, leafKey(chunk)); err != nil {
				return err
			}
		}
	}
	if len(c.unmarked(j.chunks)) == 0 {
		return nil
	}
	if len(j.into.Key) == 0 {
		return c.copyAgain(ctx, j)
	}
	return c.rememberResume(ctx, j.table.name, checkpoints.Resumed{ForgiveUntil: c.snap.After})
}

func (c *sourceCopy) rememberResume(ctx context.Context, table pg.Name, r checkpoints.Resumed) error {
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.stream(c.n).Resume(ctx, conn, table.String(), r)
	})
}

func (c *sourceCopy) fileChanged(chunk *pg.Chunk) bool {
	for _, marks := range c.marks {
		if file, ok := marks[mark{leafKey(chunk), chunk.Number}]; ok && file != chunk.Copy.From.Filenode {
			return true
		}
	}
	return false
}

func (c *sourceCopy) voidMarks(ctx context.Context, leaf string) error {
	err := c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.stream(c.n).VoidMarks(ctx, conn, leaf)
	})
	if err == nil {
		for _, marks := range c.marks {
			for k := range marks {
				if k.leaf == leaf {
					delete(marks, k)
				}
			}
		}
	}
	return err
}

// leafKey names a leaf in marks: by OID, which a rename leaves alone.
func leafKey(chunk *pg.Chunk) string { return strconv.FormatUint(uint64(chunk.Copy.From.OID), 10) }

// holds says that a shard has its part of a chunk.
func (c *sourceCopy) holds(chunk *pg.Chunk, shard int) bool {
	_, ok := c.marks[shard][mark{leafKey(chunk), chunk.Number}]
	return ok
}

// unmarked lists the chunks that some shard does not hold, and counts the others as done.
func (c *sourceCopy) unmarked(chunks []*pg.Chunk) (todo []*pg.Chunk) {
	for _, chunk := range chunks {
		for shard := range c.marks {
			if !c.holds(chunk, shard) {
				todo = append(todo, chunk)
				break
			}
		}
	}
	return todo
}

// copyAgain empties a table without key and copies it as of a temporary slot, whose position the stream is told before
// any row is there: it leaves out what was committed before.
func (c *sourceCopy) copyAgain(ctx context.Context, j *job) error {
	shard := c.Source.Shards[c.n]
	slot, err := replicator.CreateSlot(ctx, shard, c.slot(c.n)+"_again", true)
	if err != nil {
		return err
	}
	defer slot.Close()
	snap, err := copier.ImportSnapshot(ctx, shard, c.app(), slot.Snapshot)
	if err != nil {
		return err
	}
	defer snap.Close()
	if err := c.rememberResume(ctx, j.table.name, checkpoints.Resumed{StartsAt: slot.ConsistentPoint}); err != nil {
		return err
	}
	for _, chunk := range j.chunks {
		if err := c.voidMarks(ctx, leafKey(chunk)); err != nil {
			return err
		}
	}
	if err := c.empty(ctx, j); err != nil {
		return err
	}
	err = c.load(ctx, snap.ID, snap, j.chunks, func(pg.Name) bool { return false })
	if err != nil {
		return err
	}
	for _, chunk := range j.chunks { // held now: the main run leaves them alone
		for _, marks := range c.marks {
			marks[mark{leafKey(chunk), chunk.Number}] = chunk.Copy.From.Filenode
		}
	}
	return nil
}

// empty removes from every shard what this source had put into a table without key.
func (c *sourceCopy) empty(ctx context.Context, j *job) error {
	return atOnce(ctx, len(c.Destination.Shards), func(ctx context.Context, n int) error {
		return c.on(ctx, c.Destination.Shards[n], pg.Writer, func(conn *pgx.Conn) error {
			if len(c.Source.Shards) > 1 && !j.table.rule.Omni {
				return c.emptyOwn(ctx, conn, j)
			}
			_, err := conn.Exec(ctx, "truncate "+j.into.Name.SQL())
			return err
		})
	})
}

// ownRows is how many rows are deleted at once.
const ownRows = 10_000

// emptyOwn deletes those rows of a shard's table that the source layout places on this source.
func (c *sourceCopy) emptyOwn(ctx context.Context, conn *pgx.Conn, j *job) error {
	root := c.inv.sources[c.n].Table(j.table.name)
	t, err := j.table.sinkTable(root, root, j.into, nil)
	if err != nil {
		return err
	}
	columns := []string{"tableoid::oid::text", "ctid::text"}
	for _, k := range t.SourceKey {
		columns = append(columns, t.Columns[k].SQL()+"::text")
	}
	result := conn.PgConn().ExecParams(ctx, fmt.Sprintf("select %s from %s", strings.Join(columns, ", "), j.into.Name.SQL()), nil, nil, nil, nil)
	var tables, rows []string
	for result.NextRow() {
		values := result.Values()
		key := make([]pg.Datum, len(t.SourceKey))
		for i, v := range values[2:] {
			if key[i] = (pg.Datum{Kind: pg.Null}); v != nil {
				key[i] = pg.Datum{Kind: pg.Text, Bytes: v}
			}
		}
		mine, err := c.isOf(ctx, c.n, j.table.sourceRule, t, key)
		if err != nil {
			_, _ = result.Close()
			return err
		}
		if mine {
			tables, rows = append(tables, string(values[0])), append(rows, string(values[1]))
		}
	}
	if _, err := result.Close(); err != nil {
		return err
	}
	for len(rows) > 0 {
		n := min(len(rows), ownRows)
		_, err := conn.Exec(ctx, fmt.Sprintf(`delete from %s where (tableoid, ctid) in (select o::oid, r::tid from unnest($1::text[], $2::text[]) u (o, r))`,
			j.into.Name.SQL()), tables[:n], rows[:n])
		if err != nil {
			return err
		}
		tables, rows = tables[n:], rows[n:]
	}
	return nil
}

// load copies chunks under a snapshot; upsert says of a table whether its rows may be there already.
func (c *sourceCopy) load(ctx context.Context, snapshot string, snap *copier.Snapshot, chunks []*pg.Chunk, upsert func(pg.Name) bool) error {
	tables, _, err := c.inv.sinkTables(c.n, c.dest, nil)
	if err != nil {
		return err
	}
	stream := c.stream(c.n)
	var askers sync.Map // by worker
	defer askers.Range(func(_, a any) bool { a.(*snapshotAsker).close(); return true })
	var worker atomic.Int64
	err = copier.Run(ctx, copier.Config{
		Shard: c.Source.Shards[c.n], App: c.app(), Snapshot: snapshot, Workers: c.CopyWorkers, Chunks: chunks, Progress: c.progress[c.n],
		Loader: func(int) copier.Loader {
			ask := &snapshotAsker{move: c.Move, own: snap, source: c.n}
			askers.Store(worker.Add(1), ask)
			return sink.NewLoader(sink.LoadConfig{
				Shards: c.Destination.Shards, App: c.app(), Done: c.holds,
				Table: func(k *pg.Copy) (*sink.LoadTable, error) {
					return c.loadTable(tables[k.From.OID], ask, upsert(k.Into.Name)), nil
				},
				Mark: func(k *pg.Chunk, _ int) (string, []any) {
					return checkpoints.MarkSQL, []any{stream.Move, stream.Source, leafKey(k), k.Number, int64(k.Copy.From.Filenode), stream.Epoch}
				},
			})
		},
	})
	return checkpoints.Refused(err)
}

func (c *sourceCopy) loadTable(t *sink.Table, ask lookup.Asker, upsert bool) *sink.LoadTable {
	l := &sink.LoadTable{Upsert: upsert}
	switch {
	case t.Rule.Omni:
		l.Route = func([]pg.Datum) (int, bool, error) { return 0, true, nil }
	case t.Query == nil:
		l.Route = func(key []pg.Datum) (int, bool, error) {
			shard, err := c.router.Place(context.Background(), t, key, nil)
			return int(shard), false, err
		}
	default:
		l.RouteMany = func(ctx context.Context, keys [][]pg.Datum, shards []int) error {
			out := make([]layout.Shard, len(keys))
			err := c.router.PlaceMany(ctx, t, keys, ask, out)
			for i, s := range out {
				shards[i] = int(s)
			}
			return err
		}
	}
	return l
}

// snapshotAsker asks a copy's own snapshot for translations, and for keys unknown there the other sources.
type snapshotAsker struct {
	move   *Move
	own    *copier.Snapshot
	source int
	conns  []*pgx.Conn // the own source's first
}

func (a *snapshotAsker) Ask(ctx context.Context, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
	if a.conns == nil {
		if err := a.open(ctx); err != nil {
			return nil, err
		}
	}
	answers, err := lookup.Ask(ctx, a.conns[0].PgConn(), q, keys)
	if err != nil {
		return nil, err
	}
	for _, conn := range a.conns[1:] {
		var open [][]byte
		var where []int
		for i, answer := range answers {
			if answer.Rows == 0 {
				open, where = append(open, keys[i]), append(where, i)
			}
		}
		if len(open) == 0 {
			break
		}
		more, err := lookup.Ask(ctx, conn.PgConn(), q, open)
		if err != nil {
			return nil, err
		}
		for i, answer := range more {
			answers[where[i]] = answer
		}
	}
	return answers, nil
}

func (a *snapshotAsker) open(ctx context.Context) error {
	own, err := a.own.Open(ctx)
	if err != nil {
		return err
	}
	a.conns = append(a.conns, own)
	for n, shard := range a.move.Source.Shards {
		if n == a.source {
			continue
		}
		conn, err := pg.Open(ctx, shard, pg.Reader, a.move.app())
		if err != nil {
			return err
		}
		a.conns = append(a.conns, conn)
	}
	return nil
}

func (a *snapshotAsker) close() {
	for _, conn := range a.conns {
		pg.Close(conn)
	}
}

package sink

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// LoadConfig says where the copy's rows go. Its functions are called by one Loader at a time each, but by several
// Loaders at once where they share it.
type LoadConfig struct {
	Shards []pg.Shard // the destination's, by shard number
	App    string     // application_name of the sessions
	// Table says how the rows of a table are routed and written; called once a chunk.
	Table func(c *pg.Copy) (*LoadTable, error)
	// Done says that a shard already holds its part of a chunk, so that rows for it are dropped; may be nil.
	Done func(c *pg.Chunk, shard int) bool
	// Mark is the statement that marks a chunk as held, run in the transaction that writes its rows. A second mark of
	// the same chunk must violate a unique key.
	Mark func(c *pg.Chunk, shard int) (sql string, args []any)
}

// LoadTable is how one table's rows are routed and written. One of Route and RouteMany is set.
type LoadTable struct {
	// Route names the shard of a row by its key; all is true for a row that belongs on every shard.
	Route func(key []pg.Datum) (shard int, all bool, err error)
	// RouteMany names the shards of many rows at once, for keys that must be translated first.
	RouteMany func(ctx context.Context, keys [][]pg.Datum, shards []int) error
	// Upsert: rows may be there already in an older or newer version, which the one loaded replaces.
	Upsert bool
}

// ErrMarked means that a chunk was marked by a connection of an earlier attempt while this one loaded it. Nothing is
// wrong; the marks are read again and the copy goes on.
var ErrMarked = errors.New("the chunk was completed by an earlier connection meanwhile; hint: run the same command again")

var errAborted = errors.New("the load was given up")

// Loader writes one copy worker's chunks: one connection and one COPY for each shard that gets rows, the chunk's mark
// in the same transaction. Rows are gathered in buffers of a fixed number and size that one goroutine a shard writes
// to its connection, so that shards are fed at the same time. Not safe for concurrent use.
type Loader struct {
	LoadConfig
	conns []*pgx.Conn
	spare []chan []byte // by shard: buffers that nobody holds; nil ones are made when first taken
	load  *load
}

// load is the chunk that is being loaded.
type load struct {
	chunk  *pg.Chunk
	table  *LoadTable
	shards []*shardLoad // nil where the shard holds its part already
	batch  loadBatch

	group  *errgroup.Group
	ctx    context.Context // ends when one shard has failed
	cancel context.CancelCauseFunc
}

// NewLoader makes the loader of one worker. Nothing is connected before there are rows.
func NewLoader(c LoadConfig) *Loader {
	l := &Loader{LoadConfig: c, conns: make([]*pgx.Conn, len(c.Shards)), spare: make([]chan []byte, len(c.Shards))}
	for i := range l.spare {
		l.spare[i] = spareBuffers()
	}
	return l
}

// Begin starts a chunk. Its transactions begin on a shard with the first row for it.
func (l *Loader) Begin(ctx context.Context, c *pg.Chunk) error {
	table, err := l.Table(c.Copy)
	if err != nil {
		return err
	}
	if table.Upsert && len(c.Copy.Into.Key) == 0 {
		return fmt.Errorf("%s has no key to find rows by; hint: it is emptied and copied again", c.Copy.Into.Name)
	}
	n := &load{chunk: c, table: table, shards: make([]*shardLoad, len(l.Shards))}
	ctx, n.cancel = context.WithCancelCause(ctx)
	n.group, n.ctx = errgroup.WithContext(ctx)
	for i := range l.Shards {
		if l.Done == nil || !l.Done(c, i) {
			n.shards[i] = &shardLoad{loader: l, load: n, number: i, spare: l.spare[i], size: bufferSize(len(l.Shards))}
		}
	}
	l.load = n
	return nil
}

// Row sends a row to the shards it belongs to. It copies what it keeps.
func (l *Loader) Row(ctx context.Context, row []byte, key []pg.Datum) error {
	n := l.load
	if n.table.RouteMany != nil {
		return n.gather(ctx, row, key)
	}
	shard, all, err := n.table.Route(key)
	if err != nil {
		return err
	}
	if !all {
		return n.add(shard, row)
	}
	for i := range n.shards {
		if err := n.add(i, row); err != nil {
			return err
		}
	}
	return nil
}

func (n *load) add(shard int, row []byte) error {
	if shard < 0 || shard >= len(n.shards) {
		return fmt.Errorf("a row was routed to shard %d of %d", shard, len(n.shards))
	}
	if s := n.shards[shard]; s != nil {
		return s.add(row)
	}
	return nil
}

// Commit ends the chunk on every shard; one without rows gets its mark alone. Where it fails, some shards may hold
// their part and its mark.
func (l *Loader) Commit(ctx context.Context) error {
	n := l.load
	if err := n.routeBatch(ctx); err != nil {
		return err
	}
	for _, s := range n.shards {
		if s == nil {
			continue
		}
		if err := s.end(); err != nil {
			return err
		}
	}
	err := n.group.Wait()
	if err == nil {
		n.cancel(nil)
		l.load = nil
	}
	return err
}

// Abort gives up the chunk on every shard that has not committed and waits for the goroutines. Their connections are
// closed, which makes the servers roll back.
func (l *Loader) Abort() {
	if n := l.load; n != nil {
		n.cancel(errAborted)
		_ = n.group.Wait()
		l.load = nil
		for i := range l.spare {
			l.spare[i] = spareBuffers()
		}
	}
}

// Close ends the connections.
func (l *Loader) Close() {
	l.Abort()
	for i, conn := range l.conns {
		pg.Close(conn)
		l.conns[i] = nil
	}
}

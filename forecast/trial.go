package forecast

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// Trial is a small part of the copy, made for real: rows of every table are read from the sources and written to the
// shards, into tables and indexes like theirs, all at once, in transactions that are rolled back. It changes nothing; the
// shards write log for it, and vacuum has the blocks to clean.
type Trial struct {
	Sources, Shards []pg.Shard
	Open            func(ctx context.Context, shard pg.Shard, role pg.Role) (*pgx.Conn, error)
	Tables          []Table
	Workers         int           // sessions that read from each source at once
	Bytes           int64         // of heap and TOAST to read, of all tables together
	Time            time.Duration // after which no further part is begun
}

// Table is a table as the sources have it.
type Table struct {
	Root    *pg.Table     // of the first source
	Leaves  [][]*pg.Table // those that hold its rows, by source
	Indexes []Index       // beside its key's
}

// Index is one that is built after the copy.
type Index struct {
	Method  string   // pg_am.amname
	Columns []string // those of its key; expressions count as the columns they stand beside
}

// Measured is what a trial took.
type Measured struct {
	Bytes   int64   `json:"bytes"`   // of heap and TOAST that were read
	Rows    int64   `json:"rows"`    // of them
	Seconds float64 `json:"seconds"` // from the first byte to the last row
	Streams int     `json:"streams"` // sessions that read, and as many that wrote
	Log     int64   `json:"log"`     // bytes that all shards wrote for it

	IndexRows    int64   `json:"index_rows"` // rows put into indexes, one by one index
	IndexSeconds float64 `json:"index_seconds"`
	IndexLog     int64   `json:"index_log"`
	ScanSeconds  float64 `json:"scan_seconds"` // for reading all that was written
	Changes      int64   `json:"changes"`      // rows changed by their keys
	ChangeTime   float64 `json:"change_seconds"`

	PerTable []Read `json:"-"` // what of the above was read of each table
}

// Read is how much was read.
type Read struct{ Bytes, Rows int64 }

const (
	partBytes = 1 << 20          // how much is read at a time
	closeTime = 10 * time.Second // how long is waited for a server to take back what was made
)

// part is a range of a leaf's blocks.
type part struct {
	table    int
	leaf     *pg.Table
	from, to int64
	bytes    int64
}

// parts cuts each table's share of what is to be read into ranges evenly over its file, in an order that mixes the tables.
func (t *Trial) parts(source int) (all []part) {
	var whole int64
	for _, table := range t.Tables {
		for _, leaves := range table.Leaves {
			for _, leaf := range leaves {
				whole += leaf.Bytes
			}
		}
	}
	share := min(1, float64(t.Bytes)/float64(max(whole, 1)))
	for i, table := range t.Tables {
		for _, leaf := range table.Leaves[source] {
			if leaf.Pages == 0 {
				continue
			}
			want := share * float64(leaf.Bytes)
			n := max(1, math.Round(want/partBytes))
			pages := max(1, int64(share*float64(leaf.Pages)/n))
			if share == 1 {
				pages = (leaf.Pages + int64(n) - 1) / int64(n)
			}
			for k := range int64(n) {
				from := k * leaf.Pages / int64(n)
				all = append(all, part{i, leaf, from, from + pages, leaf.Bytes * pages / leaf.Pages})
			}
		}
	}
	r := rand.New(rand.NewPCG(1, uint64(source))) // two trials read the same
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Run makes the trial. Its error names what a server refused.
func (t *Trial) Run(ctx context.Context) (*Measured, error) {
	m := &Measured{Streams: t.Workers * len(t.Sources)}
	queues := make([]chan part, len(t.Sources))
	for n := range queues {
		parts := t.parts(n)
		queues[n] = make(chan part, len(parts))
		for _, p := range parts {
			queues[n] <- p
		}
		close(queues[n])
	}
	streams := make([]*stream, m.Streams)
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	// timed runs one phase in every stream at once.
	timed := func(do func(ctx context.Context, n int) error) (float64, error) {
		g, ctx := errgroup.WithContext(ctx)
		began := time.Now()
		for n := range streams {
			g.Go(func() error { return do(ctx, n) })
		}
		err := g.Wait()
		return time.Since(began).Seconds(), err
	}
	_, err := timed(func(ctx context.Context, n int) (err error) {
		streams[n], err = t.open(ctx, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	before, err := t.positions(ctx)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(t.Time)
	var indexed, changes atomic.Int64
	m.Seconds, err = timed(func(ctx context.Context, n int) error {
		for p := range queues[n/t.Workers] {
			if time.Now().After(end) {
				return nil
			}
			copied, err := streams[n].copy(ctx, t.Tables[p.table], p)
			if err != nil {
				return fmt.Errorf("copy a part of %s: %w", p.leaf.Name, err)
			}
			streams[n].rows[p.table] += copied
			streams[n].bytes[p.table] += p.bytes
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	copied, err := t.positions(ctx)
	if err != nil {
		return nil, err
	}
	m.Log = since(before, copied)
	m.IndexSeconds, err = timed(func(ctx context.Context, n int) error {
		return streams[n].index(ctx, t.Tables, func(rows int64) { indexed.Add(rows) })
	})
	if err != nil {
		return nil, err
	}
	built, err := t.positions(ctx)
	if err != nil {
		return nil, err
	}
	m.IndexLog = since(copied, built)
	m.ScanSeconds, err = timed(func(ctx context.Context, n int) error { return streams[n].scan(ctx) })
	if err != nil {
		return nil, err
	}
	m.ChangeTime, err = timed(func(ctx context.Context, n int) error {
		changed, err := streams[n].change(ctx, t.Tables)
		changes.Add(changed)
		return err
	})
	m.IndexRows, m.Changes = indexed.Load(), changes.Load()
	m.PerTable = make([]Read, len(t.Tables))
	for i := range m.PerTable {
		for _, s := range streams {
			m.PerTable[i].Bytes += s.bytes[i]
			m.PerTable[i].Rows += s.rows[i]
		}
		m.Bytes += m.PerTable[i].Bytes
		m.Rows += m.PerTable[i].Rows
	}
	return m, err
}

// since is what all servers have written from one moment to another.
func since(from, to map[string]pg.LSN) (bytes int64) {
	for server, at := range from {
		bytes += int64(to[server] - at)
	}
	return bytes
}

// positions are the ends of the logs of the shards' servers, by system identifier: two shards may be of one.
func (t *Trial) positions(ctx context.Context) (map[string]pg.LSN, error) {
	all := map[string]pg.LSN{}
	for _, shard := range t.Shards {
		conn, err := t.Open(ctx, shard, pg.Reader)
		if err != nil {
			return nil, err
		}
		var server string
		var at pg.LSN
		err = conn.QueryRow(ctx, "select system_identifier::text, pg_current_wal_insert_lsn()::text from pg_control_system()").Scan(&server, &at)
		pg.Close(conn)
		if err != nil {
			return nil, err
		}
		all[server] = at
	}
	return all, nil
}

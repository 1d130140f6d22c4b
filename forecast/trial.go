package forecast

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
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

// stream reads from one source and writes to one shard.
type stream struct {
	from, to *pgx.Conn
	tx       pgx.Tx // on to; it is rolled back
	schema   string
	rows     []int64 // written, by table
	bytes    []int64 // read, by table
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

// open opens a stream's two transactions and makes its tables.
func (t *Trial) open(ctx context.Context, n int) (s *stream, err error) {
	s = &stream{schema: fmt.Sprintf("pgreshard_trial_%d", n), rows: make([]int64, len(t.Tables)), bytes: make([]int64, len(t.Tables))}
	defer func() {
		if err != nil {
			s.close()
			s = nil
		}
	}()
	if s.from, err = t.Open(ctx, t.Sources[n/t.Workers], pg.Reader); err != nil {
		return s, err
	}
	if s.to, err = t.Open(ctx, t.Shards[n%len(t.Shards)], pg.Admin); err != nil {
		return s, err
	}
	if _, err := s.from.Exec(ctx, "begin isolation level repeatable read read only"); err != nil {
		return s, err
	}
	if s.tx, err = s.to.Begin(ctx); err != nil {
		return s, err
	}
	var make strings.Builder
	fmt.Fprintf(&make, "create schema %s", s.schema)
	for i, table := range t.Tables {
		fmt.Fprintf(&make, "; create table %s (%s)", s.table(i), columns(table.Root, func(c pg.Column) string { return c.SQL() + " " + typeOf(c) }))
		if key := keyOf(table.Root); key != "" { // not unique: rows of several sources stand in it
			fmt.Fprintf(&make, "; create index on %s (%s)", s.table(i), key)
		}
	}
	_, err = s.to.PgConn().Exec(ctx, make.String()).ReadAll()
	return s, err
}

// close ends a stream and takes back what it has made; nil is one that was not opened.
func (s *stream) close() {
	if s == nil {
		return
	}
	if s.tx != nil { // not by the session's end, which a server may see later
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		_ = s.tx.Rollback(ctx)
	}
	pg.Close(s.from)
	pg.Close(s.to)
}

func (s *stream) table(i int) string { return fmt.Sprintf("%s.t%d", s.schema, i) }

// firstUserOID is where a server begins to number what users make (FirstNormalObjectId).
const firstUserOID = 16384

// typeOf is the column's type where every server has it, else text.
func typeOf(c pg.Column) string {
	if c.TypeOID < firstUserOID {
		return c.Type
	}
	return "text"
}

func columns(t *pg.Table, as func(pg.Column) string) string {
	var all []string
	for _, c := range t.Columns {
		if c.Generated == 0 {
			all = append(all, as(c))
		}
	}
	return strings.Join(all, ", ")
}

// keyOf lists the columns that tell its rows from another.
func keyOf(t *pg.Table) string {
	var all []string
	for _, i := range t.Key {
		all = append(all, t.Columns[i].SQL())
	}
	return strings.Join(all, ", ")
}

// copy passes a part's rows through.
func (s *stream) copy(ctx context.Context, t Table, p part) (rows int64, err error) {
	names := func(c pg.Column) string { return c.SQL() }
	format := " (format binary)"
	for _, c := range t.Root.Columns {
		if c.TypeOID >= firstUserOID && c.Generated == 0 {
			format = ""
		}
	}
	out := fmt.Sprintf("copy (select %s from only %s where ctid >= '(%d,0)' and ctid < '(%d,0)') to stdout%s",
		columns(t.Root, names), p.leaf.Name.SQL(), p.from, p.to, format)
	in := fmt.Sprintf("copy %s (%s) from stdin%s", s.table(p.table), columns(t.Root, names), format)
	r, w := io.Pipe()
	var wait sync.WaitGroup
	wait.Go(func() {
		_, err := s.from.PgConn().CopyTo(ctx, w, out)
		w.CloseWithError(err)
	})
	tag, err := s.to.PgConn().CopyFrom(ctx, r, in)
	r.CloseWithError(errors.New("the shard takes no more"))
	wait.Wait()
	return tag.RowsAffected(), err
}

// index builds the tables' indexes over what was written. What the shard cannot build, as over a type of the user's own, is left out.
func (s *stream) index(ctx context.Context, tables []Table, built func(rows int64)) error {
	for i, t := range tables {
		for _, index := range t.Indexes {
			if s.rows[i] == 0 {
				continue
			}
			var key []string
			for _, name := range index.Columns {
				key = append(key, pgx.Identifier{name}.Sanitize())
			}
			sql := fmt.Sprintf("create index on %s using %s (%s)", s.table(i), index.Method, strings.Join(key, ", "))
			tx, err := s.tx.Begin(ctx) // a savepoint
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, sql); err != nil {
				if err := tx.Rollback(ctx); err != nil {
					return err
				}
				continue
			}
			if err := tx.Commit(ctx); err != nil {
				return err
			}
			built(s.rows[i])
		}
	}
	return nil
}

// scan reads every row that was written.
func (s *stream) scan(ctx context.Context) error {
	for i, rows := range s.rows {
		if rows == 0 {
			continue
		}
		if _, err := s.to.Exec(ctx, "select count(*) from "+s.table(i)); err != nil {
			return err
		}
	}
	return nil
}

// changedRows is how many rows of a table are changed.
const changedRows = 2000

// change changes rows found by their keys, many in a statement, as the stream does.
func (s *stream) change(ctx context.Context, tables []Table) (changed int64, err error) {
	const byIndex = "set local enable_hashjoin = off; set local enable_mergejoin = off; set local enable_seqscan = off"
	if _, err := s.to.PgConn().Exec(ctx, byIndex).ReadAll(); err != nil {
		return 0, err
	}
	for i, t := range tables {
		key := keyOf(t.Root)
		if s.rows[i] == 0 || key == "" {
			continue
		}
		plain := slices.DeleteFunc(slices.Clone(t.Root.Columns), func(c pg.Column) bool { return c.Generated != 0 })
		set := plain[len(plain)-1]
		sql := fmt.Sprintf("update %[1]s set %[2]s = %[2]s where (%[3]s) in (select %[3]s from %[1]s limit %[4]d)", s.table(i), set.SQL(), key, changedRows)
		tag, err := s.to.Exec(ctx, sql)
		if err != nil {
			return changed, err
		}
		changed += tag.RowsAffected()
	}
	return changed, nil
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

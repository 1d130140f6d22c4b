package sink_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/replicator"
	"pgreshard/sink"
)

const streamPatience = 60 * time.Second

// following is one source whose changes a Stream writes to shards, both sides with tables of their own.
type following struct {
	t       testing.TB
	source  *pgtest.DB
	shards  []*pgtest.DB
	via     map[int]*pgtest.DB // shards reached through a relay
	spec    layout.Spec
	keys    map[string]string // by table: the SQL of the key it is placed by, where that is not its rule's column
	stream  *sink.Stream
	tables  map[string]*sink.Table
	start   pg.LSN
	queue   int
	epoch   int64
	ready   func() // sets what a test wants of each new Stream
	unkeyed bool   // lookups are taken for ones of which nobody can say which rows answer which keys
	number  int    // of the source
	conn    *pgx.Conn
	at      []*pgx.Conn // the shards
	watch   []*pgx.Conn // the shards, for hooks that run beside the test

	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
	err    error // what ended the last run, nil while it runs
	runs   int
}

// rules is the layout of a test: sharded tables by name to their columns, "table: column = lookup query" for lookups.
type rules struct {
	sharded map[string]string // table to "column" or "column, column"
	lookups map[string]string // table to lookup_query
	omni    []string
}

// follow makes n shards and a stream to them from a new source that has the schema; shardSchema, where not empty, is
// the shards' instead. Nothing runs yet.
func follow(t testing.TB, n int, schema, shardSchema string, r rules) *following {
	t.Helper()
	cluster := pgtest.Shared(t)
	f := &following{t: t, source: cluster.Database(t), via: map[int]*pgtest.DB{}, keys: map[string]string{}}
	f.source.Exec(t, schema)
	f.conn = f.source.Conn(t)
	for range n {
		db := cluster.Database(t)
		db.Exec(t, cmp.Or(shardSchema, schema))
		f.shards, f.at = append(f.shards, db), append(f.at, db.Conn(t))
	}
	f.spec = layout.Spec{Version: 2, Database: "d", Shards: n}
	for table, columns := range r.sharded {
		f.spec.Tables = append(f.spec.Tables, layout.ShardedTable{Database: "d", Schema: "public", Name: table,
			Columns: strings.Split(columns, ", "), LookupQuery: r.lookups[table], DataType: map[bool]string{true: "bigint"}[r.lookups[table] != ""]})
	}
	if r.omni != nil {
		f.spec.Omni = []layout.OmniTables{{Database: "d", Tables: r.omni}}
	}
	f.begin()
	return f
}

// begin makes publication, slot, bookkeeping and first checkpoints, and readies the Stream.
func (f *following) begin() {
	f.t.Helper()
	ctx := f.t.Context()
	conn := f.source.Conn(f.t)
	catalog := f.catalog(f.source)
	var leaves []pg.Name
	for _, root := range catalog.Roots() {
		for _, leaf := range catalog.Leaves(root) {
			leaves = append(leaves, leaf.Name)
		}
	}
	if err := replicator.CreatePublication(ctx, conn, "p", leaves); err != nil {
		f.t.Fatal(err)
	}
	slot, err := replicator.CreateSlot(ctx, f.source.Shard(0), f.source.Name, false)
	if err != nil {
		f.t.Fatal(err)
	}
	slot.Close()
	f.start = slot.ConsistentPoint
	for _, conn := range f.at {
		if err := checkpoints.Install(ctx, conn); err != nil {
			f.t.Fatal(err)
		}
		if err := (checkpoints.Stream{Move: "m", Source: f.number}).Begin(ctx, conn, f.start); err != nil {
			f.t.Fatal(err)
		}
	}
	f.takeOver()
}

// takeOver raises the epoch and makes a new Stream, as a new process would.
func (f *following) takeOver() {
	f.t.Helper()
	f.epoch++
	for _, conn := range f.at {
		if err := checkpoints.RaiseEpoch(f.t.Context(), conn, f.epoch); err != nil {
			f.t.Fatal(err)
		}
	}
	var shards []pg.Shard
	for i, db := range f.shards {
		if via := f.via[i]; via != nil {
			db = via
		}
		shards = append(shards, db.Shard(i))
	}
	s := sink.NewStream(shards)
	s.Checkpoint, s.Source, s.AppName = checkpoints.Stream{Move: "m", Source: f.number, Epoch: f.epoch}, f.source.Shard(0), "sink "+f.source.Name
	s.Router = sink.Router{Lookups: lookup.New(1 << 20)}
	s.Tables, s.Leaves = f.sinkTables()
	s.Forgive = func(context.Context, *sink.Table, pg.LSN) error { return nil }
	f.stream = s
	if f.ready != nil {
		f.ready()
	}
}

// sinkTables matches source and shards as move does.
func (f *following) sinkTables() (map[uint32]*sink.Table, map[uint32]pg.Name) {
	f.t.Helper()
	from, into := f.catalog(f.source), f.catalog(f.shards[0])
	compiled, err := layout.Compile(f.spec, from.Roots())
	if err != nil {
		f.t.Fatal(err)
	}
	was := f.tables
	f.tables = map[string]*sink.Table{}
	tables, leaves := map[uint32]*sink.Table{}, map[uint32]pg.Name{}
	for _, root := range from.Roots() {
		rule := compiled.Rule(root.Name)
		if rule == nil {
			f.t.Fatalf("no rule covers %s", root.Name)
		}
		dest := into.Table(root.Name)
		shared := sinkTable(rule, root, from.Leaves(root)[0], dest)
		if rule.Lookup != "" {
			shared.Query = &lookup.Query{ID: rule.ID, Name: root.Name.Table, SQL: rule.Lookup, Attempts: 2, Timeout: 5 * time.Second}
		}
		if t := was[root.Name.Table]; t != nil {
			shared.Forgive, shared.StartsAt = t.Forgive, t.StartsAt // recorded on the shards
		}
		f.tables[root.Name.Table] = shared
		for _, leaf := range from.Leaves(root) {
			tables[leaf.OID] = shared
			if same := into.Table(leaf.Name); same != nil && same.Root == dest.OID {
				leaves[leaf.OID] = leaf.Name
			}
		}
	}
	for _, t := range f.tables { // "from TABLE" in a lookup makes TABLE its mapping, its id and every column named guarded
		if t.Query == nil {
			continue
		}
		for name, mapping := range f.tables {
			if strings.Contains(strings.ToLower(t.Query.SQL), "from "+name+" ") {
				key := -1
				if !f.unkeyed {
					key = slices.IndexFunc(mapping.Columns, func(c pg.Column) bool { return strings.HasSuffix(t.Query.SQL, "WHERE "+c.Name+" = $1") })
				}
				mapping.Feeds = append(mapping.Feeds, sink.Feed{Query: t.Query, Key: key, Adds: key >= 0, Unique: key >= 0})
				t.AskAll = t.AskAll || !mapping.Rule.Omni
				for i, c := range mapping.Columns {
					if strings.Contains(t.Query.SQL, c.Name) {
						mapping.Guard = append(mapping.Guard, i)
					}
				}
			}
		}
	}
	return tables, leaves
}

func sinkTable(rule *layout.Rule, root, leaf, into *pg.Table) *sink.Table {
	t := &sink.Table{Source: root.Name, Dest: into.Name, SourceParts: root.Kind == 'p', DestParts: into.Kind == 'p', Rule: rule}
	for _, c := range into.Columns {
		if _, ok := root.Column(c.Name); ok && c.Generated == 0 {
			t.Columns = append(t.Columns, c)
		}
	}
	at := func(name string) int {
		return slices.IndexFunc(t.Columns, func(c pg.Column) bool { return c.Name == name })
	}
	names := func(from *pg.Table, columns []int) (out []int) {
		for _, c := range columns {
			if i := at(from.Columns[c].Name); i >= 0 {
				out = append(out, i)
			}
		}
		return out
	}
	t.Logged, t.Key = names(leaf, leaf.Logged), names(into, into.Key)
	if leaf.Replica == pg.IdentityIndex {
		t.Key = t.Logged
	}
	for _, c := range rule.Columns {
		t.RuleKey = append(t.RuleKey, at(c))
	}
	return t
}

func (f *following) catalog(db *pgtest.DB) *pg.Catalog {
	f.t.Helper()
	conn, err := pg.Open(f.t.Context(), db.Shard(0), pg.Reader, "test")
	if err != nil {
		f.t.Fatal(err)
	}
	defer pg.Close(conn)
	c, err := pg.ReadCatalog(f.t.Context(), conn)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// run streams until the returned func is called or anything fails that starting again would not mend.
func (f *following) run() (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	f.mu.Lock()
	f.cancel, f.done, f.err = cancel, done, nil
	f.mu.Unlock()
	go func() {
		defer close(done)
		for {
			err := f.once(ctx)
			if ctx.Err() == nil && again(err) {
				continue
			}
			f.mu.Lock()
			f.err = err
			f.mu.Unlock()
			return
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	f.t.Cleanup(stop)
	return stop
}

var (
	errEnded   = errors.New("the stream ended")
	errStopped = errors.New("the stream is where it was to stop")
)

func again(err error) bool {
	return errors.Is(err, sink.ErrReread) || pg.Transient(err) || errors.Is(err, replicator.ErrSlotInUse) ||
		errors.Is(err, checkpoints.ErrPositionMoved) || errors.Is(err, errEnded) || errors.Is(err, errCrash)
}

// once runs from the lowest checkpoint until ctx ends or anything fails.
func (f *following) once(ctx context.Context) error {
	start, err := f.lowest(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.runs++
	f.mu.Unlock()
	reader := replicator.New(replicator.Config{Shard: f.source.Shard(0), Slot: f.source.Name, Publication: "p", Start: start, QueueBytes: f.queue})
	f.stream.Confirm = reader.Confirm
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return reader.Run(ctx) })
	g.Go(func() error {
		err := f.stream.Run(ctx, reader.Blocks(), reader.Release)
		if err == nil && f.stream.Stopped() {
			return errStopped
		}
		return cmp.Or(err, errEnded)
	})
	return g.Wait()
}

func (f *following) conns() (out []*pgx.Conn) {
	for _, db := range f.shards {
		out = append(out, db.Conn(f.t))
	}
	return out
}

// compareUnder compares under the test that is to fail.
func (f *following) compareUnder(t *testing.T, tables ...string) {
	t.Helper()
	was := f.t
	f.t = t
	defer func() { f.t = was }()
	f.compare(tables...)
}

func (f *following) lowest(ctx context.Context) (low pg.LSN, err error) {
	for i, db := range f.shards {
		at, err := f.position(ctx, db)
		if err != nil {
			return 0, err
		}
		if i == 0 || at < low {
			low = at
		}
	}
	return low, nil
}

func (f *following) position(ctx context.Context, db *pgtest.DB) (pg.LSN, error) {
	conn, err := pg.Open(ctx, db.Shard(0), pg.Admin, "test")
	if err != nil {
		return 0, err
	}
	defer pg.Close(conn)
	return f.stream.Checkpoint.Lock(ctx, conn)
}

// failure waits for the error that ends the stream.
func (f *following) failure() error {
	f.t.Helper()
	select {
	case <-f.done:
	case <-time.After(streamPatience):
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		f.t.Fatal("the stream goes on, but was to end with an error")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// exec runs SQL on the source: one implicit transaction, unless it says otherwise.
func (f *following) exec(sql string) {
	f.t.Helper()
	_, err := f.conn.PgConn().Exec(f.t.Context(), sql).ReadAll()
	for pg.Code(err) == "40P01" { // autovacuum
		_, err = f.conn.PgConn().Exec(f.t.Context(), sql).ReadAll()
	}
	if err != nil {
		f.t.Fatalf("%v\nin: %.300s", err, sql)
	}
}

// end is the position up to which the source has written.
func (f *following) end() (at pg.LSN) {
	f.t.Helper()
	if err := f.conn.QueryRow(f.t.Context(), `select pg_current_wal_insert_lsn()::text`).Scan(&at); err != nil {
		f.t.Fatal(err)
	}
	return at
}

// catchUp waits until every shard holds what is committed on the source now.
func (f *following) catchUp() {
	f.t.Helper()
	var at pg.LSN
	if err := f.conn.QueryRow(f.t.Context(), `select pg_logical_emit_message(true, 'pgreshard', 'catch up')::text`).Scan(&at); err != nil {
		f.t.Fatal(err)
	}
	for end := time.Now().Add(streamPatience); f.stream.Applied() < at; time.Sleep(2 * time.Millisecond) {
		select {
		case <-f.done:
			f.mu.Lock()
			defer f.mu.Unlock()
			f.t.Fatalf("the stream ended: %v", f.err)
		default:
		}
		if time.Now().After(end) {
			f.t.Fatalf("the shards are at %s, not at %s", f.stream.Applied(), at)
		}
	}
}

// compare finds by plain SQL any row that differs or stands on another shard than PostgreSQL's hash partitioning names.
func (f *following) compare(tables ...string) {
	f.t.Helper()
	if tables == nil {
		for name := range f.tables {
			tables = append(tables, name)
		}
	}
	for _, name := range tables {
		t := f.tables[name]
		o := pgtest.RowsOptions{Omni: t.Rule.Omni}
		for _, c := range t.Columns {
			o.Columns = append(o.Columns, c.Name)
		}
		if err := pgtest.SameRows(f.t.Context(), []*pgx.Conn{f.conn}, f.at, pg.Column{Name: name}.SQL(), o); err != nil {
			f.t.Errorf("%s: %v", name, err)
		}
		if !t.Rule.Omni {
			f.placed(t, name)
		}
	}
}

// placed counts rows on a shard that is not theirs.
func (f *following) placed(t *sink.Table, name string) {
	f.t.Helper()
	var definitions, parts, values []string
	for _, c := range t.Rule.Columns {
		i := slices.IndexFunc(t.Columns, func(k pg.Column) bool { return k.Name == c })
		definitions = append(definitions, t.Columns[i].SQL()+" "+t.Columns[i].Type)
		parts, values = append(parts, t.Columns[i].SQL()), append(values, "r."+t.Columns[i].SQL())
	}
	if key := f.keys[name]; key != "" {
		definitions, parts, values = []string{"k bigint"}, []string{"k"}, []string{key}
	}
	for shard, conn := range f.at {
		var wrong int
		err := pgx.BeginFunc(f.t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(f.t.Context(), fmt.Sprintf(`create temp table spots (%s) partition by hash (%s)`, strings.Join(definitions, ", "), strings.Join(parts, ", ")))
			if err == nil {
				err = tx.QueryRow(f.t.Context(), fmt.Sprintf(`select count(*) from %s r where not satisfies_hash_partition('pg_temp.spots'::regclass, %d, %d, %s)`,
					t.Dest.SQL(), len(f.shards), shard, strings.Join(values, ", "))).Scan(&wrong)
			}
			if err == nil {
				_, err = tx.Exec(f.t.Context(), `drop table spots`)
			}
			return err
		})
		if err != nil {
			f.t.Fatal(err)
		}
		if wrong != 0 {
			f.t.Errorf("shard %d holds %d rows of %s that are not its own", shard, wrong, name)
		}
	}
}

// shardOf names by plain SQL the shard of a bigint key.
func (f *following) shardOf(key int) int {
	f.t.Helper()
	db := f.shards[0]
	db.Exec(f.t, `create table if not exists pgreshard.of_bigint (k bigint) partition by hash (k)`)
	for shard := range f.shards {
		if db.Query(f.t, fmt.Sprintf(`select satisfies_hash_partition('pgreshard.of_bigint'::regclass, %d, %d, %d::bigint)`, len(f.shards), shard, key))[0][0] == "t" {
			return shard
		}
	}
	f.t.Fatalf("no shard for %d", key)
	return 0
}

// keyOn is the n-th positive bigint key that lives on a shard.
func (f *following) keyOn(shard, n int) int {
	f.t.Helper()
	for key := 1; ; key++ {
		if f.shardOf(key) == shard {
			if n--; n < 0 {
				return key
			}
		}
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"pgreshard/move"
	"pgreshard/notice"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/sink/jetstream"
)

// natsServer is a NATS server that stops and comes back.
type natsServer struct {
	t       *testing.T
	dir     string
	address string
	server  *notice.Server
}

func newNATS(t *testing.T) *natsServer {
	n := &natsServer{t: t, dir: t.TempDir(), address: "nats://127.0.0.1:0"}
	n.start()
	n.address = n.server.Address()
	t.Cleanup(func() { n.stop() })
	return n
}

func (n *natsServer) start() {
	n.t.Helper()
	var err error
	if n.server, err = notice.Serve(n.dir, n.address); err != nil {
		n.t.Fatal(err)
	}
}

func (n *natsServer) stop() {
	if n.server != nil {
		n.server.Close()
		n.server = nil
	}
}

func (n *natsServer) connect(name string) *nats.Conn {
	n.t.Helper()
	conn, err := notice.Connect(n.address, nil, name, nats.ReconnectBufSize(-1))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(conn.Close)
	return conn
}

// last is the number of the last message of a move's stream.
func (n *natsServer) last(name string) uint64 {
	n.t.Helper()
	js, err := natsjs.New(n.connect("test"))
	if err != nil {
		n.t.Fatal(err)
	}
	stream, err := js.Stream(n.t.Context(), jetstream.StreamName(name))
	if err != nil {
		n.t.Fatal(err)
	}
	return stream.CachedInfo().State.LastSeq
}

// come waits until what was written up to now is published and has come.
func (n *natsServer) come(m *move.Move, name string, layout int, dbs []*pgtest.DB, consumers ...*pgtest.Consumer) {
	n.t.Helper()
	for shard, db := range dbs {
		changes := func(s move.Status) (confirmed pg.LSN, ok bool) {
			if s.CDC == nil { // it is only starting
				return 0, false
			}
			for _, c := range s.CDC.Shards {
				if c.Layout == layout && c.Shard == shard && c.State == "changes" && c.Confirmed != "" {
					confirmed, _ = pg.ParseLSN(c.Confirmed)
					return confirmed, true
				}
			}
			return 0, false
		}
		awaitStatus(n.t, "in the changes", m.Snapshot, func(s move.Status) bool { _, ok := changes(s); return ok })
		at, err := pg.ParseLSN(db.Query(n.t, `select pg_logical_emit_message(true, 'test', '')`)[0][0])
		if err != nil {
			n.t.Fatal(err)
		}
		awaitStatus(n.t, "published", m.Snapshot, func(s move.Status) bool {
			confirmed, ok := changes(s)
			return ok && confirmed >= at
		})
	}
	last := n.last(name)
	for i, c := range consumers {
		for end := time.Now().Add(2 * time.Minute); c.Applied() < last; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				n.t.Fatalf("consumer %d is at message %d of %d", i, c.Applied(), last)
			}
		}
	}
}

// consuming are two consumers of a move's stream, of which one begins again, at random, where it was or from nothing, unless
// it is to come to the end.
type consuming struct {
	consumers [2]*pgtest.Consumer
	steady    atomic.Bool
	stop      func()
}

func (n *natsServer) consume(name string, seed uint64) *consuming {
	c := &consuming{consumers: [2]*pgtest.Consumer{pgtest.NewConsumer(), pgtest.NewConsumer()}}
	ctx, cancel := context.WithCancel(n.t.Context())
	var all sync.WaitGroup
	all.Go(func() { c.consumers[0].Follow(ctx, n.connect("consumer"), jetstream.StreamName(name)) })
	all.Go(func() {
		random, conn := rand.New(rand.NewPCG(seed, 2)), n.connect("consumer that restarts")
		for ctx.Err() == nil {
			wanted := time.Duration(200+random.IntN(1500)) * time.Millisecond
			if c.steady.Load() {
				wanted = 10 * time.Second
			} else if random.IntN(3) == 0 {
				c.consumers[1].Forget()
			}
			life, end := context.WithTimeout(ctx, wanted)
			c.consumers[1].Follow(life, conn, jetstream.StreamName(name))
			end()
		}
	})
	c.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	n.t.Cleanup(c.stop)
	return c
}

// Two consumers have the tables from the stream alone, whatever happens meanwhile: NATS is away while the application writes and
// the move switches, the worker is another one, the layout goes forth and back.
func TestConsumersReconstructTheTablesFromTheStreamAlone(t *testing.T) {
	t.Parallel()
	pgtest.OneIn(t, 6) // thousands of messages, each on disk before the next
	for _, seed := range pgtest.Seeds(t, "CDC_SEED", 1) {
		t.Logf("CDC_SEED=%d", seed)
		r := newRig(t, 2, 2, pgtest.WorkloadOptions{Writers: 6, Rate: 150, Lookups: true, KeyChanges: true, NewTenants: true})
		r.config.Name, r.config.Reverse, r.config.Publishes = fmt.Sprintf("cdc-%d", moveNumber.Add(1)), true, true
		n := newNATS(t)
		consuming := n.consume(r.config.Name, seed)
		stopWriters := r.write()
		how := move.MigrateOptions{Serve: true, Ready: unasked, CDC: &move.CDC{Conn: n.connect("worker"), Rows: true}}
		serve := func() (k *kept, end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			k = &kept{rig: r, Move: r.move(), done: make(chan error, 1)}
			go func() { k.done <- k.Migrate(ctx, how) }()
			return k, func() { cancel(); <-k.done }
		}
		committed := func(n int) {
			t.Helper()
			if err := r.load.Committed(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		come := func(k *kept, layout int, dbs []*pgtest.DB) {
			t.Helper()
			consuming.steady.Store(true)
			defer consuming.steady.Store(false)
			n.come(k.Move, r.config.Name, layout, dbs, consuming.consumers[:]...)
		}

		k, end := serve()
		awaitStatus(t, "safe", k.Snapshot, func(s move.Status) bool {
			return s.SafeToCutOver.OK && s.CDC != nil && len(s.CDC.Shards) == 2 && s.CDC.Shards[1].State == "changes"
		})
		committed(60)
		end() // in the middle of it
		k, end = serve()
		come(k, 1, r.sources)

		n.stop()
		committed(60)
		s := awaitStatus(t, "told of and safe", k.Snapshot, func(s move.Status) bool {
			return s.SafeToCutOver.OK && s.CDC != nil && !s.CDC.Connected && len(s.CDC.Shards) == 2 && s.CDC.Shards[0].LagBytes != nil && *s.CDC.Shards[0].LagBytes > 0
		})
		if !strings.Contains(fmt.Sprint(s.Alarms), "no changes are published: ") {
			t.Errorf("alarms: %v", s.Alarms)
		}
		if _, err := k.Cutover(t.Context(), move.CutoverOptions{}); err != nil {
			t.Fatal(err)
		}
		k.following()
		committed(60)
		n.start()
		come(k, 2, r.shards)
		committed(60)
		k.following()
		if _, err := k.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		committed(60)
		stopWriters()
		come(k, 1, r.sources)
		awaitStatus(t, "one leg", k.Snapshot, func(s move.Status) bool { return len(s.CDC.Shards) == 2 && s.CDC.Shards[0].Layout == 1 })
		end()
		consuming.stop()
		for i, c := range consuming.consumers {
			c.Right(t)
			scratch := pgtest.Shared(t).Database(t)
			scratch.Exec(t, pgtest.WorkloadSchema)
			c.Fill(t, scratch)
			for _, table := range pgtest.WorkloadTables() {
				sources := r.conns(r.sources)
				if table == "tenants" || table == "countries" {
					sources = sources[:1]
				}
				if err := pgtest.SameRows(t.Context(), sources, r.conns([]*pgtest.DB{scratch}), table, pgtest.RowsOptions{}); err != nil {
					t.Errorf("consumer %d: %v", i, err)
				}
			}
		}
		if err := r.move().Cancel(t.Context(), move.CancelOptions{DropData: true}); err != nil {
			t.Fatal(err)
		}
		for _, db := range append(r.sources, r.shards...) {
			if left := db.Query(t, `select slot_name::text from pg_replication_slots where database = current_database() union all select pubname from pg_publication`); len(left) > 0 {
				t.Errorf("left on %s: %v", db.Name, left)
			}
		}
	}
}

// A slot that keeps too much while NATS is away is dropped; then publishing begins anew, and who consumes has no row that was
// deleted meanwhile.
func TestPublishingBeginsAnewOnceItsSlotWasDroppedForItsBudget(t *testing.T) {
	t.Parallel()
	own := pgtest.Start(t, pgtest.Options{}) // what other tests write on a server its slots keep too
	source := own.Database(t)
	source.Exec(t, budgetSchema+`; create table kept (id int primary key); insert into kept select generate_series(1, 100)`)
	s := smallMoveOf(t, source, nil, "id")
	s.config.Destination, s.config.Publishes, s.config.WALBudget = move.Side{}, true, 8<<20
	n, consumer := newNATS(t), pgtest.NewConsumer()
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	beside.Go(func() { consumer.Follow(ctx, n.connect("consumer"), jetstream.StreamName(s.config.Name)) })
	m := s.move()
	ended := make(chan error, 1)
	how := move.MigrateOptions{Serve: true, CDC: &move.CDC{Conn: n.connect("worker"), Rows: true}}
	go func() { ended <- m.Migrate(ctx, how) }()
	n.come(m, s.config.Name, 1, s.sources, consumer)

	n.stop()
	source.Exec(t, `delete from kept where id > 40`)
	source.Exec(t, `select pg_logical_emit_message(false, 'test', repeat('x', 1000000)) from generate_series(1, 12)`)
	awaitStatus(t, "dropped", m.Snapshot, func(st move.Status) bool { return st.CDC != nil && strings.Contains(st.CDC.BegunAnew, " kept ") })
	if left := source.Query(t, `select slot_name::text from pg_replication_slots union all select pubname from pg_publication`); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	source.Exec(t, `update kept set id = id + 1000 where id = 1`)
	n.start()
	n.come(m, s.config.Name, 1, s.sources, consumer)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	beside.Wait()
	consumer.Right(t)
	scratch := pgtest.Shared(t).Database(t)
	scratch.Exec(t, `create table kept (id int primary key)`+"; "+budgetSchema+`; truncate items`)
	consumer.Fill(t, scratch)
	for _, table := range []string{"kept", "items"} {
		if err := pgtest.SameRows(t.Context(), s.conns(s.sources), s.conns([]*pgtest.DB{scratch}), table, pgtest.RowsOptions{}); err != nil {
			t.Error(err)
		}
	}
}

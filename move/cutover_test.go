package move_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/checkpoints"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// held is a migration that stands before its cutover until it is let go.
type held struct {
	*move.Move
	ready chan struct{} // closed when it has come there
	cut   chan bool     // what Ready answers
	done  chan error
}

// hold starts a migration and waits until it stands before the cutover.
func (r *rig) hold(ctx context.Context, m *move.Move) *held {
	r.t.Helper()
	h := r.begin(ctx, m)
	select {
	case <-h.ready:
	case err := <-h.done:
		r.t.Fatalf("before the cutover: %v", err)
	}
	return h
}

func (r *rig) begin(ctx context.Context, m *move.Move) *held {
	h := &held{Move: m, ready: make(chan struct{}), cut: make(chan bool, 1), done: make(chan error, 1)}
	once := sync.OnceFunc(func() { close(h.ready) })
	go func() {
		h.done <- m.Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
			once()
			select {
			case go_ := <-h.cut:
				return go_, nil
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}})
	}()
	return h
}

// goOn lets the cutover begin and waits for the end.
func (h *held) goOn() error {
	h.cut <- true
	return <-h.done
}

// touch is a write that changes nothing, by a session that is no part of the workload.
const touch = `update tenants set name = name where id = 1 returning clock_timestamp()`

// probe writes to a database as fast as it answers until the returned func is called, which gives every attempt.
func (r *rig) probe(db *pgtest.DB) (stop func() []pgtest.Attempt) {
	return pgtest.NewProbe(r.t, db, touch, 0).End
}

// refusals checks that every error is a fence's and gives the texts they came in, each once.
func refusals(t *testing.T, all []pgtest.Attempt) (texts []string) {
	t.Helper()
	for _, a := range all {
		var refused *pgconn.PgError
		switch {
		case a.Err == nil:
		case !errors.As(a.Err, &refused) || refused.Code != "25006":
			t.Errorf("a write ended with %v", a.Err)
		case !slices.Contains(texts, refused.Message):
			texts = append(texts, refused.Message)
		}
	}
	return texts
}

func TestFromTheFenceOnWritersAreToldWhichLayoutServes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
	m := r.hold(t.Context(), r.move())
	early := pgtest.Attempt{Err: r.shards[1].Conn(t).QueryRow(t.Context(), touch).Scan(new(time.Time))}
	if got := refusals(t, []pgtest.Attempt{early}); fmt.Sprint(got) != "[pgreshard: write to public.tenants refused: layout 2 was used, but layout 1 serves]" {
		t.Errorf("a write to the destination before the switch: %q", got)
	}
	stop := r.probe(r.sources[0])
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	all := stop()
	first := slices.IndexFunc(all, func(a pgtest.Attempt) bool { return a.Err != nil })
	if first < 1 || slices.ContainsFunc(all[first:], func(a pgtest.Attempt) bool { return a.Err == nil }) {
		t.Errorf("of %d writes number %d was refused first, and a later one passed", len(all), first)
	}
	want := []string{
		"pgreshard: write to public.tenants refused: layout 1 was used, which serves but takes no writes during a switch",
		"pgreshard: write to public.tenants refused: layout 1 was used, but layout 2 serves",
	}
	if got := refusals(t, all); !slices.Equal(got, want) {
		t.Errorf("refusals: %q", got)
	}
	if err := r.shards[1].Conn(t).QueryRow(t.Context(), touch).Scan(new(time.Time)); err != nil {
		t.Errorf("a write to the destination after the switch: %v", err)
	}
	if err := r.shards[1].Conn(t).QueryRow(t.Context(), `select pg_catalog.count(*) from tenants`).Scan(new(int)); err != nil {
		t.Errorf("a read: %v", err)
	}
}

// lockedShard holds a lock on a table of a shard until it is cleared.
func (r *rig) lockedShard(n int, table, mode string) (clear func()) {
	tx, err := r.shards[n].Conn(r.t).Begin(r.t.Context())
	if err == nil {
		_, err = tx.Exec(r.t.Context(), fmt.Sprintf(`lock table %s in %s mode`, table, mode))
	}
	if err != nil {
		r.t.Error(err)
	}
	return func() { _ = tx.Rollback(r.t.Context()) }
}

// completes runs the move once more, with nothing in its way, to the end.
func (r *rig) completes(stopWriters func()) {
	r.t.Helper()
	r.config.MaxFreeze = 30 * time.Second
	if err := r.move().Migrate(r.t.Context(), move.MigrateOptions{}); err != nil {
		r.t.Fatalf("the rerun: %v", err)
	}
	stopWriters()
	if err := r.load.Ledger().Check(r.t.Context(), r.conns(r.shards)...); err != nil {
		r.t.Error(err)
	}
	r.placed()
}

func TestNothingIsFrozenForAComparisonThatCannotEndInTime(t *testing.T) {
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{Writers: 8, Rate: 200})
	r.config.MaxFreeze = 200 * time.Millisecond
	stopWriters := r.write()
	m := r.hold(t.Context(), r.move())
	var clear func()
	m.BeforeStep(func(step string) {
		if step == "check" {
			clear = r.lockedShard(1, "orders", "access exclusive")
		}
	})
	stop := r.probe(r.sources[0])
	err := m.goOn()
	if err == nil || !strings.Contains(err.Error(), "a freeze would be in vain; hint: raise [cutover] max_freeze") {
		t.Errorf("the cutover ended with %v", err)
	}
	if refused := refusals(t, stop()); len(refused) > 0 {
		t.Errorf("writers were refused: %q", refused)
	}
	clear()
	r.completes(stopWriters)
}

func TestACutoverBeyondMaxFreezeGivesTheSourceBack(t *testing.T) {
	const maxFreeze = time.Second
	for name, c := range map[string]struct {
		step     string // at which it is given up
		obstruct func(*testing.T, *rig, *pgtest.Relay) (clear func())
	}{
		"a session has a table of a shard locked": {"drain", func(t *testing.T, r *rig, _ *pgtest.Relay) func() {
			clear := r.lockedShard(1, "orders", "access exclusive")
			r.sources[0].Exec(t, `update orders set status = status`) // something for it to wait with
			return clear
		}},
		// What VACUUM holds: rows pass, ALTER TABLE … ENABLE TRIGGER does not.
		"a session keeps a shard's triggers as they are": {"finish", func(t *testing.T, r *rig, _ *pgtest.Relay) func() {
			return r.lockedShard(1, "events", "share update exclusive")
		}},
		"the stream's connection to a shard is silent": {"drain", func(t *testing.T, r *rig, relay *pgtest.Relay) func() {
			stalled := relay.Add(pgtest.Rule{Direction: pgtest.ToServer, Type: "Bind", Contains: r.config.Name, Do: pgtest.Stall})
			select {
			case <-stalled:
			case <-t.Context().Done():
				t.Error("no checkpoint was written")
			}
			return func() { relay.Clear(); relay.Resume(pgtest.ToServer) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pgtest.OneIn(t, 2)
			r := newRig(t, 1, 2, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true})
			relay := pgtest.NewRelay(t, r.shards[1].Cluster.Addr())
			r.config.Name = "obstructed"
			r.sources[0].Exec(t, `create function nothing() returns trigger language plpgsql as 'begin return new; end';
				create trigger nothing after insert on events for each row execute function nothing()`)
			r.config.MaxFreeze = maxFreeze
			r.config.Destination.Shards[1] = r.shards[1].Via(relay).Shard(1)
			stopWriters := r.write()
			if err := r.load.Committed(t.Context(), 50); err != nil {
				t.Fatal(err)
			}
			m := r.hold(t.Context(), r.move())
			var clear func()
			m.BeforeStep(func(step string) {
				if step == "freeze" {
					clear = c.obstruct(t, r, relay)
				}
			})
			stop := r.probe(r.sources[0])
			began := time.Now()
			err := m.goOn()
			took := time.Since(began)
			after := r.sources[0].Conn(t).QueryRow(t.Context(), touch).Scan(new(time.Time))
			all := stop()
			var undone *move.UndoneError
			if !errors.As(err, &undone) || undone.Step != c.step {
				t.Fatalf("the cutover ended with %v", err)
			}
			if after != nil {
				t.Errorf("after the undo: %v", after)
			}
			t.Logf("%s after %v: %v", undone.Step, took.Round(time.Millisecond), err)
			refusals(t, all)
			longest, since, _ := pgtest.Refused(all)
			if !since.IsZero() || longest == 0 || longest > maxFreeze+time.Second {
				t.Errorf("the source refused writes for %v by its own clock", longest)
			}
			t.Logf("the source refused writes for %v", longest.Round(time.Millisecond))
			if state := r.shards[0].Query(t, `select state, error is not null, (select version from pgreshard.serving) from pgreshard.move`); fmt.Sprint(state) != "[[streaming t 1]]" {
				t.Errorf("the move's record: %v", state)
			}
			clear()
			r.completes(stopWriters)
		})
	}
}

func TestOneChangedColumnIsFoundBeforeTheFreeze(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 3, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true})
	r.sources[0].Exec(t, `insert into orders (id, tenant_id, status, version) values (5900, 7, 'of no writer', 1)`)
	stop := r.write()
	m := r.hold(t.Context(), r.move())
	flip := func(from, to string) {
		t.Helper()
		touched := 0
		for _, db := range r.shards {
			conn := db.Conn(t)
			_, err := conn.Exec(t.Context(), `set session_replication_role = replica`)
			if err != nil {
				t.Fatal(err)
			}
			tag, err := conn.Exec(t.Context(), `update orders set status = $2 where id = 5900 and status = $1`, from, to)
			if err != nil {
				t.Fatal(err)
			}
			touched += int(tag.RowsAffected())
		}
		if touched != 1 {
			t.Fatalf("%d rows were changed", touched)
		}
	}
	flip("of no writer", "of no vriter")
	m.BeforeStep(func(step string) {
		if step == "freeze" {
			t.Error("a freeze began although a row differs")
		}
	})
	err := m.goOn()
	var difference *move.DifferenceError
	if !errors.As(err, &difference) || !slices.Equal(difference.Tables, []string{"public.orders"}) {
		t.Fatalf("the cutover ended with %v", err)
	}
	if strings.Contains(err.Error(), "vriter") {
		t.Errorf("a value stands in the error: %v", err)
	}
	t.Log(err)
	if err := r.sources[0].Conn(t).QueryRow(t.Context(), touch).Scan(new(time.Time)); err != nil {
		t.Errorf("the source afterwards: %v", err)
	}
	flip("of no vriter", "of no writer")
	if err := r.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatalf("the rerun: %v", err)
	}
	stop()
	for _, db := range r.shards {
		db.Exec(t, `delete from orders where id = 5900`)
	}
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

// heard is a log that tells when a line was written.
type heard struct {
	slog.Handler
	line string
	told chan struct{}
	once *sync.Once
}

func (h heard) Handle(ctx context.Context, record slog.Record) error {
	if strings.Contains(record.Message, h.line) {
		h.once.Do(func() { close(h.told) })
	}
	return h.Handler.Handle(ctx, record)
}

// listening is a move whose log is listened to for a line.
func (r *rig) listening(line string) (*move.Move, <-chan struct{}) {
	h := heard{slog.DiscardHandler, line, make(chan struct{}), new(sync.Once)}
	m := move.New(r.config, slog.New(enabled{h}))
	r.t.Cleanup(m.Close)
	return m, h.told
}

// enabled takes every record.
type enabled struct{ heard }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }

func TestASecondWorkerWaitsUntilTheFirstIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	one := r.hold(first, r.move())
	m, waits := r.listening("another worker runs this move")
	two := r.begin(t.Context(), m)
	<-waits
	epochs := func() string {
		return fmt.Sprint(r.shards[0].Query(t, `select epoch, state from pgreshard.epoch, pgreshard.move`), r.sources[0].Query(t, `select epoch from pgreshard.epoch`))
	}
	before := epochs()
	if s := two.Snapshot(); s.State != "" {
		t.Errorf("the second worker is %s beside the first", s.State)
	}
	if before != "[[1 streaming]] [[1]]" {
		t.Errorf("epochs while the first runs: %s", before)
	}
	cancel()
	if err := <-one.done; !errors.Is(err, context.Canceled) {
		t.Fatalf("the first ended with %v", err)
	}
	<-two.ready
	if got := epochs(); got != "[[2 streaming]] [[2]]" {
		t.Errorf("epochs under the second: %s", got)
	}
	if err := two.goOn(); err != nil {
		t.Fatal(err)
	}
	r.compare()
}

func TestAWorkerOfAnotherMachineIsWaitedForUntilItsBeatsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1, pgtest.WorkloadOptions{})
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	one := r.hold(first, r.move())
	cancel()
	<-one.done
	// It took the lease and was stopped before any node was told of its epoch: that is not given out again.
	r.shards[0].Exec(t, `insert into pgreshard.lease (move, epoch, host, pid, address, beat) values ($1, 7, 'elsewhere', 1, '', clock_timestamp())`, r.config.Name)
	if err := r.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := r.shards[0].Query(t, `select (select min(at) from pgreshard.journal where step = 'check') - (select max(at) from pgreshard.journal where step = 'streaming') > $1::interval`,
		fmt.Sprint(checkpoints.LeaseTime.Seconds()-1, " s"))
	if got[0][0] != "t" {
		t.Errorf("the lease of another machine was not waited for")
	}
	if got := r.sources[0].Query(t, `select epoch from pgreshard.epoch`); got[0][0] != "8" {
		t.Errorf("the epoch behind 7 is %s", got[0][0])
	}
	r.compare()
}

func TestAWorkerThatWasSupersededChangesNothing(t *testing.T) {
	t.Parallel()
	for name, act := range map[string]func(*testing.T, *rig, *held) error{
		"when a change comes": func(t *testing.T, r *rig, m *held) error {
			r.sources[0].Exec(t, `update orders set status = 'late'`)
			return <-m.done
		},
		"when it would cut over": func(_ *testing.T, _ *rig, m *held) error { return m.goOn() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
			m := r.hold(t.Context(), r.move())
			all := append(slices.Clone(r.shards), r.sources...)
			for _, db := range all {
				db.Exec(t, `update pgreshard.epoch set epoch = epoch + 1`)
			}
			was := r.everything(all)
			if err := act(t, r, m); !errors.Is(err, checkpoints.ErrSuperseded) {
				t.Errorf("the worker ended with %v", err)
			}
			if name == "when a change comes" {
				r.sources[0].Exec(t, `update orders set status = 'new'`)
			}
			if is := r.everything(all); is != was {
				t.Errorf("it was\n%s\nit is\n%s", was, is)
			}
			if err := r.sources[0].Conn(t).QueryRow(t.Context(), touch).Scan(new(time.Time)); err != nil {
				t.Errorf("the source: %v", err)
			}
			if err := r.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil { // the worker that took over
				t.Fatal(err)
			}
			r.compare()
		})
	}
}

// everything is, by database, what a worker changes: positions (once no transaction holds one), journal, state, flags,
// lease and rows.
func (r *rig) everything(dbs []*pgtest.DB) string {
	r.t.Helper()
	var b strings.Builder
	for _, db := range dbs {
		conn := db.Conn(r.t)
		err := pgx.BeginFunc(r.t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(r.t.Context(), `select from pgreshard.checkpoint for update`)
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
		fmt.Fprintln(&b, db.Query(r.t, `select (select string_agg(c::text, ',') from pgreshard.checkpoint c), (select count(*) from pgreshard.journal),
			(select string_agg(state || coalesce(error, ''), ',') from pgreshard.move), (select version from pgreshard.serving),
			(select last_value from pgreshard.fence_until), (select last_value from pgreshard.fence_serving)`))
		for _, table := range pgtest.WorkloadTables() {
			fmt.Fprintln(&b, table, db.Query(r.t, `select count(*), md5(string_agg(t::text, ',' order by t::text)) from `+table+` t`))
		}
	}
	return b.String()
}

// Writers of whom half take rows by SELECT … FOR UPDATE first, and two that ignore every hint, lose nothing in a cutover.
func TestTheFreezeAsItsWritersFeelIt(t *testing.T) {
	r := newRig(t, 1, 4, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true, Locks: true})
	// As plan advises: then no row has to be searched for.
	r.sources[0].Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
	rogues := r.beRogue()
	stop := r.write()
	m := r.hold(t.Context(), r.move())
	before := r.load.Stats()
	began := time.Now()
	if err := r.load.Committed(t.Context(), 500); err != nil {
		t.Fatal(err)
	}
	rate := float64(r.load.Stats().Commits-before.Commits) / time.Since(began).Seconds()
	r.load.ResetGaps()
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	if err := r.load.EachCommitted(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	stats := r.load.Stats()
	t.Logf("%.0f tx/s before the freeze; %.0f ms by the worker, %d ms longest gap of a writer; %d refusals",
		rate, 1000**m.Snapshot().Cutover.FreezeSeconds, stats.LongestGap.Milliseconds(), stats.Refused-before.Refused)
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
	rogues.check(r.shards)
}

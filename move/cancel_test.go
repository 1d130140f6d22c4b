package move_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// left lists everything a move makes that a database still has.
func left(t *testing.T, db *pgtest.DB) (found []string) {
	t.Helper()
	for _, row := range db.Query(t, `
		select 'schema ' || nspname from pg_namespace where nspname = 'pgreshard'
		union all select 'slot ' || slot_name from pg_replication_slots where database = current_database()
		union all select 'publication ' || pubname from pg_publication
		union all select 'trigger on ' || tgrelid::regclass from pg_trigger where tgname like '%pgreshard%'`) {
		found = append(found, row[0])
	}
	return found
}

// untilState lets a worker run in the background until the move is in a state, then stops it.
func untilState(t *testing.T, r *rig, state string) {
	t.Helper()
	m := r.move()
	defer m.Close()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- m.Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) { return false, nil }})
	}()
	for m.Snapshot().State != state {
		select {
		case err := <-ended:
			t.Fatalf("the worker ended before the move was %s: %v", state, err)
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestACancelledMoveLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, state := range []string{move.StateCopying, move.StateStreaming} {
		for _, drop := range []bool{false, true} {
			t.Run(fmt.Sprintf("cancelled when %s, data dropped: %v", state, drop), func(t *testing.T) {
				r := newRig(t, 1, 2, pgtest.WorkloadOptions{Writers: 2, Rate: 50})
				r.config.SetIdentity = true
				r.sources[0].Exec(t, `create table notes (tenant_id bigint, note text)`) // no key: identity FULL is set, and put back
				r.config.Destination.Spec.Tables = append(r.config.Destination.Spec.Tables, noteRule)
				untilState(t, r, state)
				if got := left(t, r.sources[0]); len(got) == 0 {
					t.Fatal("nothing was made that could be left behind")
				}
				m := r.move()
				if err := m.Cancel(t.Context(), move.CancelOptions{DropData: drop}); err != nil {
					t.Fatal(err)
				}
				for _, db := range append(r.sources, r.shards...) {
					if got := left(t, db); len(got) > 0 {
						t.Errorf("%s still has %q", db.Name, got)
					}
				}
				if got := r.sources[0].Query(t, `select relreplident from pg_class where relname = 'notes'`)[0][0]; got != "d" {
					t.Errorf("the replica identity of notes is %s, it was d", got)
				}
				tables := r.shards[1].Query(t, `select count(*) from pg_tables where schemaname = 'public'`)[0][0]
				if drop != (tables == "0") {
					t.Errorf("the shard has %s tables", tables)
				}
				stop := r.write()
				if err := r.load.Committed(t.Context(), 20); err != nil {
					t.Errorf("the source does not serve: %v", err)
				}
				stop()
				if err := m.Cancel(t.Context(), move.CancelOptions{}); !errors.Is(err, move.ErrNoMove) {
					t.Errorf("cancelled twice: %v", err)
				}
			})
		}
	}
}

func TestACompletedMoveLeavesTheRecordAndTheRetiredFence(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
	m := r.move()
	if err := m.Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Cancel(t.Context(), move.CancelOptions{}); !errors.Is(err, move.ErrSwitched) {
		t.Errorf("a completed move was cancelled: %v", err)
	}
	for _, db := range append(r.sources, r.shards...) {
		for _, what := range left(t, db) {
			if db == r.sources[0] && what != "slot" && what[:4] != "slot" && what[:4] != "publ" || what == "schema pgreshard" {
				continue
			}
			t.Errorf("%s still has %s", db.Name, what)
		}
		if got := db.Query(t, `select version from pgreshard.serving`)[0][0]; got != "2" {
			t.Errorf("%s says layout %s serves", db.Name, got)
		}
	}
	insert := `insert into countries values ('ZZ', 'none', 1)`
	if _, err := r.conns(r.sources)[0].Exec(t.Context(), insert); err == nil {
		t.Error("the retired source took a write")
	}
	if fenced, err := m.SourceFenced(t.Context()); err != nil || !fenced {
		t.Errorf("the retired source has a fence: %v, %v", fenced, err)
	}
	again := *r // a move of other data out of the retired database is told what is in its way
	again.config.Name = "again"
	hint := func() string {
		plan, err := again.move().Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plan.Problems {
			if p.Table == "source shard 0" && strings.Contains(p.What, "layout 2 of app_sharded is recorded as serving there") {
				return p.Hint
			}
		}
		t.Fatalf("the record is no problem: %+v", plan.Problems)
		return ""
	}
	if got := hint(); !strings.Contains(got, "first `pgreshard complete --release-source`") {
		t.Errorf("with the fence: %s", got)
	}
	if err := m.Complete(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if fenced, err := m.SourceFenced(t.Context()); err != nil || fenced {
		t.Errorf("the released source has a fence: %v, %v", fenced, err)
	}
	if got := hint(); !strings.Contains(got, "drop schema pgreshard cascade") || strings.Contains(got, "release-source") {
		t.Errorf("without the fence: %s", got)
	}
	if _, err := r.conns(r.sources)[0].Exec(t.Context(), insert); err != nil {
		t.Errorf("the released source refused a write: %v", err)
	}
}

// A transaction that has written holds the fence's lock until it ends. Nothing is frozen, so a cancel needs no such lock:
// it names who is in the way of taking the fence off a table, lets the log go at once, and refuses nobody meanwhile.
func TestACancelBesideAnOpenTransactionNamesItAndRefusesNobody(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table items (id bigint primary key); create table others (id bigint primary key)`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t)}, "id")
	s.config.LockTimeout = 200 * time.Millisecond
	untilArmed(t, s.rig)
	conn := source.Conn(t)
	open, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), `insert into items values (1)`); err != nil {
		t.Fatal(err)
	}
	var log logged
	m := move.New(s.config, slog.New(slog.NewTextHandler(&log, nil)))
	defer m.Close()
	ended := make(chan error, 1)
	go func() { ended <- m.Cancel(t.Context(), move.CancelOptions{}) }()
	inTheWay := fmt.Sprintf("pid %d of postgres", conn.PgConn().PID())
	for n := 1; !strings.Contains(log.String(), inTheWay); n++ {
		select {
		case err := <-ended:
			t.Fatalf("cancel ended with %v beside an open transaction:\n%s", err, log.String())
		case <-t.Context().Done():
			t.Fatalf("nobody is named:\n%s", log.String())
		default:
			source.Exec(t, `insert into others values ($1)`, n)
		}
	}
	if !strings.Contains(log.String(), "table=public.items") || !strings.Contains(log.String(), "insert into items values (?)") {
		t.Errorf("the log: %s", log.String())
	}
	if got := source.Query(t, `select count(*) from pg_replication_slots where database = current_database()`)[0][0]; got != "0" {
		t.Errorf("%s slots keep the log while cancel waits", got)
	}
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := left(t, source); len(got) > 0 {
		t.Errorf("the source still has %q", got)
	}

	// The copied tables stay, and whoever wants to begin anew is told which.
	var none *move.NoMoveError
	err = m.Cancel(t.Context(), move.CancelOptions{DropData: true})
	const drop = `drop table "public"."items", "public"."others" cascade`
	if !errors.As(err, &none) || !errors.Is(err, move.ErrNoMove) || !strings.HasSuffix(none.Hint(), "on destination shard 0: "+drop) {
		t.Errorf("cancelled again: %v", err)
	}
	plan, err := s.move().Plan(t.Context())
	if err != nil || len(plan.Problems) != 1 || plan.Problems[0].What != "tables public.items, public.others exist already" || !strings.Contains(plan.Problems[0].Hint, drop) {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	s.shards[0].Exec(t, drop)
	if plan, err := s.move().Plan(t.Context()); err != nil || len(plan.Problems) > 0 {
		t.Errorf("plan after what was hinted: %+v, %v", plan, err)
	}
}

// A cancel ends a freeze that a dead worker has left, at once.
func TestACancelLiftsAFreeze(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table items (id bigint primary key)`)
	s := smallMoveOf(t, source, []*pgtest.DB{pgtest.SharedDestination(t).Database(t)}, "id")
	untilArmed(t, s.rig)
	for _, until := range []string{"9223372036854775807", "(extract(epoch from clock_timestamp() + interval '1 hour') * 1000000)::bigint"} {
		source.Exec(t, `select setval('pgreshard.fence_until', `+until+`)`)
	}
	if st, err := s.move().Status(t.Context()); err != nil || len(st.Fences) != 1 || !st.Fences[0].Refuses || st.Fences[0].Until == nil || !st.Idle {
		t.Errorf("status: %+v, %v", st, err)
	}
	if err := s.move().Cancel(t.Context(), move.CancelOptions{}); err != nil {
		t.Fatal(err)
	}
	source.Exec(t, `insert into items values (1)`)
	if got := left(t, source); len(got) > 0 {
		t.Errorf("the source still has %q", got)
	}
}

// untilArmed runs a worker until the source has the fence and could be cut over, then stops it.
func untilArmed(t *testing.T, r *rig) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	err := r.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) { stop(); return false, nil }})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// logged is what was logged so far.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

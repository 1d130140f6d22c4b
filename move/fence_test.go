package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

const fenceTables = `
create table public.parent (id bigint primary key, v text);
create table public.child (w text) inherits (public.parent);
create table public.plain (id bigint primary key, v text);
create table public.tree (id bigint, day int, primary key (id, day)) partition by range (day);
create table public.middle partition of public.tree for values from (0) to (10) partition by range (day);
create table public.leaf1 partition of public.middle for values from (0) to (5);
create table public.leaf2 partition of public.middle for values from (5) to (10);
create table public.other (id bigint);
create view public.window as select * from public.plain;
insert into public.plain values (1, 'a');
insert into public.tree values (1, 1), (2, 6);
insert into public.child values (1, 'x', 'y')`

func names(list ...string) []pg.Name {
	var out []pg.Name
	for _, n := range list {
		out = append(out, pg.Name{Schema: "public", Table: n})
	}
	return out
}

var fenceMoved = names("child", "plain", "tree", "middle", "leaf1", "leaf2")

const testEpoch = 7

// adminTo opens a session as the worker does.
func adminTo(t *testing.T, db *pgtest.DB, role pg.Role) *pgx.Conn {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), role, "pgreshard test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	return conn
}

// fencedDatabase is a source of layout 1 (or, closed, a destination of layout 2) with an armed fence at epoch 7.
func fencedDatabase(t *testing.T, closed bool) (*pgtest.DB, fence) {
	t.Helper()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, fenceTables)
	f := fence{Conn: adminTo(t, db, pg.Admin), Epoch: testEpoch, LockTimeout: 200 * time.Millisecond}
	if err := checkpoints.Install(t.Context(), f.Conn); err != nil {
		t.Fatal(err)
	}
	if err := checkpoints.RaiseEpoch(t.Context(), f.Conn, testEpoch); err != nil {
		t.Fatal(err)
	}
	layout := int64(1)
	if closed {
		layout = 2
	}
	if err := f.setUp(t.Context(), layout, 1, closed); err != nil {
		t.Fatal(err)
	}
	if err := f.arm(t.Context(), fenceMoved, !closed); err != nil {
		t.Fatal(err)
	}
	return db, f
}

func freezeFor(t *testing.T, f fence, d time.Duration) frozen {
	t.Helper()
	z, err := f.freeze(t.Context(), fenceMoved, d, "pgreshard", "barrier")
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// refusals are ways to write to a fenced table.
var refusals = map[string]string{
	"insert":                        `insert into public.plain values (2, 'b')`,
	"update":                        `update public.plain set v = 'c'`,
	"update of no row":              `update public.plain set v = 'c' where false`,
	"delete":                        `delete from public.plain`,
	"truncate":                      `truncate public.plain`,
	"truncate of a tree":            `truncate public.tree`,
	"copy":                          `copy public.plain from program 'echo 3,z' (format csv)`,
	"merge":                         `merge into public.plain p using (values (1)) s (id) on s.id = p.id when matched then delete`,
	"insert on conflict":            `insert into public.plain values (1, 'b') on conflict (id) do nothing`,
	"a view":                        `insert into public.window values (2, 'b')`,
	"a partitioned table":           `insert into public.tree values (3, 1)`,
	"a middle partition":            `insert into public.middle values (3, 1)`,
	"a leaf":                        `insert into public.leaf1 values (3, 1)`,
	"a child through its parent":    `update public.parent set v = 'z'`,
	"a child of an unmoved table":   `insert into public.child values (5, 'x', 'y')`,
	"a session in replica role":     `set session_replication_role = replica; insert into public.plain values (2, 'b')`,
	"a session with another epoch":  `set pgreshard.epoch = '6'; insert into public.plain values (2, 'b')`,
	"a session with an empty epoch": `set pgreshard.epoch = ''; insert into public.plain values (2, 'b')`,
	"a data-modifying common table": `with x as (delete from public.plain returning 1) select from x`,
	"a session with a search_path of its own": `create schema if not exists evil; set search_path = evil, pg_temp, public, pg_catalog; insert into plain values (2, 'b')`,
}

// try runs SQL in a session of its own.
func try(t *testing.T, db *pgtest.DB, sql string) error {
	t.Helper()
	conn, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(conn)
	_, err = conn.PgConn().Exec(t.Context(), sql).ReadAll()
	return err
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if pg.Code(err) != "25006" {
		t.Errorf("%s: got %v, want SQLSTATE 25006", what, err)
	}
}

func TestAFrozenSourceRefusesEveryKindOfWrite(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	for what, sql := range refusals {
		if what == "merge" && db.Cluster.Version < 15 {
			continue // MERGE came with 15
		}
		if err := try(t, db, "begin; "+sql+"; rollback"); err != nil {
			t.Fatalf("before the freeze, %s: %v", what, err)
		}
	}
	z := freezeFor(t, f, time.Minute)
	for what, sql := range refusals {
		if what == "merge" && db.Cluster.Version < 15 {
			continue // MERGE came with 15
		}
		wantRefused(t, what, try(t, db, sql))
	}
	if err := try(t, db, `insert into public.other values (1); select * from public.plain`); err != nil {
		t.Errorf("a read and a write of a table that is not moved: %v", err)
	}
	err := try(t, db, `insert into public.plain values (2, 'b')`)
	if err == nil || !strings.Contains(err.Error(), "layout 1 was used") {
		t.Errorf("the refusal does not name the layout: %v", err)
	}

	// The worker knows itself by the epoch.
	if err := try(t, db, `begin; set local pgreshard.epoch = '7'; insert into public.plain values (9, 'w'); truncate public.tree; rollback`); err != nil {
		t.Errorf("the worker is refused: %v", err)
	}
	if err := f.lift(t.Context(), z.Value); err != nil {
		t.Fatal(err)
	}
	for what, sql := range refusals {
		if what == "merge" && db.Cluster.Version < 15 {
			continue // MERGE came with 15
		}
		if err := try(t, db, "begin; "+sql+"; rollback"); err != nil {
			t.Errorf("after the freeze was lifted, %s: %v", what, err)
		}
	}
}

func TestAWriterWithAnOldSnapshotIsRefused(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	old := db.Conn(t)
	if _, err := old.Exec(t.Context(), `begin isolation level repeatable read`); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Exec(t.Context(), `select count(*) from public.plain`); err != nil {
		t.Fatal(err)
	}
	freezeFor(t, f, time.Minute)
	_, err := old.Exec(t.Context(), `insert into public.plain values (2, 'b')`)
	wantRefused(t, "repeatable read", err)
}

func TestASourceServesAgainByItselfWhenTheFreezeRunsOut(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	z := freezeFor(t, f, 300*time.Millisecond)
	pg.Close(f.Conn) // the worker is gone
	wantRefused(t, "within the freeze", try(t, db, `insert into public.plain values (2, 'b')`))
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := try(t, db, `insert into public.plain values (2, 'b')`)
		if err == nil {
			break
		}
		wantRefused(t, "within the freeze", err)
		if time.Since(start) > 5*time.Second {
			t.Fatal("the freeze does not run out")
		}
	}
	if time.Now().Before(z.Until()) {
		t.Errorf("a write passed before %s", z.Until())
	}

	// The first writer has reset the flag, so the freeze cannot be sealed any more, whatever the clock says then.
	f.Conn = adminTo(t, db, pg.Admin)
	s, err := readFence(t.Context(), f.Conn)
	if err != nil || s.Until != 0 {
		t.Errorf("the flag after the freeze ran out: %+v, %v", s, err)
	}
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); !errors.Is(err, errFlag) {
		t.Errorf("sealing a freeze that ran out: %v", err)
	}
	if err := f.lift(t.Context(), z.Value); err != nil {
		t.Errorf("lifting a freeze that ran out: %v", err)
	}
	if err := try(t, db, `insert into public.plain values (3, 'b')`); err != nil {
		t.Error(err)
	}
}

func TestAFreezeNobodyWroteIntoCanBeSealedAfterItsDeadline(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	z := freezeFor(t, f, time.Millisecond)
	for time.Now().Before(z.Until().Add(20 * time.Millisecond)) {
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "sealed", try(t, db, `insert into public.plain values (2, 'b')`))
}

func TestAFreezeWaitsForWritersInFlightAndGivesUpWithoutATrace(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	writer := db.Conn(t)
	if _, err := writer.Exec(t.Context(), `begin`); err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(t.Context(), `update public.plain set v = 'secret-value' where id = 1`); err != nil {
		t.Fatal(err)
	}

	start := time.Now()
	_, err := f.freeze(t.Context(), fenceMoved, time.Minute, "pgreshard", "barrier")
	if !errors.Is(err, errWritersInFlight) || time.Since(start) < f.LockTimeout {
		t.Fatalf("freeze beside an open writer: %v after %s", err, time.Since(start))
	}
	if got := db.Query(t, `select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and database = (select oid from pg_database where datname = current_database())`); got[0][0] != "0" {
		t.Errorf("%s exclusive locks are left", got[0][0])
	}
	if err := try(t, db, `insert into public.plain values (2, 'b')`); err != nil {
		t.Errorf("a writer after the freeze was given up: %v", err)
	}

	all, err := blockers(t.Context(), f.Conn, 0)
	if err != nil || len(all) != 1 || all[0].PID != int32(writer.PgConn().PID()) {
		t.Fatalf("blockers: %v, %v", all, err)
	}
	if s := all[0].Statement; s != "update public.plain set v = ? where id = ?" {
		t.Errorf("the blocker's statement is shown as %q", s)
	}
	if late, err := blockers(t.Context(), f.Conn, time.Hour); err != nil || len(late) != 0 {
		t.Errorf("blockers older than an hour: %v, %v", late, err)
	}

	// A freeze that is waited for long enough succeeds; new writers are refused while it waits.
	f.LockTimeout = 10 * time.Second
	done := make(chan error, 1)
	go func() {
		_, err := f.freeze(context.WithoutCancel(t.Context()), fenceMoved, time.Minute, "pgreshard", "barrier")
		done <- err
	}()
	for {
		if got := db.Query(t, `select count(*) from pg_locks where locktype = 'advisory' and not granted`); got[0][0] == "1" {
			break
		}
	}
	wantRefused(t, "while the freeze waits", try(t, db, `insert into public.plain values (4, 'b')`))
	if _, err := writer.Exec(t.Context(), `update public.plain set v = 'z'`); err != nil {
		t.Errorf("a writer in flight may go on: %v", err)
	}
	if _, err := writer.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAPreparedTransactionBlocksTheFreezeAndIsNamed(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	gid := "gid-" + db.Name
	if err := try(t, db, fmt.Sprintf(`begin; insert into public.plain values (2, 'b'); prepare transaction '%s'`, gid)); err != nil {
		t.Fatal(err)
	}
	defer db.Exec(t, fmt.Sprintf(`rollback prepared '%s'`, gid))
	if _, err := f.freeze(t.Context(), fenceMoved, time.Minute, "pgreshard", "barrier"); !errors.Is(err, errWritersInFlight) {
		t.Errorf("freeze beside a prepared transaction: %v", err)
	}
	all, err := blockers(t.Context(), f.Conn, time.Hour)
	if err != nil || len(all) != 1 || all[0].Prepared != gid {
		t.Errorf("blockers: %v, %v", all, err)
	}
}

func TestOnlyTheRightStepUnderTheRightEpochChangesAFlag(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	z := freezeFor(t, f, time.Minute)
	zombie := fence{Conn: adminTo(t, db, pg.Admin), Epoch: testEpoch - 1, LockTimeout: time.Second}
	until := func() int64 {
		s, err := readFence(t.Context(), f.Conn)
		if err != nil {
			t.Fatal(err)
		}
		return s.Until
	}
	steps := map[string]struct {
		do   func() error
		want error
	}{
		"an older worker lifts":                  {func() error { return zombie.lift(t.Context(), liftAny) }, checkpoints.ErrSuperseded},
		"an older worker seals":                  {func() error { _, err := zombie.seal(t.Context(), fenceMoved, z.Value); return err }, checkpoints.ErrSuperseded},
		"an older worker opens":                  {func() error { return zombie.open(t.Context(), 1) }, checkpoints.ErrSuperseded},
		"an older worker sets up":                {func() error { return zombie.setUp(t.Context(), 3, 3, true) }, checkpoints.ErrSuperseded},
		"an older worker freezes":                {func() error { _, err := zombie.freeze(t.Context(), fenceMoved, 1, "x", "y"); return err }, checkpoints.ErrSuperseded},
		"seal of another freeze":                 {func() error { _, err := f.seal(t.Context(), fenceMoved, z.Value+1); return err }, errFlag},
		"lift of another freeze":                 {func() error { return f.lift(t.Context(), z.Value+1) }, errFlag},
		"lift of a seal that is none":            {func() error { return f.lift(t.Context(), fenceSealed) }, errFlag},
		"a second freeze":                        {func() error { _, err := f.freeze(t.Context(), fenceMoved, 1, "x", "y"); return err }, errFlag},
		"open for a layout that is not its own":  {func() error { return f.open(t.Context(), 2) }, errFlag},
		"retire without a seal":                  {func() error { return f.retire(t.Context(), 2) }, errFlag},
		"set up as a source of another layout":   {func() error { return f.setUp(t.Context(), 5, 5, false) }, errFlag},
		"set up again as what it is, frozen too": {func() error { return f.setUp(t.Context(), 1, 1, false) }, nil},
	}
	for what, step := range steps {
		if err := step.do(); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", what, err, step.want)
		}
		if until() != z.Value {
			t.Fatalf("%s changed the flag", what)
		}
	}

	if _, err := f.seal(t.Context(), fenceMoved, z.Value); err != nil {
		t.Fatal(err)
	}
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); err != nil {
		t.Errorf("sealing again: %v", err)
	}
	if err := f.lift(t.Context(), z.Value); !errors.Is(err, errFlag) {
		t.Errorf("lifting a seal as if it were the freeze: %v", err)
	}
	if err := f.retire(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	err := try(t, db, `insert into public.plain values (2, 'b')`)
	wantRefused(t, "retired", err)
	if err == nil || !strings.Contains(err.Error(), "layout 1 was used, but layout 2 serves") {
		t.Errorf("the refusal of a retired node: %v", err)
	}
	if err := f.setUp(t.Context(), 1, 1, false); err != nil || until() != fenceSealed {
		t.Errorf("setting a retired node up again opened it: %v", err)
	}
	if err := f.lift(t.Context(), fenceSealed); err != nil || until() != 0 {
		t.Errorf("lifting a seal: %v", err)
	}
}

func TestAFreezeFindsTablesWithoutFence(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	for what, sql := range map[string]string{
		"a leaf made after arm": `create table public.leaf3 partition of public.tree for values from (20) to (30)`,
		"a disabled trigger":    `alter table public.plain disable trigger "!pgreshard_fence"`,
		"an ordinary trigger":   `alter table public.parent enable trigger "!pgreshard_fence"`,
	} {
		db.Exec(t, sql)
		if _, err := f.freeze(t.Context(), fenceMoved, time.Minute, "pgreshard", "barrier"); !errors.Is(err, errUnfenced) {
			t.Errorf("%s: %v", what, err)
		}
		if s, err := readFence(t.Context(), f.Conn); err != nil || s.Refuses() {
			t.Errorf("%s: the source is frozen all the same", what)
		}
		if err := f.arm(t.Context(), fenceMoved, true); err != nil {
			t.Fatal(err)
		}
	}
	z := freezeFor(t, f, time.Minute)
	db.Exec(t, `create table public.leaf4 partition of public.tree for values from (30) to (40)`)
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); !errors.Is(err, errUnfenced) {
		t.Errorf("sealing with a leaf made in the freeze: %v", err)
	}
}

// Some writes ask no fence: those of a transaction that has disabled its triggers, and rows that come with a partition.
// While such a transaction is open its locks tell of it, afterwards the trigger's state or the new table does.
func TestAWriteThatGoesAroundTheFenceIsSeen(t *testing.T) {
	t.Parallel()
	for what, sql := range map[string]string{
		"triggers disabled":    `begin; alter table public.plain disable trigger all; insert into public.plain select max(id) + 1, 'x' from public.plain; alter table public.plain enable trigger all`,
		"a partition attached": `begin; create table public.bulk (like public.tree including all); alter table public.tree attach partition public.bulk for values from (50) to (60)`,
		"a lock":               `begin; lock table public.leaf1 in row exclusive mode`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db, f := fencedDatabase(t, false)
			freeze := func() error {
				_, err := f.freeze(t.Context(), fenceMoved, time.Minute, "pgreshard", "barrier")
				return err
			}
			writer := db.Conn(t)
			runOn(t, writer, sql)
			if err := freeze(); !errors.Is(err, errWritersInFlight) || !strings.Contains(err.Error(), fmt.Sprint(writer.PgConn().PID())) {
				t.Errorf("a freeze beside it: %v", err)
			}
			runOn(t, writer, `commit`)
			if err := freeze(); what != "a lock" && !errors.Is(err, errUnfenced) || what == "a lock" && err != nil {
				t.Errorf("a freeze after it: %v", err)
			}
			if what == "a lock" {
				return
			}
			if err := f.arm(t.Context(), fenceMoved, true); err != nil {
				t.Fatal(err)
			}
			z := freezeFor(t, f, time.Minute)
			runOn(t, writer, strings.NewReplacer("public.bulk", "public.bulk2", "(50) to (60)", "(60) to (70)").Replace(sql))
			if _, err := f.seal(t.Context(), fenceMoved, z.Value); !errors.Is(err, errWritersInFlight) {
				t.Errorf("a seal beside it: %v", err)
			}
			runOn(t, writer, `commit`)
			if _, err := f.seal(t.Context(), fenceMoved, z.Value); !errors.Is(err, errUnfenced) {
				t.Errorf("a seal after it: %v", err)
			}
		})
	}
}

func runOn(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatal(err)
	}
}

func TestTheBarrierLiesBehindEveryWriteThatPassed(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	db.Exec(t, fmt.Sprintf(`select pg_create_logical_replication_slot('%s', 'test_decoding')`, db.Name))
	db.Exec(t, `insert into public.plain values (2, 'b')`)
	z := freezeFor(t, f, time.Minute)
	rows := db.Query(t, fmt.Sprintf(`select lsn, data from pg_logical_slot_get_changes('%s', null, null)`, db.Name))
	insert, message := -1, -1
	for i, r := range rows {
		lsn, err := pg.ParseLSN(r[0])
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.Contains(r[1], "INSERT"):
			insert = i
		case strings.Contains(r[1], "content:barrier"):
			message = i
		case strings.HasPrefix(r[1], "COMMIT") && message < 0 && lsn > z.Barrier:
			t.Errorf("a write committed at %s, behind the barrier %s", lsn, z.Barrier)
		case strings.HasPrefix(r[1], "COMMIT") && message >= 0 && lsn < z.Barrier:
			t.Errorf("the barrier's own commit %s is before the barrier %s", lsn, z.Barrier)
		}
	}
	if insert < 0 || message < insert {
		t.Errorf("write at %d, message at %d in %v", insert, message, rows)
	}
}

func TestADestinationRefusesEverybodyButTheWorkerUntilItIsOpened(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, true)
	err := try(t, db, `insert into public.plain values (2, 'b')`)
	wantRefused(t, "before open", err)
	if err == nil || !strings.Contains(err.Error(), "layout 2 was used, but layout 1 serves") {
		t.Errorf("the refusal: %v", err)
	}
	wantRefused(t, "a leaf before open", try(t, db, `insert into public.leaf1 values (9, 1)`))
	worker := adminTo(t, db, pg.Writer)
	if _, err := worker.Exec(t.Context(), `insert into public.plain values (2, 'b')`); err != nil {
		t.Errorf("the worker before open: %v", err)
	}
	if err := f.open(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := try(t, db, `insert into public.plain values (3, 'b'); truncate public.tree`); err != nil {
		t.Errorf("after open: %v", err)
	}
	if s, err := readFence(t.Context(), f.Conn); err != nil || s.Layout != 2 || s.Serving != 2 || s.Refuses() {
		t.Errorf("after open: %+v, %v", s, err)
	}
}

func TestARetiredNodeThatJoinsALaterLayoutIsClosed(t *testing.T) {
	t.Parallel()
	db, f := fencedDatabase(t, false)
	z := freezeFor(t, f, time.Minute)
	if _, err := f.seal(t.Context(), fenceMoved, z.Value); err != nil {
		t.Fatal(err)
	}
	if err := f.setUp(t.Context(), 3, 2, true); err != nil {
		t.Fatal(err)
	}
	err := try(t, db, `insert into public.plain values (2, 'b')`)
	if err == nil || !strings.Contains(err.Error(), "layout 3 was used, but layout 2 serves") {
		t.Errorf("the refusal: %v", err)
	}
	if err := f.open(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
}

func TestArmingTriesATableAgainUntilItsLockIsHad(t *testing.T) {
	t.Parallel()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, fenceTables)
	f := fence{Conn: adminTo(t, db, pg.Admin), Epoch: 0, LockTimeout: 20 * time.Millisecond}
	if err := errors.Join(checkpoints.Install(t.Context(), f.Conn), f.setUp(t.Context(), 1, 1, false)); err != nil {
		t.Fatal(err)
	}
	writer := db.Conn(t)
	if _, err := writer.Exec(t.Context(), `begin; insert into public.plain values (5, 'x')`); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := f.arm(short, fenceMoved, true)
	if err == nil || !strings.Contains(err.Error(), "public.plain") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("arm beside a writer: %v", err)
	}
	if f.Conn.IsClosed() {
		f.Conn = adminTo(t, db, pg.Admin)
	}
	left, err := f.unfenced(t.Context(), fenceMoved, true)
	if err != nil || len(left) != 1 {
		t.Errorf("the other tables wait for the stuck one: %v, %v", left, err)
	}
	done := make(chan error, 1)
	go func() { done <- f.arm(context.WithoutCancel(t.Context()), fenceMoved, true) }()
	if _, err := writer.Exec(t.Context(), `commit`); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := f.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := db.Query(t, `select (select count(*) from pg_trigger where tgname like '%pgreshard%') + (select count(*) from pg_class where relname like 'fence%') + (select count(*) from pg_proc where proname like 'fence%')`); got[0][0] != "0" {
		t.Errorf("%s things are left after the fence was removed", got[0][0])
	}
	if err := f.remove(t.Context()); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}

func TestASealSurvivesAnImmediateStopAndReachesStandbys(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Start(t, pgtest.Options{Durable: true, Settings: map[string]string{"synchronous_commit": "off"}})
	db := cluster.Database(t)
	db.Exec(t, fenceTables)
	f := fence{Conn: adminTo(t, db, pg.Admin), Epoch: 0, LockTimeout: time.Second}
	if err := errors.Join(checkpoints.Install(t.Context(), f.Conn), f.setUp(t.Context(), 1, 1, false), f.arm(t.Context(), fenceMoved, true)); err != nil {
		t.Fatal(err)
	}
	standby := cluster.Standby(t)
	lsn, err := f.seal(t.Context(), fenceMoved, freezeFor(t, f, time.Minute).Value)
	if err != nil {
		t.Fatal(err)
	}
	if err := waitStandbys(t.Context(), f.Conn, lsn); err != nil {
		t.Error(err)
	}
	if err := errors.Join(standby.Kill(), cluster.Restart("immediate")); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, "after a crash", try(t, db, `insert into public.plain values (2, 'b')`))
}

func TestStatementsAreShownWithoutValues(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]string{
		`select 1`:                                     `select ?`,
		`update t1 set a = 'it''s', b = -1.5e3`:        `update t1 set a = ?, b = -?`,
		`select $1, $tag$ secret $ $tag$, "co'l"`:      `select $1, ?, "co'l"`,
		`select E'a\'b' /* secret */ from t -- secret`: `select E? from t`,
		`insert into t values ('cut of`:                `insert into t values (?`,
		`select $$ cut of`:                             `select ?`,
	} {
		if got := withoutValues(sql); got != want {
			t.Errorf("%s\n got %s\nwant %s", sql, got, want)
		}
	}
}

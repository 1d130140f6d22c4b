package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// one sends everything to a single database.
func one(url string) func(context.Context, string, int64) (string, error) {
	return func(context.Context, string, int64) (string, error) { return url, nil }
}

func seed(t *testing.T) uint64 {
	s := rand.Uint64()
	t.Logf("seed %d", s)
	return s
}

// running runs a workload until the returned func is called, which then waits for its end.
func running(t *testing.T, w *Workload) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		if cancel(); stopped.CompareAndSwap(false, true) {
			if err := <-ended; err != nil {
				t.Errorf("workload: %v", err)
			}
		}
	}
	t.Cleanup(stop)
	return stop
}

func committed(t *testing.T, w *Workload, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := w.Committed(ctx, n); err != nil {
		t.Fatal(err)
	}
}

var smallFill = FillSizes{Users: 5, Orders: 6, Items: 3, Documents: 5, Events: 4, Countries: 20}

func TestTheLedgerAgreesWithTheDatabaseAfterConcurrentWriters(t *testing.T) {
	t.Parallel()
	for _, omni := range [][]string{nil, {"tenants"}} {
		t.Run(fmt.Sprint("omnisharded also ", omni), func(t *testing.T) {
			t.Parallel()
			db := Shared(t).Database(t)
			db.Exec(t, WorkloadSchema)
			w := NewWorkload(WorkloadOptions{Target: one(db.URL()), Omni: omni, Seed: seed(t), Lookups: true, KeyChanges: true, NewTenants: true})
			if err := w.Fill(t.Context(), smallFill); err != nil {
				t.Fatal(err)
			}
			if err := w.Ledger().Check(t.Context(), db.Conn(t)); err != nil {
				t.Fatalf("after Fill: %v", err)
			}
			stop := running(t, w)
			committed(t, w, 1500)
			stop()
			if err := w.Ledger().Check(t.Context(), db.Conn(t)); err != nil {
				t.Error(err)
			}
			s := w.Stats()
			if s.Rollbacks == 0 || s.LongestGap == 0 || s.Unknown+s.Refused+s.Retries != 0 || w.Ledger().Unknown() != 0 {
				t.Errorf("stats %+v", s)
			}
			for _, table := range WorkloadTables() {
				if got := db.Query(t, `select count(*), count(*) filter (where version > 1) from `+table); got[0][0] == "0" || got[0][1] == "0" {
					t.Errorf("%s: rows, updated rows %v", table, got)
				}
			}
		})
	}
}

func TestTheLedgerFindsWhatIsWrongWithARow(t *testing.T) {
	t.Parallel()
	db, other := Shared(t).Database(t), Shared(t).Database(t)
	db.Exec(t, WorkloadSchema)
	other.Exec(t, WorkloadSchema)
	w := NewWorkload(WorkloadOptions{Target: one(db.URL()), Tenants: 3})
	if err := w.Fill(t.Context(), smallFill); err != nil {
		t.Fatal(err)
	}
	other.Exec(t, `insert into countries select 'A' || chr(65 + g), 'x', 1 from generate_series(0, 19) g`)
	conn := db.Conn(t)
	if err := w.Ledger().Check(t.Context(), conn, other.Conn(t)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, harm, elsewhere, want string }{
		{"a lost row", `delete from documents where id = 1000`, ``, "documents 1000: acknowledged version 1 on 1 shard(s), found []"},
		{"a lost update", `update documents set version = 0 where id = 2000`, ``, "documents 2000: acknowledged version 1"},
		{"a row on two shards", ``, `insert into users values (1, 1000, '', null, 1)`, "users 1000: acknowledged version 1 on 1 shard(s), found [version 1 version 1]"},
		{"a row nobody wrote", ``, `insert into orders values (77, 1, '', now(), null, 1)`, "orders 77: a row nobody wrote"},
		{"a reference row on one shard only", ``, `delete from countries where code = 'AB'`, "countries AB: acknowledged version 1 on 2 shard(s)"},
	} {
		if test.harm != "" {
			db.Exec(t, test.harm)
		}
		if test.elsewhere != "" {
			other.Exec(t, test.elsewhere)
		}
		err := w.Ledger().Check(t.Context(), conn, other.Conn(t))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestCommitsWhoseAnswerIsCutAreOfUnknownOutcomeAndNothingElseIs(t *testing.T) {
	t.Parallel()
	db := Shared(t).Database(t)
	db.Exec(t, WorkloadSchema)
	r := NewRelay(t, db.Cluster.Addr())
	w := NewWorkload(WorkloadOptions{Target: one(db.Via(r).URL()), Seed: seed(t), Lookups: true, KeyChanges: true})
	if err := w.Fill(t.Context(), smallFill); err != nil {
		t.Fatal(err)
	}
	stop := running(t, w)
	for range 6 {
		committed(t, w, 50)
		<-r.Add(Rule{Direction: ToClient, Type: "CommandComplete", Contains: "COMMIT", Where: Before, Do: Reset})
		committed(t, w, 50)
		<-r.Add(Rule{Direction: ToServer, Type: "Query", Contains: "commit", Where: Inside, Do: Reset})
		committed(t, w, 50)
		r.Cut()
	}
	stop()
	if err := w.Ledger().Check(t.Context(), db.Conn(t)); err != nil {
		t.Error(err)
	}
	s := w.Stats()
	t.Logf("%+v", s)
	if s.Unknown < 12 || w.Ledger().Unknown() == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestWritersWaitOutARefusalAndAKilledServerAndMeasureTheGap(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	db := c.Database(t)
	db.Exec(t, WorkloadSchema)
	w := NewWorkload(WorkloadOptions{Target: one(db.URL()), Seed: seed(t), Rate: 400, Lookups: true})
	if err := w.Fill(t.Context(), smallFill); err != nil {
		t.Fatal(err)
	}
	stop := running(t, w)
	committed(t, w, 200)
	const refusal = 200 * time.Millisecond
	w.ResetGaps()
	db.Exec(t, `alter system set default_transaction_read_only = on`)
	db.Exec(t, `select pg_reload_conf()`)
	time.Sleep(refusal) // the length of the freeze that is measured
	conn := db.Conn(t)
	for _, sql := range []string{`set default_transaction_read_only = off`, `alter system reset all`, `select pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	committed(t, w, 200)
	if s := w.Stats(); s.Refused == 0 || s.LongestGap < refusal/2 || time.Since(s.LongestGapAt) > 20*time.Second {
		t.Errorf("after a refusal of %s: %+v", refusal, s)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	committed(t, w, 200)
	stop()
	if err := w.Ledger().Check(t.Context(), db.Conn(t)); err != nil {
		t.Error(err)
	}
	if s := w.Stats(); s.Retries == 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestWritersFollowALayoutFromOneShardToTwo(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	source := c.Database(t)
	shards := []*DB{c.Database(t), c.Database(t)}
	for _, db := range append(shards, source) {
		db.Exec(t, WorkloadSchema)
	}
	var frozen, switched atomic.Bool
	errFrozen := errors.New("frozen")
	w := NewWorkload(WorkloadOptions{
		Seed: seed(t), Lookups: true, KeyChanges: true, NewTenants: true, Omni: []string{"tenants"},
		Target: func(_ context.Context, _ string, tenant int64) (string, error) {
			switch {
			case switched.Load():
				return shards[RootTenant(tenant)%2].URL(), nil
			case frozen.Load():
				return "", errFrozen
			}
			return source.URL(), nil
		},
		All: func(context.Context) ([]string, error) {
			switch {
			case switched.Load():
				return []string{shards[0].URL(), shards[1].URL()}, nil
			case frozen.Load():
				return nil, errFrozen
			}
			return []string{source.URL()}, nil
		},
	})
	if err := w.Fill(t.Context(), smallFill); err != nil {
		t.Fatal(err)
	}
	stop := running(t, w)
	committed(t, w, 300)
	frozen.Store(true)
	awaitIdle(t, source)
	copyByHand(t, source, shards)
	switched.Store(true)
	committed(t, w, 600)
	stop()
	if err := w.Ledger().Check(t.Context(), shards[0].Conn(t), shards[1].Conn(t)); err != nil {
		t.Error(err)
	}
}

// awaitIdle waits until no writer has a transaction open, twice in a row.
func awaitIdle(t *testing.T, db *DB) {
	const busy = `select count(*) from pg_stat_activity where datname = current_database() and application_name like 'pgtest writer%' and state <> 'idle'`
	for idle := 0; idle < 2; time.Sleep(100 * time.Millisecond) {
		if idle++; db.Query(t, busy)[0][0] != "0" {
			idle = 0
		}
	}
}

// copyByHand moves every row where the test's layout wants it.
func copyByHand(t *testing.T, source *DB, shards []*DB) {
	const root = `case when tenant_id % 3 = 0 then tenant_id - 1 else tenant_id end`
	belongs := map[string]string{
		"tenants": `true`, "countries": `true`,
		"users": `(` + root + `) % 2 = $1`, "documents": `(` + root + `) % 2 = $1`,
		"orders": `(` + root + `) % 2 = $1`, "order_items": `order_id in (select id from orders where (` + root + `) % 2 = $1)`,
		"events": `(select case when n % 3 = 0 then n - 1 else n end from (select ('x' || right(tenant_id::text, 12))::bit(48)::bigint n) x) % 2 = $1`,
	}
	for i, shard := range shards {
		from, to := source.Conn(t), shard.Conn(t)
		for _, table := range WorkloadTables() {
			condition := strings.ReplaceAll(belongs[table], "$1", fmt.Sprint(i))
			copyTable(t, from, to, table, condition)
		}
	}
}

func copyTable(t *testing.T, from, to *pgx.Conn, table, condition string) {
	t.Helper()
	rows, err := queryText(t.Context(), from, `select t::text from `+table+` t where `+condition)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		if _, err := to.Exec(t.Context(), `insert into `+table+` select ($1::text::`+table+`).*`, row[0]); err != nil {
			t.Fatal(err)
		}
	}
}

package move_test

import (
	"context"
	"errors"
	"fmt"
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
	if err := m.Complete(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.conns(r.sources)[0].Exec(t.Context(), insert); err != nil {
		t.Errorf("the released source refused a write: %v", err)
	}
}

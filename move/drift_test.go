package move_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

// stopsAtDDL runs a worker that is held before the cutover, changes the source once it streams, and returns the error
// that ends it.
func stopsAtDDL(t *testing.T, r *rig, ddl string) error {
	t.Helper()
	m := r.move()
	defer m.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ready := func(ctx context.Context) (bool, error) {
		r.sources[0].Exec(t, ddl)
		return false, nil
	}
	return m.Migrate(ctx, move.MigrateOptions{Ready: ready})
}

func TestDDLThatSendsNothingToTheStreamStopsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, ddl, says string }{
		"a column added":       {"", `alter table notes add seen boolean`, `column "seen" (boolean) was added`},
		"a type changed":       {"", `alter table notes alter note type int using length(note)`, `column "note" was text and is integer`},
		"a table made":         {"", `create table later (tenant_id bigint primary key)`, "table public.later was made"},
		"a partition made":     {"partition", `create table notes_2 partition of notes for values from (100) to (200)`, "public.notes_2 was made or attached; hint: set [stream] on_ddl = \"exec\""},
		"a partition detached": {"partition", `alter table notes detach partition notes_1`, "public.notes_1 was dropped, detached or made again"},
		"a partition dropped":  {"partition", `drop table notes_1`, "public.notes_1 was dropped, detached or made again"},
	} {
		t.Run(name, func(t *testing.T) {
			pgtest.OneIn(t, 2)
			r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
			if c.before == "" {
				r.sources[0].Exec(t, `create table notes (tenant_id bigint primary key, note text)`)
			} else {
				r.sources[0].Exec(t, `create table notes (tenant_id bigint primary key, note text) partition by range (tenant_id);
					create table notes_1 partition of notes for values from (1) to (100)`)
			}
			r.config.Destination.Spec.Tables = append(r.config.Destination.Spec.Tables, noteRule)
			var stopped *move.DDLError
			if err := stopsAtDDL(t, r, c.ddl); !errors.As(err, &stopped) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want a DDLError that says %s", err, c.says)
			}
		})
	}
}

func TestAMoveGoesOnOnceEveryShardHasTheSameColumn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 100, KeyChanges: true})
	stop := r.write()
	var stopped *move.DDLError
	var seen *sink.SchemaError // where a row of the new shape came first
	if err := stopsAtDDL(t, r, `alter table users add nickname text`); !errors.As(err, &stopped) && !errors.As(err, &seen) {
		t.Fatalf("got %v, want an error that names the change", err)
	}
	m := r.move()
	if err := m.Migrate(t.Context(), move.MigrateOptions{}); !errors.As(err, &stopped) {
		t.Fatalf("went on before the shards had the column: %v", err)
	}
	for _, db := range r.shards {
		db.Exec(t, `alter table users add nickname text`)
	}
	r.sources[0].Exec(t, `update users set nickname = 'n' || id, version = version where tenant_id = 3`)
	if err := m.Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.load.Committed(t.Context(), 50); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

// A change between the check and the freeze is found in it, and the cutover is undone for it, as for anything else.
func TestDDLBetweenTheCheckAndTheFreezeUndoesTheCutover(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 2, pgtest.WorkloadOptions{})
	m := r.move()
	m.BeforeStep(func(step string) {
		if step == "freeze" {
			r.sources[0].Exec(t, `alter table users add nickname text`)
		}
	})
	var undone *move.UndoneError
	var ddl *move.DDLError
	err := m.Migrate(t.Context(), move.MigrateOptions{})
	if !errors.As(err, &undone) || undone.Step != "finish" || !errors.As(err, &ddl) || !strings.Contains(err.Error(), `add column "nickname" text`) {
		t.Errorf("it ended with %v", err)
	}
	r.sources[0].Exec(t, `update users set nickname = 'n'`) // it serves
}

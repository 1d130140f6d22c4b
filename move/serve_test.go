package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// A service switches there, back and there again when it is told, and ends when it is told.
func TestAServiceEndsNothingThatItIsNotToldTo(t *testing.T) {
	t.Parallel()
	for name, reverse := range map[string]bool{"the old layout follows": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "id", `create table tenants (id bigint primary key, name text); insert into tenants select g, 'old' from generate_series(1, 200) g`)
			s.config.Reverse = reverse
			k := &kept{rig: s.rig, Move: s.move(), done: make(chan error, 1)}
			go func() { k.done <- k.Migrate(t.Context(), move.MigrateOptions{Serve: true, Ready: unasked}) }()
			cutOver := func() {
				t.Helper()
				awaitStatus(t, "safe to cut over", k.Snapshot, func(st move.Status) bool { return st.State == move.StateStreaming && st.SafeToCutOver.OK })
				if _, err := k.Cutover(t.Context(), move.CutoverOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			cutOver()
			if reverse {
				k.following()
				s.shards[1].Exec(t, `update tenants set name = 'new'`)
				if _, err := k.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.sources[0].Exec(t, `insert into tenants values (1000, 'after the rollback')`)
				cutOver()
				k.following()
			}
			awaitStatus(t, "no way back", k.Snapshot, func(st move.Status) bool { return st.Reverse != nil && (reverse || st.Reverse.Lost != "") })
			const told = `select version from pgreshard.serving` // to the source last
			for began := time.Now(); fmt.Sprint(s.sources[0].Query(t, told)) != "[[2]]" && time.Since(began) < time.Minute; k.alive() {
			}
			var refused *move.NotReadyError
			if !reverse {
				if _, err := k.Rollback(t.Context()); !errors.As(err, &refused) || !strings.Contains(err.Error(), "does not follow ([cutover] reverse)") {
					t.Errorf("a rollback: %v", err)
				}
			}
			k.alive()
			s.serving(2)
			s.sameRows(pgtest.RowsOptions{}, "tenants")
			if err := k.CompleteNow(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if err := <-k.done; err != nil {
				t.Error(err)
			}
			s.nothingLeft(true, s.sources...)
		})
	}
}

// unasked is a Ready of a worker that switches only when it is asked to.
func unasked(ctx context.Context) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

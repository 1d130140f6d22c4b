package move_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// Of three sources one cannot be sealed, because somebody holds a lock there as who goes around the fence does. The others are
// sealed by then; their seals are lifted, and all serve.
func TestASourceThatCannotBeSealedLiftsTheSealsOfTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 60})
	r.config.Attempts = 1
	stop := r.write()
	m := r.hold(t.Context(), r.move())
	holder := r.sources[1].Conn(t)
	var sealed sync.WaitGroup
	m.BeforeStep(func(step string) {
		if step != "seal" {
			return
		}
		if _, err := holder.Exec(t.Context(), `begin; lock table orders in row exclusive mode`); err != nil {
			t.Error(err)
		}
		for _, n := range []int{0, 2} {
			conn := r.sources[n].Conn(t)
			sealed.Go(func() {
				for end, is := time.Now().Add(time.Minute), false; !is; {
					if err := conn.QueryRow(t.Context(), `select last_value = 9223372036854775807 from pgreshard.fence_until`).Scan(&is); err != nil || time.Now().After(end) {
						t.Errorf("source %d is never sealed: %v", n, err)
						return
					}
				}
			})
		}
	})
	err := m.goOn()
	var undone *move.UndoneError
	if !errors.As(err, &undone) || undone.Step != "seal" {
		t.Fatalf("the cutover ended with %v", err)
	}
	sealed.Wait()
	for n, db := range r.sources {
		if _, err := db.Conn(t).Exec(t.Context(), touch); err != nil {
			t.Errorf("source %d after the undo: %v", n, err)
		}
	}
	if state := r.shards[0].Query(t, `select state, (select version from pgreshard.serving) from pgreshard.move`); fmt.Sprint(state) != "[[streaming 1]]" {
		t.Errorf("the move's record: %v", state)
	}
	if _, err := holder.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	r.completes(stop)
}

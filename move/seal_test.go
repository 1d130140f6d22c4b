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

// Of three sources one cannot be frozen, or sealed, because somebody holds a lock there as who goes around the fence does. The
// others are by then, since all are at once; it is lifted, and all serve.
func TestASourceThatCannotBeSealedLiftsTheSealsOfTheOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, 2, pgtest.WorkloadOptions{Writers: 4, Rate: 60})
	r.config.Attempts = 1
	stop := r.write()
	m := r.hold(t.Context(), r.move())
	for _, c := range []struct {
		step   string
		locked int
		others []int
		flag   string // of the others
	}{
		{"freeze", 0, []int{1, 2}, `last_value > 0`},
		{"seal", 1, []int{0, 2}, `last_value = 9223372036854775807`},
	} {
		holder := r.sources[c.locked].Conn(t)
		var others sync.WaitGroup
		m.BeforeStep(func(step string) {
			if step != c.step {
				return
			}
			if _, err := holder.Exec(t.Context(), `begin; lock table orders in row exclusive mode`); err != nil {
				t.Error(err)
			}
			for _, n := range c.others {
				conn := r.sources[n].Conn(t)
				others.Go(func() {
					for end, is := time.Now().Add(time.Minute), false; !is; {
						if err := conn.QueryRow(t.Context(), `select `+c.flag+` from pgreshard.fence_until`).Scan(&is); err != nil || time.Now().After(end) {
							t.Errorf("%s: source %d is never closed: %v", c.step, n, err)
							return
						}
					}
				})
			}
		})
		_, err := m.Cutover(t.Context(), move.CutoverOptions{})
		var behind *move.NotReadyError
		for errors.As(err, &behind) {
			_, err = m.Cutover(t.Context(), move.CutoverOptions{})
		}
		var undone *move.UndoneError
		if !errors.As(err, &undone) || undone.Step != c.step {
			t.Fatalf("the cutover ended with %v", err)
		}
		others.Wait()
		for n, db := range r.sources {
			if _, err := db.Conn(t).Exec(t.Context(), touch); err != nil {
				t.Errorf("%s: source %d after the undo: %v", c.step, n, err)
			}
		}
		if state := r.shards[0].Query(t, `select state, (select version from pgreshard.serving) from pgreshard.move`); fmt.Sprint(state) != "[[streaming 1]]" {
			t.Errorf("%s: the move's record: %v", c.step, state)
		}
		if _, err := holder.Exec(t.Context(), `rollback`); err != nil {
			t.Fatal(err)
		}
	}
	m.BeforeStep(nil)
	if err := m.goOn(); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
		t.Error(err)
	}
	r.placed()
}

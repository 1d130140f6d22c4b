package move_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/move"
	"pgreshard/pg"
)

// A transaction that has written to a moved table and does not end, and one that has written to another: the first is ended
// in the freeze, because that is asked for, the second only with all other sessions of the layout that was left.
func TestWhoIsInTheWayIsEndedWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "id", failoverSchema+`; create table other (id int)`)
	s.config.Exclude = []string{"public.other"}
	s.config.OnBlockers, s.config.EndOldSessions = move.BlockersTerminate, true
	s.config.LockTimeout, s.config.Attempts = 300*time.Millisecond, 1
	inTheWay, beside, reader := s.sources[0].Conn(t), s.sources[0].Conn(t), s.sources[0].Conn(t)
	h := s.hold(t.Context(), s.move())
	runOn(t, inTheWay, `begin; update items set note = 'a value' where id = 1`)
	runOn(t, beside, `begin; insert into other values (1)`)
	runOn(t, reader, `select count(*) from items`)
	open := ""
	h.BeforeStep(func(step string) {
		if step == "drain" {
			open = s.sources[0].Query(t, fmt.Sprintf(`select count(*) from pg_stat_activity where pid in (%d, %d, %d)`,
				inTheWay.PgConn().PID(), beside.PgConn().PID(), reader.PgConn().PID()))[0][0]
		}
	})
	report, err := h.Cutover(t.Context(), move.CutoverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var ended []string
	for _, step := range report.Steps {
		ended = append(ended, step.Ended...)
	}
	if len(ended) != 1 || !strings.Contains(ended[0], " of postgres, ") || !strings.Contains(ended[0], "update items set note = ? where id = ?") {
		t.Errorf("ended: %q", ended)
	}
	if open != "2" {
		t.Errorf("of three sessions %s were open after the freeze, want the two that were not in its way", open)
	}
	if err := <-h.done; err != nil {
		t.Fatal(err)
	}
	for name, conn := range map[string]*pgx.Conn{"in the way": inTheWay, "beside": beside, "reader": reader} {
		_, err := conn.Exec(t.Context(), `select 1`)
		if pg.Code(err) != "57P01" && !conn.IsClosed() {
			t.Errorf("the session %s is open after the switch: %v", name, err)
		}
	}
	s.same("items", "id")
}

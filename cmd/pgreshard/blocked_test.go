package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// A transaction that stays open ends the attempts with 4, the source having served all along, and is named with how to
// end it; the same command then comes to its end.
func TestACutoverThatOpenTransactionsRefuseEndsWithFourAndNamesThem(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, pgtest.WorkloadOptions{}, "[cutover]\nreverse = false\nattempts = 2\nlock_timeout = \"200ms\"\n")
	held := r.start("migrate", "--hold")
	r.awaitSafe(held)
	held.kill()
	if code, out, said := r.run("status"); code != exitDone || !strings.HasSuffix(out, "\nsafe to cut over: no, because no worker runs\n") || !strings.Contains(out, "no worker runs: pgreshard migrate goes on") {
		t.Errorf("status of a killed worker: %d\n%s", code, said)
	}
	if code, out, said := r.run("plan"); code != exitDone || !strings.Contains(out, "is made already and is streaming") {
		t.Errorf("plan of a move that is made: %d\n%s", code, said)
	}
	conn := r.sources[0].Conn(t)
	open, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), `insert into countries values ('!!', 'nowhere', 1)`); err != nil {
		t.Fatal(err)
	}
	for old := false; !old; pause(t.Context()) {
		old = r.sources[0].Query(t, `select clock_timestamp() - xact_start > $1::interval from pg_stat_activity where pid = $2`, (1100 * time.Millisecond).String(), conn.PgConn().PID())[0][0] == "t"
	}
	code, _, said := r.run("migrate", "--yes")
	pid := conn.PgConn().PID()
	for _, part := range []string{"the cutover is put off, trying again", fmt.Sprintf("pid %d of postgres", pid), fmt.Sprintf("hint: the source serves writes; end what is in the way, then run the same command again: on source shard 0: select pg_terminate_backend(%d)", pid)} {
		if !strings.Contains(said, part) {
			t.Errorf("migrate does not say %q", part)
		}
	}
	if code != exitUndone {
		t.Errorf("migrate ended with %d:\n%s", code, said)
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, _, said := r.run("migrate", "--yes"); code != exitDone {
		t.Errorf("after it ended migrate ended with %d:\n%s", code, said)
	}
	r.compare()
	if code, out, said := r.run("complete"); code != exitDone || !strings.Contains(out, "and the fence on the retired source") {
		t.Errorf("complete: %d\n%s", code, said)
	}
	if code, out, said := r.run("complete", "--release-source"); code != exitDone || strings.Contains(out, "the fence") {
		t.Errorf("complete --release-source: %d\n%s", code, said)
	}
	if code, out, said := r.run("complete"); code != exitDone || strings.Contains(out, "the fence") {
		t.Errorf("complete again: %d\n%s", code, said)
	}
}

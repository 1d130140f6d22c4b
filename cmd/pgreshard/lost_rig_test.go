package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

func newLost(t *testing.T, m, n int, hooks string) *lost {
	t.Helper()
	cluster := pgtest.Shared(t)
	var sources, shards, via []*pgtest.DB
	link := pgtest.NewRelay(t, cluster.Addr())
	for i := range m + n {
		db := cluster.Database(t)
		if via = append(via, db.Via(link)); i < m {
			sources = append(sources, db)
		} else {
			shards = append(shards, db)
		}
	}
	more := fmt.Sprintf("[cutover]\nmax_freeze = %q\n[copy]\nworkers = 2\n", lostFreeze.String()) + loggingHooks(hooks) + accountsRule
	if m > 1 {
		more += sourceRules
	}
	r := rigOn(t, sources, shards, pgtest.WorkloadOptions{Writers: 6, Rate: 120, Lookups: true, KeyChanges: true, NewTenants: true}, "")
	for _, db := range sources {
		if m > 1 {
			db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
		}
	}
	writeConfig(t, r.file, r.name, r.listen, urls(via[:m]), urls(via[m:]), workloadRules+more)
	return &lost{rig: r, link: link, home: newGates(t, shards[0]), serving: 1}
}

// up makes sure that a worker runs.
func (l *lost) up() {
	if l.worker == nil || l.worker.over() {
		l.worker = l.rig.start("migrate", "--hold")
	}
}

// ask asks for the switch, and again where it ran beyond max_freeze, until something has come about.
func (l *lost) ask(t *testing.T, come func() bool) (asked *process) {
	t.Helper()
	asked = l.rig.start(l.command)
	for end := time.Now().Add(patience); !come(); pause(t.Context()) {
		if l.worker.over() || time.Now().After(end) {
			t.Fatalf("it does not come about:\n%s\n%s", asked.both.String(), l.worker.both.String())
		}
		if !asked.over() || asked.code == exitDone {
			continue
		}
		t.Logf("asked again, because %s", asked.both.String())
		if strings.Contains(asked.both.String(), " was undone at step ") {
			l.undone++
		}
		l.ready(l.worker)
		asked = l.rig.start(l.command)
	}
	return asked
}

// lose has the worker come to a point, loses it there, and looks what writers see. Before the switch the next worker finds
// the layout serving that did; behind it that is left to the next loss.
func (l *lost) lose(t *testing.T, point string, leaves leaves, way string) {
	t.Helper()
	gate := strings.NewReplacer("state switching", "state "+l.switching, "state switched", "state "+l.switched).Replace(point)
	before := l.serving == l.from
	if before {
		l.up()
		l.ready(l.worker)
	} else if l.state() == move.StateRolledBack { // the next worker says again that it switched, but not that it rolled back
		t.Skip("the server of the worker that was lost before has committed: none comes here any more")
	}
	var probes []*pgtest.Probe
	for _, db := range l.sides[0] {
		probes = append(probes, pgtest.NewProbe(t, db, touch, 10*time.Millisecond))
	}
	l.home.shut(t, gate)
	var asked *process
	if before {
		asked = l.ask(t, func() bool { return l.reached(t, gate) })
	} else {
		l.up()
		l.home.await(t, l.worker, gate)
	}
	// What the worker before was lost in, its server may have committed.
	if got, want := l.state(), l.stateAt(point); got != want && (before || got != l.switched) {
		t.Errorf("the move is %s, want %s", got, want)
	}
	l.vanish(t, way)
	l.home.open(t, gate)
	if point == "commit of serving" {
		for l.shards[0].Query(t, `select version from pgreshard.serving`)[0][0] != fmt.Sprint(l.to) {
			pause(t.Context())
		}
	}
	if leaves != mayBeOpen {
		l.refuses(t, l.sides[1])
	}
	for i, p := range probes {
		l.watch(t, fmt.Sprintf("%s of layout %d", l.sides[0][i].Name, l.from), p, leaves)
	}
	l.comeBack(t, way, asked)
	if leaves >= switched {
		l.serving = l.to
	} else {
		if paused(point) {
			l.undone++
		}
		l.goesOn(t)
	}
	for i, p := range probes {
		longest, since, others := pgtest.Refused(p.End())
		t.Logf("%s refused writes for %v", l.sides[0][i].Name, longest.Round(time.Millisecond))
		if since.IsZero() != (leaves < switched) || len(others) > 0 {
			t.Errorf("%s refuses writes since %v; errors %v", l.sides[0][i].Name, since, others)
		}
		if leaves <= frozen && longest > lostFreeze+lostGrace || leaves == frozen && longest == 0 {
			t.Errorf("%s refused writes for %v by its own clock, max_freeze is %v", l.sides[0][i].Name, longest, lostFreeze)
		}
	}
}

// loseSealing loses the worker when of the layout that serves the first server is sealed and the second is not, because somebody
// holds a lock there as who goes around the fence does. The first waits for the next worker, the second serves by itself.
func (l *lost) loseSealing(t *testing.T) {
	t.Helper()
	l.up()
	l.ready(l.worker)
	var probes []*pgtest.Probe
	for _, db := range l.sides[0][:2] {
		probes = append(probes, pgtest.NewProbe(t, db, touch, 10*time.Millisecond))
	}
	l.home.shut(t, "seal before")
	l.ask(t, func() bool { return l.reached(t, "seal before") })
	holder := l.sides[0][1].Conn(t)
	if _, err := holder.Exec(t.Context(), `begin; lock table orders in row exclusive mode`); err != nil {
		t.Fatal(err)
	}
	l.home.open(t, "seal before")
	for l.sides[0][0].Query(t, `select last_value = 9223372036854775807 from pgreshard.fence_until`)[0][0] != "t" {
		pause(t.Context())
	}
	l.worker.kill()
	l.undone++
	l.refuses(t, l.sides[1])
	l.watch(t, "the one that is not sealed", probes[1], frozen)
	l.watch(t, "the one that is sealed", probes[0], sealed)
	if _, err := holder.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t)
	for _, p := range probes {
		if _, since, others := pgtest.Refused(p.End()); !since.IsZero() || len(others) > 0 {
			t.Errorf("writes are refused since %v; errors %v", since, others)
		}
	}
}

// goesOn starts the next worker, which finds the layout serving that did.
func (l *lost) goesOn(t *testing.T) {
	t.Helper()
	l.up()
	l.ready(l.worker)
	l.layoutServes(l.from)
	if err := l.load.Committed(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	l.anew()
}

// reached says whether the worker waits at a gate of the home.
func (l *lost) reached(t *testing.T, gate string) bool {
	t.Helper()
	waits, err := l.home.reached(t.Context(), gate)
	if err != nil {
		t.Fatal(err)
	}
	return waits
}

// stateAt is the move's state when its worker comes to a point.
func (l *lost) stateAt(point string) string {
	if !paused(point) || point == "state switching" {
		return l.steady
	}
	return l.switching
}

// paused says that the hook before the freeze has run.
func paused(point string) bool {
	return !strings.HasPrefix(point, "arm ") && !strings.HasPrefix(point, "check ")
}

// vanish loses the worker.
func (l *lost) vanish(t *testing.T, way string) {
	t.Helper()
	switch way {
	case "killed":
		l.worker.kill()
	case "suspended":
		l.worker.signal(t, syscall.SIGSTOP)
		l.link.Stall(pgtest.ToServer)
		l.link.Stall(pgtest.ToClient)
	case "cut off":
		l.link.Refuse(true)
		l.link.Cut()
	}
}

// comeBack ends what vanish has left. A worker that was cut off at its switch has ended by itself, and says what it does not know,
// as does the command that asked.
func (l *lost) comeBack(t *testing.T, way string, asked *process) {
	t.Helper()
	switch way {
	case "suspended":
		l.worker.kill()
		l.link.Resume(pgtest.ToServer)
		l.link.Resume(pgtest.ToClient)
	case "cut off":
		for _, p := range []*process{l.worker, asked} {
			if code, said := p.wait(t); code != exitUnknown || !strings.Contains(said, "whether the switch happened is unknown") || !strings.Contains(said, "hint: `pgreshard status` reads both sides") {
				t.Errorf("it ended with %d:\n%s", code, said)
			}
		}
		l.link.Refuse(false)
		if code, out, said := l.run("status"); code != exitDone || !strings.Contains(out, fmt.Sprintf("; layout %d serves\n", l.to)) {
			t.Errorf("status: %d\n%s", code, said)
		}
	}
}

// watch waits until a server has shown what a loss leaves to its writers.
func (l *lost) watch(t *testing.T, name string, p *pgtest.Probe, leaves leaves) {
	t.Helper()
	for began, end := len(p.Attempts()), time.Now().Add(patience); ; pause(t.Context()) {
		all := p.Attempts()
		_, since, _ := pgtest.Refused(all)
		if len(all) > began && (leaves <= frozen && since.IsZero() || leaves > frozen && !since.IsZero() && all[len(all)-1].At.Sub(since) > lostFreeze+lostGrace) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s refuses writes since %v", name, since)
		}
	}
}

// touch changes nothing; it is a Probe's.
const touch = `update tenants set name = name where id = 1 returning clock_timestamp()`

// refuses fails where a database takes a write.
func (l *lost) refuses(t *testing.T, dbs []*pgtest.DB) {
	t.Helper()
	for _, db := range dbs {
		if _, err := db.Conn(t).Exec(t.Context(), touch); pg.Code(err) != "25006" {
			t.Errorf("a write to %s ended with %v", db.Name, err)
		}
	}
}

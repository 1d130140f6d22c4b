package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// machine is a server behind a relay that is the worker's link to it.
type machine struct {
	*pgtest.Cluster
	link  *pgtest.Relay
	small bool // its disk can be filled
}

// machineSet is for the source, the home and another shard.
type machineSet [3]machine

// can says whether a cell's fault can be made.
func (set *machineSet) can(c cell) bool { return c.fault != "disk full" || set[c.server()].small }

// machines are as many sets as tests run at once, each made when it is first taken. Faults strike them, so a set has one
// move at a time, which often waits, as for a server that starts. They end with the process.
var machines struct {
	once sync.Once
	free chan *machineSet // nil: not made yet
}

// take waits for a set, which is given back with the test.
func take(t *testing.T) *machineSet {
	t.Helper()
	machines.once.Do(func() {
		machines.free = make(chan *machineSet, flag.Lookup("test.parallel").Value.(flag.Getter).Get().(int))
		for range cap(machines.free) {
			machines.free <- nil
		}
	})
	set := <-machines.free
	t.Cleanup(func() { machines.free <- set })
	if set == nil {
		made := &machineSet{}
		for i := range made {
			var err error
			if made[i], err = newMachine(); err != nil {
				t.Fatal(err)
			}
		}
		set = made
	}
	return set
}

// newMachine is on a disk of its own where that can be had.
func newMachine() (m machine, err error) {
	o := pgtest.Options{Room: 640 << 20, Settings: map[string]string{"max_wal_size": "64MB", "max_connections": "100", "superuser_reserved_connections": "0"}}
	if m.Cluster, err = pgtest.New(context.Background(), o); err != nil {
		o.Room = 0
		m.Cluster, err = pgtest.New(context.Background(), o)
	}
	if err == nil {
		m.small = o.Room != 0
		m.link, err = pgtest.ListenRelay(m.Addr())
	}
	return m, err
}

// closeMachines closes their links, once no test has one.
func closeMachines() {
	for range cap(machines.free) {
		if set := <-machines.free; set != nil {
			for _, m := range set {
				m.link.Close()
			}
		}
	}
}

// struck is a move on a set of machines, with what strikes it.
type struck struct {
	*rig
	test   *testing.T
	set    *machineSet
	gates  [3]*gates // of a shard on each machine; nil: there is none
	worker *process  // nil before the first
	since  time.Time // when it was started
	last   cell
	next   cell            // whose gate was shut last
	ended  int             // workers, since the last strike
	mend   func()          // ends the last fault
	held   <-chan struct{} // closed when a confirmation is held; nil: none is to be
	args   []string        // the worker's
	asks   map[*pgtest.DB]*pgtest.Session
	resume func() // lets go what was stalled to hold the worker; nil: a gate holds it
}

// ask asks a database what is asked for again and again.
func (s *struck) ask(db *pgtest.DB, sql string, args ...any) [][]string {
	s.test.Helper()
	if s.asks[db] == nil {
		s.asks[db] = db.Session(s.test)
	}
	return s.asks[db].Query(s.test, sql, args...)
}

// patience is how long anything is waited for.
const patience = 3 * time.Minute

// strikeAll takes a move from one cell to the next, each fault mended before the next, and to its end.
func strikeAll(t *testing.T, cells []cell) {
	t.Helper()
	set := take(t)
	if cells = slices.DeleteFunc(cells, func(c cell) bool { return !set.can(c) }); len(cells) == 0 {
		t.Skip("a disk that can be filled needs Linux and root")
	}
	s := newStruck(t, set, []int{0}, []int{1, 2}, pgtest.WorkloadOptions{Writers: 4, Rate: 25, Lookups: true, KeyChanges: true, NewTenants: true}, "[cutover]\nreverse = false\n[copy]\nworkers = 2\n")
	s.args = []string{"migrate", "--yes"}
	s.shut(cells)
	stop := s.write()
	for i, c := range cells {
		began := time.Now()
		s.reach(c)
		if c.gated() != 0 { // the worker waits there
			s.shut(cells[i+1:])
		}
		s.strike(c)
		t.Logf("%.1f s: %s, %s", time.Since(began).Seconds(), c, s.fate())
	}
	s.finish(stop)
}

// finish takes the move to its end. Then both sides are compared by plain SQL, the application goes on to the shards, and
// they are compared with its ledger.
func (s *struck) finish(stop func()) {
	s.test.Helper()
	s.mend()
	s.mend = func() {}
	s.await("the end of the move", func() bool { p := s.running(); return p.over() && p.code == exitDone })
	s.compare()
	s.placed()
	s.app.Stay(false)
	if err := s.load.Committed(s.test.Context(), 100); err != nil {
		s.test.Fatal(err)
	}
	stop()
	if err := s.load.Ledger().Check(s.test.Context(), s.conns(s.shards)...); err != nil {
		s.test.Error(err)
	}
	s.placed()
	s.test.Logf("%+v", s.load.Stats())
}

// newStruck makes the databases of a move on the machines given, and an application that stays on the sources. The first
// source is on machine 0 and the home on machine 1.
func newStruck(t *testing.T, set *machineSet, sources, shards []int, options pgtest.WorkloadOptions, more string) *struck {
	t.Helper()
	s := &struck{test: t, set: set, mend: func() {}, asks: map[*pgtest.DB]*pgtest.Session{}, last: cell{outcome: either}}
	var dbs, via []*pgtest.DB
	for n, on := range slices.Concat(sources, shards) {
		dbs = append(dbs, set[on].Database(t))
		via = append(via, dbs[n].Via(set[on].link))
		if n >= len(sources) {
			g := newGates(t, dbs[n])
			if s.gates[on] == nil {
				s.gates[on] = g
			}
		}
	}
	m := len(sources)
	s.rig = rigOn(t, dbs[:m], dbs[m:], options, "")
	writeConfig(t, s.file, s.name, s.listen, urls(via[:m]), urls(via[m:]), workloadRules+more)
	s.app.Stay(true)
	t.Cleanup(func() { // the machines are used again
		s.mend()
		for _, m := range set {
			m.link.Clear()
			m.link.Refuse(false)
			m.link.Resume(pgtest.ToServer)
			m.link.Resume(pgtest.ToClient)
		}
	})
	return s
}

// shut shuts the first gate of cells that are to come.
func (s *struck) shut(cells []cell) {
	s.test.Helper()
	for _, c := range cells {
		if c.gate() != "" {
			s.gates[c.gated()].shut(s.test, c.gate())
			s.next = c
			return
		}
	}
}

func (c cell) gate() string { return points[c.point].gate }

// server is the number of the machine that a cell's victim is, or leads to; -1 for the worker.
func (c cell) server() int {
	return slices.IndexFunc([][]victim{{source, sourceLink}, {home, homeLink}, {shard, shardLink}}, func(v []victim) bool { return slices.Contains(v, c.victim) })
}

// gated is the machine that has a cell's gate: up to the cutover one that the fault leaves alone, so that it strikes
// what is done meanwhile; the steps of the cutover are written on the home. 0: it has none.
func (c cell) gated() int {
	switch {
	case c.gate() == "":
		return 0
	case c.point < cutover && c.server() != 2:
		return 2
	}
	return 1
}

// await waits for something, and fails with what the worker said and what it is doing.
func (s *struck) await(what string, done func() bool) {
	s.test.Helper()
	for end := time.Now().Add(patience); !done(); pause(s.test.Context()) {
		if time.Now().After(end) {
			_ = s.worker.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines; it may have ended
			<-s.worker.ended
			s.test.Fatalf("%s did not come:\n%s", what, s.worker.both.String())
		}
	}
}

// over says whether a process has ended.
func (p *process) over() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// running is the worker, started anew where it has ended. It may end once after each strike, and says what to do.
func (s *struck) running() *process {
	s.test.Helper()
	if s.worker != nil && (!s.worker.over() || s.worker.code == exitDone) {
		return s.worker
	}
	if p := s.worker; p != nil {
		s.ended++
		said := p.both.String()
		if s.ended > 1 || p.code >= 0 && !strings.Contains(said, "hint: ") || p.code == exitUsage || p.code == exitCheck ||
			s.last.point < cutover && (s.last.outcome == heals || s.last.outcome == passes) {
			s.test.Fatalf("the worker ended with %d, number %d after %s:\n%s", p.code, s.ended, s.last, said)
		}
	}
	s.worker, s.since = s.start(s.args...), time.Now()
	return s.worker
}

// reach waits until the move is at a cell's point.
func (s *struck) reach(c cell) {
	s.test.Helper()
	if c.gate() == "" {
		s.await(points[c.point].name, func() bool { s.running(); return s.unconfirmed() })
		return
	}
	gate := s.gates[c.gated()]
	waits := func() bool {
		s.running()
		waits, err := gate.reached(s.test.Context(), c.gate())
		if err != nil {
			s.test.Fatal(err)
		}
		return waits
	}
	s.await(points[c.point].name, waits)
	if points[c.point].name != "stream" {
		return
	}
	asked := 0
	s.await("the other shard's commit", func() bool {
		// Where both shards must have executed a change before either may pass it, the other waits too: hold a later one.
		if asked++; asked%50 == 0 {
			gate.open(s.test, c.gate())
			s.await("a commit", func() bool { return !waits() })
			gate.shut(s.test, c.gate())
			s.await("the next commit", waits)
		}
		return s.before(s.checkpoint(c.gated()-1), s.checkpoint(2-c.gated()))
	})
}

// release lets the worker go on from a cell's point.
func (s *struck) release(c cell) {
	s.test.Helper()
	switch {
	case s.resume != nil:
		s.resume()
	case c.gate() != "":
		s.gates[c.gated()].open(s.test, c.gate())
	}
}

// unconfirmed holds what the worker confirms and says whether every shard has committed more than the slot knows.
func (s *struck) unconfirmed() bool {
	s.test.Helper()
	if s.held == nil {
		s.held = s.set[0].link.Add(pgtest.Rule{Direction: pgtest.ToServer, Type: "StandbyStatusUpdate", Do: pgtest.Stall, Every: true})
	}
	select {
	case <-s.held:
	default:
		return false
	}
	slot := s.ask(s.sources[0], `select confirmed_flush_lsn from pg_replication_slots where database = current_database()`)[0][0]
	return s.before(slot, s.checkpoint(0)) && s.before(slot, s.checkpoint(1))
}

// confirm lets go what unconfirmed holds.
func (s *struck) confirm() {
	if s.held != nil {
		s.set[0].link.Clear()
		s.set[0].link.Resume(pgtest.ToServer)
		s.held = nil
	}
}

// checkpoint is how far a shard is.
func (s *struck) checkpoint(shard int) string {
	s.test.Helper()
	return s.ask(s.shards[shard], `select lsn from pgreshard.checkpoint`)[0][0]
}

// before compares positions.
func (s *struck) before(a, b string) bool {
	s.test.Helper()
	return s.ask(s.sources[0], `select $1::text::pg_lsn < $2::text::pg_lsn`, a, b)[0][0] == "t"
}

// fate is what became of the worker.
func (s *struck) fate() string {
	if s.worker.over() {
		return fmt.Sprintf("it ended with %d", s.worker.code)
	}
	return "it goes on"
}

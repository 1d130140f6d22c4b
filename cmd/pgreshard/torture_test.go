package main

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pgreshard/pgtest"
)

// TORTURE_ROUNDS is how many rounds are run; TORTURE_SEED runs one again: the same databases, options and faults, while
// how the writers interleave is the machine's.
func TestWhateverFailsAtRandomNothingIsLost(t *testing.T) {
	t.Parallel()
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("TORTURE_ROUNDS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range pgtest.Seeds(t, "TORTURE_SEED", rounds) {
		t.Run(fmt.Sprintf("TORTURE_SEED=%d", seed), func(t *testing.T) {
			t.Parallel()
			torture(t, seed)
		})
	}
}

// Each round has as many transactions on the sources, and faults that interrupted the worker, at least.
const (
	tortureCommits = 5000
	tortureFaults  = 3
)

// torture is one round: a random move of databases anywhere on the machines, faults at random messages of its copy and its
// stream and at random steps of its cutover, all while writers write.
func torture(t *testing.T, seed uint64) {
	t.Helper()
	set, began := take(t), time.Now()
	r := rand.New(rand.NewPCG(seed, 1))
	sources, shards := []int{0}, []int{1}
	for range r.IntN(3) {
		sources = append(sources, r.IntN(3))
	}
	for range r.IntN(4) {
		shards = append(shards, r.IntN(3))
	}
	more := fmt.Sprintf("[cutover]\nreverse = false\nmax_freeze = \"20s\"\n[copy]\nworkers = %d\nformat = %q\n[stream]\nbatch_bytes = %q\n",
		1+r.IntN(3), []string{"auto", "text"}[r.IntN(2)], []string{"4MB", "4kB"}[r.IntN(2)])
	if len(sources) > 1 {
		more += sourceRules
	}
	s := newStruck(t, set, sources, shards, pgtest.WorkloadOptions{Seed: seed, Rate: 350, Tireless: true, Lookups: true, KeyChanges: true, NewTenants: true}, more)
	if len(sources) > 1 || r.IntN(5) > 0 { // several sources need it, and one is followed faster
		for _, db := range s.sources {
			db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
		}
	}
	stop := s.write()
	enough, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // when there are enough to compare, few go on
		if s.load.Committed(enough, tortureCommits) == nil {
			s.load.Pace(50)
		}
	}()

	// The copy and the stream, held before the cutover.
	s.args = []string{"migrate", "--hold"}
	struck := map[string]int{}
	for range 1 + r.IntN(2) {
		s.strikeAt(r, "copy", struck)
	}
	s.await("the stream", func() bool { s.running(); return s.streams() })
	for range 2 + r.IntN(2) {
		s.strikeAt(r, "stream", struck)
	}
	s.await("the writers' transactions", func() bool { s.running(); return s.load.Stats().Commits >= tortureCommits })
	stop()
	commits := s.load.Stats().Commits
	s.level()
	if r.IntN(2) == 0 {
		s.worker.kill()
	} else if err := s.worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-s.worker.ended

	// The cutover.
	stop = s.write()
	s.args = []string{"migrate", "--yes"}
	s.ended, s.last = 0, cell{outcome: either}
	steps := r.Perm(len(points) - cutover - 1)[:r.IntN(3)]
	slices.Sort(steps) // a step that the worker is behind may never come again
	var cells []cell
	for _, step := range steps {
		cells = append(cells, s.draw(r, cutover+1+step))
	}
	s.shut(cells)
	for i, c := range cells {
		s.reach(c)
		s.shut(cells[i+1:])
		s.strike(c)
		struck["cutover"]++
		t.Logf("%s, %s", c, s.fate())
	}
	s.finish(stop)
	faults := struck["copy"] + struck["stream"] + struck["cutover"]
	t.Logf("%d to %d, %d commits on the sources, %d faults (%v), %.1f s", len(sources), len(shards), commits, faults, struck, time.Since(began).Seconds())
	if struck["copy"] == 0 || struck["stream"] == 0 || faults < tortureFaults {
		t.Errorf("too few faults have interrupted anything: %v", struck)
	}
}

// sourceRules place rows on several sources as the application does.
const sourceRules = `
[[sharded_tables]]
database = "app"
name = "order_items"
column = "order_id"
lookup_query = "SELECT tenant_id FROM orders WHERE id = $1"
[[sharded_tables]]
database = "app"
column = "tenant_id"
[[omnisharded_tables]]
database = "app"
tables = ["tenants", "countries"]
`

// draw is a cell at a point: a fault that interrupts, of a victim that the move has.
func (s *struck) draw(r *rand.Rand, point int) cell {
	for {
		row := matrix[r.IntN(len(matrix))]
		c := cell{point, row.fault, row.victims[r.IntN(len(row.victims))], row.outcome}
		if c.outcome != passes && s.set.can(c) && whyNot(c.fault, c.victim, points[point].name) == "" && (c.server() != 2 || s.gates[2] != nil) {
			return c
		}
	}
}

// strikeAt stalls a connection of the copy or the stream at a random message of its rows, strikes there, and counts it.
func (s *struck) strikeAt(r *rand.Rand, phase string, struck map[string]int) {
	s.test.Helper()
	rules := map[string][2]pgtest.Rule{
		"copy":   {{Direction: pgtest.ToClient, Type: "CopyData", Nth: 1 + r.IntN(3000)}, {Direction: pgtest.ToServer, Type: "CopyData", Nth: 1 + r.IntN(20)}},
		"stream": {{Direction: pgtest.ToClient, Type: "XLogData", Nth: 1 + r.IntN(600)}, {Direction: pgtest.ToServer, Type: "Bind", Nth: 1 + r.IntN(100)}},
	}
	on := r.IntN(2) // the first source, or the home
	rule, link := rules[phase][on], s.set[on].link
	rule.Do = pgtest.Stall
	c := s.draw(r, map[string]int{"copy": 0, "stream": 2}[phase])
	if phase == "stream" { // and not on the way to it: there the worker ends at what it heals from later
		s.await("the streams", func() bool { s.running(); return s.carried() })
	}
	at := link.Add(rule)
	reached := func() bool {
		select {
		case <-at:
			return true
		default:
			return false
		}
	}
	s.await(phase, func() bool { s.running(); return reached() || phase == "copy" && s.streams() })
	if !reached() || phase == "copy" && s.streams() { // the copy has ended before
		link.Clear()
		link.Resume(rule.Direction)
		return
	}
	s.resume = func() { link.Resume(rule.Direction) }
	s.strike(c)
	s.resume = nil
	struck[phase]++
	s.test.Logf("%s, %s", c, s.fate())
}

// carried says whether this worker reads every source's stream.
func (s *struck) carried() bool {
	s.test.Helper()
	for _, db := range s.sources {
		if len(s.ask(db, `select 1 from pg_replication_slots r join pg_stat_activity a on a.pid = r.active_pid
			where r.database = current_database() and a.backend_start > $1`, s.since)) == 0 {
			return false
		}
	}
	return true
}

// level waits until the shards have what the sources have now.
func (s *struck) level() {
	s.test.Helper()
	for n, db := range s.sources {
		end := s.ask(db, `select pg_current_wal_insert_lsn()`)[0][0]
		for _, shard := range s.shards {
			s.await("the end of what was written", func() bool {
				s.running()
				return len(s.ask(shard, `select 1 from pgreshard.checkpoint where source = $1 and lsn >= $2::text::pg_lsn`, n, end)) == 1
			})
		}
	}
}

// streams says whether the copy and the index build are behind the move.
func (s *struck) streams() bool {
	s.test.Helper()
	return s.ask(s.shards[0], `select to_regclass('pgreshard.move') is not null`)[0][0] == "t" &&
		len(s.ask(s.shards[0], `select 1 from pgreshard.move where state = 'streaming'`)) == 1
}

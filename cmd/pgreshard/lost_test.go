package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// losses are where in a switch the worker is lost: each step's entry in the journal, the state before and after it, and the
// switch's own write, before its COMMIT and in it. What a point leaves is what writers see while no worker is there.
var losses = []struct {
	point  string // a gate's; of a state by its name in stage
	leaves leaves
}{
	{"arm before", asBefore}, {"arm after", asBefore}, {"check before", asBefore}, {"check after", asBefore},
	{"state switching", asBefore}, {"freeze before", asBefore},
	{"freeze after", frozen}, {"drain before", frozen}, {"drain after", frozen}, {"finish before", frozen}, {"finish after", frozen},
	{"verify before", frozen}, {"verify after", frozen}, {"seal before", frozen},
	{sealOfOne, sealed}, {"seal after", sealed}, {"switch before", sealed}, {"serving", sealed},
	{"commit of serving", switched}, {"open before", switched}, {"state switched", mayBeOpen},
}

// sealOfOne is when of several servers one is sealed and another is not.
const sealOfOne = "seal of one"

type leaves int

const (
	asBefore  leaves = iota // the layout that served takes writes
	frozen                  // and again when max_freeze is over
	sealed                  // neither layout does before the next worker has decided: for the one that served
	switched                // or for the other one
	mayBeOpen               // the other layout may
)

// ways are how the worker is lost. A suspended one is still there, and so are its sessions, but nothing passes between them.
// One that is cut off goes on without its servers: where the answer to its switch is lost, it cannot know what became of it.
var ways = []string{"killed", "suspended", "cut off"}

// stage is a switch one way.
type stage struct {
	command                     string // that asks for it
	steady, switching, switched string // states
	from, to                    int    // layouts
	sides                       [2][]*pgtest.DB
	ready                       func(*process) // waits until it may be asked for
	over                        func()         // waits until what follows the switch has begun
}

// lost is a move whose worker is lost again and again, with its link to the servers.
type lost struct {
	*rig
	stage
	link    *pgtest.Relay
	home    *gates
	worker  *process
	serving int // the layout
	undone  int // switches that ran beyond max_freeze, or lost their worker when the hook had run
	stop    func()
}

const (
	lostFreeze = 5 * time.Second // max_freeze, enough for a machine that is busy with other tests
	lostGrace  = time.Second     // beyond it
)

// The worker is lost at every step of a cutover, and of the rollback that follows: exactly one layout serves in the end, before
// the switch the one that did and from it on the other; until then writers that were refused write again within max_freeze and a
// second by their server's clock, though nobody starts a worker, except between seal and switch.
func TestWhereverTheWorkerIsLostOneLayoutServes(t *testing.T) {
	t.Parallel()
	for _, shape := range [][2]int{{1, 2}, {2, 3}} {
		t.Run(fmt.Sprintf("%d to %d", shape[0], shape[1]), func(t *testing.T) {
			t.Parallel()
			pgtest.OneIn(t, 2)
			hooks := filepath.Join(t.TempDir(), "hooks")
			l := newLost(t, shape[0], shape[1], hooks)
			total := l.watchTotals(t)
			l.stop = l.write()
			source := l.loseAll(t, total)

			// The switch back is made, and the worker lost a last time.
			l.worker.kill()
			source.open(t, "serving")
			p := l.start("migrate", "--hold")
			if code, said := p.wait(t); code != exitDone {
				t.Fatalf("the last run ended with %d:\n%s", code, said)
			}
			l.layoutServes(1)
			if err := l.load.Committed(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
			l.stop()
			total.check(t, 1, 2, 1)
			t.Logf("%+v", l.load.Stats())
			if err := l.load.Ledger().Check(t.Context(), l.conns(l.sources)...); err != nil {
				t.Error(err)
			}
			ran, err := os.ReadFile(hooks)
			// A worker that is lost before it has noted that the hook went well leaves it to the next.
			if err != nil || !regexp.MustCompile(`^((before_freeze\nafter_undo\n)*before_freeze\n(after_switch\n)+){2}$`).Match(ran) || strings.Count(string(ran), "after_undo") != l.undone {
				t.Errorf("%d switches were undone, hooks ran as %q, %v", l.undone, ran, err)
			}
			if code, out, said := l.run("status"); code != exitDone || !strings.Contains(out, "rolled_back: layout 1 serves again") {
				t.Errorf("status: %d\n%s", code, said)
			}
			if code, _, said := l.run("cancel", "--drop-data"); code != exitDone {
				t.Errorf("cancel: %d\n%s", code, said)
			}
			untouched(t, slices.Concat(l.sources, l.shards)...)
		})
	}
}

// loseAll goes through the losses that are drawn, of the cutover and of the rollback, and makes each. It ends when the first
// source is about to be told that its layout serves again; that gate is shut.
func (l *lost) loseAll(t *testing.T, total *totals) (source *gates) {
	t.Helper()
	l.stage = stage{"cutover", move.StateStreaming, move.StateCuttingOver, move.StateSwitched, 1, 2, [2][]*pgtest.DB{l.sources, l.shards}, l.safe,
		func() { l.following(l.worker) }}
	l.loseSome(t)
	total.follows(t, 2)
	source = newGates(t, l.sources[0]) // only now, or the schema's copy would have them
	source.shut(t, "serving")
	l.stage = stage{"rollback", move.StateSwitched, move.StateRollingBack, move.StateRolledBack, 2, 1, [2][]*pgtest.DB{l.shards, l.sources}, l.following,
		func() { source.await(t, l.worker, "serving") }}
	l.loseSome(t)
	total.follows(t, 1)
	return source
}

// safe waits until the worker says that it is safe to cut over.
func (r *rig) safe(p *process) {
	r.t.Helper()
	r.until(p, func(s move.Status) bool { return s.SafeToCutOver.OK })
}

// loseSome goes through the losses of one stage that are drawn, and has the switch made in the end.
func (l *lost) loseSome(t *testing.T) {
	t.Helper()
	once := ways[rand.IntN(len(ways))]
	for _, c := range losses {
		for _, way := range ways {
			if !l.possible(way, c.point, once) {
				continue
			}
			ok := t.Run(fmt.Sprintf("%s at %s of the %s", way, c.point, l.command), func(t *testing.T) {
				pgtest.OneIn(t, 32)
				if c.point == sealOfOne {
					l.loseSealing(t)
				} else {
					l.lose(t, c.point, c.leaves, way)
				}
			})
			if !ok {
				t.FailNow()
			}
		}
	}
	l.up()
	if l.serving == l.from {
		l.ready(l.worker)
		l.ask(t, func() bool { return l.state() == l.switched })
		l.serving = l.to
	}
	l.over()
	l.anew()
}

// possible says whether the worker can be lost in this way at this point; where a switch is made with it, which is once, in the way given.
func (l *lost) possible(way, point, once string) bool {
	switch point {
	case "commit of serving":
		return way == once
	case sealOfOne:
		return way == "killed" && len(l.sides[0]) > 1
	}
	return way != "cut off" // a worker that is cut off undoes the switch, or tries again: `make faults`
}

// anew begins the application again: writers that write for long slow down.
func (l *lost) anew() {
	l.stop()
	l.stop = l.write()
}

package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// victim is what a fault strikes. The home is the destination's first shard, which also holds the move's state; links
// are between the worker and a server.
type victim string

const (
	worker     victim = "worker"
	source     victim = "source"
	home       victim = "home"
	shard      victim = "shard"
	sourceLink victim = "link to the source"
	homeLink   victim = "link to the home"
	shardLink  victim = "link to a shard"
)

var (
	processes = []victim{worker}
	servers   = []victim{source, home, shard}
	links     = []victim{sourceLink, homeLink, shardLink}
)

// points are where in a move a fault strikes: the worker is held at a gate at that moment. In the copy the rows of a chunk
// and its mark are written on one shard and not committed; in the stream one shard has committed and the other is about
// to; at the confirmation every shard has committed and the slot is not confirmed. From drain to switch the source refuses
// writes, and from open on the shards' layout serves.
var points = []struct{ name, gate string }{
	{"copy", "chunk"},
	{"index build", "made public.orders_tenant"},
	{"stream", "commit of checkpoint"},
	{"confirmation", ""},
	{"freeze", "freeze before"},
	{"drain", "drain before"},
	{"finish", "finish before"},
	{"verify", "verify before"},
	{"seal", "seal before"},
	{"switch", "switch before"},
	{"open", "open before"},
}

// cutover is the first point at which the worker may be in a cutover. There a fault undoes it, or ends the worker, or
// passes: each is right, before the switch and behind it.
const cutover = 3

// outcome is what a fault does to a worker before the cutover.
type outcome int

const (
	heals  outcome = iota // it is interrupted, and goes on by itself
	ends                  // it ends and is started again
	either                // one of these, by what it was doing
	passes                // it does not notice
)

// matrix is every fault that is made. A cell that is not is one of except, with the reason.
var matrix = []struct {
	fault   string
	victims []victim
	outcome outcome
}{
	{"kill -9", processes, ends},
	{"restart", processes, ends},
	{"kill -9", servers, heals},
	{"immediate stop", servers, heals},
	{"restart", servers, heals},
	{"too many connections", servers, heals},
	{"read-only", servers, heals},
	{"read-only by default", servers, passes},
	{"disk full", servers, either}, // rows end it, the log takes the server down
	{"COMMIT refused as a conflict", []victim{home, shard}, heals},
	{"COMMIT refused for good", []victim{home, shard}, ends},
	{"connection reset", links, heals},
	{"cut inside a message", links, heals},
	{"stall", links, passes},
}

// except are the cells that are empty, and why. docs/operations.md has every reason.
var except = []struct {
	faults  []string
	victims []victim
	points  []string // nil: all
	why     string
}{
	{[]string{"immediate stop"}, processes, nil, "a worker has no other sudden end than kill -9"},
	{[]string{"disk full"}, processes, nil, "a worker keeps nothing on disk that a move depends on"},
	{[]string{"read-only", "read-only by default", "too many connections", "COMMIT refused as a conflict", "COMMIT refused for good"}, processes, nil,
		"it is a server that refuses"},
	{[]string{"connection reset", "cut inside a message", "stall"}, append(processes, servers...), nil, "it is a link that breaks; all links of a worker or a server break when it is killed"},
	{[]string{"kill -9", "immediate stop", "restart", "disk full", "read-only", "read-only by default", "too many connections", "COMMIT refused as a conflict",
		"COMMIT refused for good"}, links, nil, "it is an end of the link that fails, not the link"},
	{[]string{"restart"}, []victim{source}, []string{"index build"}, "nothing of the source is used meanwhile"},
	{[]string{"restart", "read-only"}, []victim{source}, []string{"confirmation"}, "a server that stops in order waits for the confirmation"},
	{[]string{"COMMIT refused as a conflict", "COMMIT refused for good"}, []victim{source}, nil,
		"nothing a move commits on a source can be refused so late: its flags are sequences, the rest is messages to the log"},
}

// whyNot is why a cell is empty; "" where it is not.
func whyNot(fault string, v victim, point string) string {
	for _, e := range except {
		if slices.Contains(e.faults, fault) && slices.Contains(e.victims, v) && (e.points == nil || slices.Contains(e.points, point)) {
			return e.why
		}
	}
	return ""
}

func TestEveryCellOfTheFaultMatrixIsMadeOrHasAReason(t *testing.T) {
	made := map[cell]int{}
	faults := map[string]bool{}
	for _, row := range matrix {
		faults[row.fault] = true
		for _, v := range row.victims {
			for _, c := range chainOf(row.fault, v, row.outcome) {
				c.outcome = 0
				made[c]++
			}
		}
	}
	for fault := range faults {
		for _, v := range slices.Concat(processes, servers, links) {
			for n, p := range points {
				if why := whyNot(fault, v, p.name); made[cell{point: n, fault: fault, victim: v}] == 1 != (why == "") {
					t.Errorf("%s of the %s at %s: made %d times, reason %q", fault, v, p.name, made[cell{point: n, fault: fault, victim: v}], why)
				}
			}
		}
	}
	docs, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range except {
		if !strings.Contains(strings.Join(strings.Fields(string(docs)), " "), e.why) {
			t.Errorf("docs/operations.md does not say: %s", e.why)
		}
	}
}

// cell is one fault of one victim at one point.
type cell struct {
	point   int
	fault   string
	victim  victim
	outcome outcome
}

func (c cell) String() string {
	return fmt.Sprintf("%s of the %s at %s", c.fault, c.victim, points[c.point].name)
}

// chainOf are the cells of a row and victim, in the order a move comes to their points.
func chainOf(fault string, v victim, o outcome) (cells []cell) {
	for n, p := range points {
		if whyNot(fault, v, p.name) == "" {
			cells = append(cells, cell{n, fault, v, o})
		}
	}
	return cells
}

// faultsVariable set (by `make faults`) is every cell, one move a row and victim. Without it one move takes a cell drawn
// at each of their points; FAULTS_SEED draws the same again.
const faultsVariable = "PGRESHARD_TEST_FAULTS"

func TestWhateverFailsWhereverNothingIsLost(t *testing.T) {
	t.Parallel()
	moves := map[string][]cell{}
	if os.Getenv(faultsVariable) == "" {
		for _, seed := range pgtest.Seeds(t, "FAULTS_SEED", 1) {
			moves[fmt.Sprintf("FAULTS_SEED=%d", seed)] = drawn(rand.New(rand.NewPCG(seed, 1)))
		}
	} else {
		for _, row := range matrix {
			for _, v := range row.victims {
				moves[fmt.Sprintf("%s of the %s", row.fault, v)] = chainOf(row.fault, v, row.outcome)
			}
		}
	}
	for name, cells := range moves {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			strikeAll(t, cells)
		})
	}
}

// drawn is a cell at each point.
func drawn(r *rand.Rand) (cells []cell) {
	for n := range points {
		var here []cell
		for _, row := range matrix {
			for _, v := range row.victims {
				for _, c := range chainOf(row.fault, v, row.outcome) {
					if c.point == n {
						here = append(here, c)
					}
				}
			}
		}
		cells = append(cells, here[r.IntN(len(here))])
	}
	return cells
}

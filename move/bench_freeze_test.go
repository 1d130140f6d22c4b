package move_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// How often a move is switched and rolled back, and under what.
const (
	freezeCycles  = 10
	freezeWriters = 32
	freezeRate    = 1000 // transactions a second
)

// freezes are the gaps of one shape, in the order they were measured: the longest of any writer between two commits, and
// for how long the worker says that writes were refused.
type freezes struct{ felt, said []time.Duration }

func (f *freezes) add(load *pgtest.Workload, seconds *float64) {
	f.felt = append(f.felt, load.Stats().LongestGap)
	f.said = append(f.said, time.Duration(*seconds*float64(time.Second)))
}

func (f *freezes) String() string {
	of := func(d []time.Duration) string {
		return fmt.Sprintf("%d ms (%d – %d)", median(d).Milliseconds(), slices.Min(d).Milliseconds(), slices.Max(d).Milliseconds())
	}
	return fmt.Sprintf("| %s | %s |", of(f.felt), of(f.said))
}

// benchFreezes switches a move and rolls it back, again and again, under writers of whom half take rows by SELECT … FOR UPDATE
// first, and prints what the switches cost them. BENCH_CYCLES and BENCH_RATE make it smaller.
func benchFreezes(t *testing.T) {
	cycles, rate := freezeNumber(t, "BENCH_CYCLES", freezeCycles), freezeNumber(t, "BENCH_RATE", freezeRate)
	fmt.Println("| move | transactions a second | longest gap of a writer, median (range) | as the worker says |\n|---|---|---|---|")
	for _, shape := range [][2]int{{1, 4}, {2, 3}} {
		t.Run(fmt.Sprintf("%d to %d", shape[0], shape[1]), func(t *testing.T) {
			r := newRig(t, shape[0], shape[1], pgtest.WorkloadOptions{Writers: freezeWriters, Rate: float64(rate), Lookups: true, KeyChanges: true, NewTenants: true, Locks: true})
			for _, db := range r.sources { // as plan advises: then no row has to be searched for
				db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
			}
			r.config.Name, r.config.Reverse = fmt.Sprintf("freeze%d", moveNumber.Add(1)), true
			var forth, back freezes
			var speed float64
			for range cycles {
				speed += r.freezeCycle(&forth, &back) / float64(cycles)
			}
			k := r.keep()
			k.level()
			r.compare()
			if err := k.CompleteNow(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if err := <-k.done; err != nil {
				t.Fatal(err)
			}
			if err := r.load.Ledger().Check(t.Context(), r.conns(r.shards)...); err != nil {
				t.Error(err)
			}
			fmt.Printf("| %d to %d | %.0f %s\n| back | %.0f %s\n", shape[0], shape[1], speed, &forth, speed, &back)
		})
	}
}

// freezeCycle switches and rolls back once; the application is begun anew for each, or its writers tire. It says how many
// transactions a second there were before the switch.
func (r *rig) freezeCycle(forth, back *freezes) (speed float64) {
	r.t.Helper()
	h := r.hold(r.t.Context(), r.move())
	speed = r.freeze(forth, func() (move.CutoverReport, error) { return h.Cutover(r.t.Context(), move.CutoverOptions{}) })
	k := &kept{rig: r, Move: h.Move, done: h.done}
	k.following()
	r.freeze(back, func() (move.CutoverReport, error) { return k.Rollback(r.t.Context()) })
	if err := <-k.done; err != nil {
		r.t.Fatal(err)
	}
	return speed
}

// freeze has the application write, and switches when it may.
func (r *rig) freeze(into *freezes, ask func() (move.CutoverReport, error)) (speed float64) {
	r.t.Helper()
	stop := r.write()
	commit := func() {
		if err := r.load.Committed(r.t.Context(), 500); err != nil {
			r.t.Fatal(err)
		}
	}
	commit() // they have connected
	for {
		began := time.Now()
		commit()
		speed = 500 / time.Since(began).Seconds()
		r.load.ResetGaps()
		report, err := ask()
		var behind *move.NotReadyError
		if errors.As(err, &behind) {
			r.t.Log(err)
			continue
		}
		if err != nil {
			r.t.Fatal(err)
		}
		commit()
		stop()
		into.add(r.load, report.FreezeSeconds)
		return speed
	}
}

func freezeNumber(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number above 0", name, text)
	}
	return n
}

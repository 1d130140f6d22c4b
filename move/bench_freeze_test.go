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

// How often a move is switched and rolled back, and under what; the most that a switch may cost its writers, which a run of this
// size is held to.
const (
	freezeCycles  = 10
	freezeWriters = 32
	freezeRate    = 1000 // transactions a second
	freezeMost    = 500 * time.Millisecond
)

// freezes are the switches of one shape and direction, in the order they were measured: the longest gap of any writer between two
// commits, for how long the worker says that writes were refused, how many transactions a second there were before, and how much log each
// of them wrote on the sources or shards that served, in bytes.
type freezes struct {
	felt, said []time.Duration
	rate, log  []float64
}

func (f *freezes) String() string {
	of := func(d []time.Duration) string {
		return fmt.Sprintf("%d ms (%d – %d)", median(d).Milliseconds(), slices.Min(d).Milliseconds(), slices.Max(d).Milliseconds())
	}
	return fmt.Sprintf("%.0f (%.0f – %.0f) | %.1f kB | %s | %s", middle(f.rate), slices.Min(f.rate), slices.Max(f.rate), middle(f.log)/1000, of(f.felt), of(f.said))
}

func middle(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// benchFreezes switches a move and rolls it back, again and again, under writers of whom half take rows by SELECT … FOR UPDATE
// first, and two that ignore every hint, and prints what the switches cost. BENCH_CYCLES and BENCH_RATE make it smaller; BENCH_WIDE=1 has
// the writers write values of 20 kB, too.
func benchFreezes(t *testing.T) {
	cycles, rate := freezeNumber(t, "BENCH_CYCLES", freezeCycles), freezeNumber(t, "BENCH_RATE", freezeRate)
	fmt.Println("| move | transactions a second, median (range) | log of one | longest gap of a writer | as the worker says |\n|---|---|---|---|---|")
	for _, shape := range [][2]int{{1, 4}, {2, 3}} {
		t.Run(fmt.Sprintf("%d to %d", shape[0], shape[1]), func(t *testing.T) {
			r := freezeRig(t, shape[0], shape[1], float64(rate))
			rogues := r.beRogue()
			stop := r.write()
			var forth, back freezes
			for range cycles {
				r.freezeCycle(&forth, &back, rate)
			}
			k := r.keep()
			stop()
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
			rogues.check(r.shards)
			fmt.Printf("| %d to %d | %s |\n| back | %s |\n", shape[0], shape[1], &forth, &back)
			for way, f := range map[string]*freezes{"forth": &forth, "back": &back} {
				if got := middle(f.rate); got < float64(rate) {
					t.Errorf("%s: the writers did not reach %d transactions a second: %.0f", way, rate, got)
				}
			}
			if felt := median(forth.felt); felt >= freezeMost && cycles >= freezeCycles && rate >= freezeRate {
				t.Errorf("a switch costs its writers %v, more than %v", felt, freezeMost)
			}
		})
	}
}

// freezeRig has a server for each source and each shard, as durable as installed.
func freezeRig(t *testing.T, m, n int, rate float64) *rig {
	t.Helper()
	var dbs []*pgtest.DB
	for range m + n {
		dbs = append(dbs, pgtest.Start(t, pgtest.Options{Durable: true, Settings: benchSettings}).Database(t))
	}
	r := rigOn(t, dbs[:m], dbs[m:], pgtest.WorkloadOptions{Writers: freezeWriters, Rate: rate / 8, Tireless: true, Narrow: os.Getenv("BENCH_WIDE") == "", Lookups: true, KeyChanges: true, NewTenants: true, Locks: true})
	for _, db := range r.sources { // as plan advises: then no row has to be searched for
		db.Exec(t, `alter table orders replica identity full; alter table documents replica identity full`)
	}
	r.config.Name, r.config.Reverse = fmt.Sprintf("freeze%d", moveNumber.Add(1)), true
	return r
}

// freezeCycle switches and rolls back once.
func (r *rig) freezeCycle(forth, back *freezes, rate int) {
	r.t.Helper()
	h := r.hold(r.t.Context(), r.move())
	r.freeze(forth, rate, func() move.SafeToCutOver { return h.Snapshot().SafeToCutOver }, func() (move.CutoverReport, error) {
		return h.Cutover(r.t.Context(), move.CutoverOptions{})
	})
	k := &kept{rig: r, Move: h.Move, done: h.done}
	k.following()
	r.freeze(back, rate, func() move.SafeToCutOver { return k.Snapshot().Reverse.Rollback }, func() (move.CutoverReport, error) { return k.Rollback(r.t.Context()) })
	if err := <-k.done; err != nil {
		r.t.Fatal(err)
	}
}

// freeze has the application write at a rate, of transactions a second, for a second, and asks for a switch. Where the stream has
// not kept up that is done again once it is level. Before and after, few write.
func (r *rig) freeze(into *freezes, rate int, safe func() move.SafeToCutOver, ask func() (move.CutoverReport, error)) {
	r.t.Helper()
	half := func() { // of what it writes in a second
		if err := r.load.Committed(r.t.Context(), rate/2+1); err != nil {
			r.t.Fatal(err)
		}
	}
	ease := func() { r.load.Pace(float64(rate) / 8) }
	defer ease()
	for {
		// Time lost by waiting is not made up for, and one transaction in twelve is rolled back and counts for nothing.
		r.load.Pace(1.25 * float64(rate))
		half()
		began, wrote := time.Now(), r.logged()
		half()
		reached, log := float64(rate/2+1)/time.Since(began).Seconds(), (r.logged()-wrote)/float64(rate/2+1)
		r.load.ResetGaps()
		report, err := ask()
		var behind *move.NotReadyError
		if errors.As(err, &behind) {
			r.t.Logf("%.0f transactions a second: %v", reached, err)
			for ease(); !safe().OK; time.Sleep(10 * time.Millisecond) {
			}
			continue
		}
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.load.EachCommitted(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
		into.felt = append(into.felt, r.load.Stats().LongestGap)
		into.said = append(into.said, time.Duration(*report.FreezeSeconds*float64(time.Second)))
		into.rate, into.log = append(into.rate, reached), append(into.log, log)
		return
	}
}

// logged is how many bytes of log the servers of the layout that serves have written.
func (r *rig) logged() (bytes float64) {
	r.t.Helper()
	dbs := r.sources
	if r.app.Moved() {
		dbs = r.shards
	}
	for _, db := range dbs {
		n, err := strconv.ParseFloat(db.Query(r.t, `select pg_current_wal_insert_lsn() - '0/0'::pg_lsn`)[0][0], 64)
		if err != nil {
			r.t.Fatal(err)
		}
		bytes += n
	}
	return bytes
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

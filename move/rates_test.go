package move

import (
	"fmt"
	"testing"
	"time"

	"pgreshard/copier"
	"pgreshard/pg"
)

func shown(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f", *v)
}

func TestARateIsOfTheLastSecondsAndUnknownBefore(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64, done, left int64) sample {
		return sample{start.Add(time.Duration(seconds * float64(time.Second))), done, left}
	}
	for name, test := range map[string]struct {
		samples        []sample
		perSecond, eta string
	}{
		"nothing":                            {nil, "unknown", "unknown"},
		"one sample":                         {[]sample{at(0, 5, 5)}, "unknown", "unknown"},
		"too short a time":                   {[]sample{at(0, 0, 10), at(1.9, 5, 5)}, "unknown", "unknown"},
		"going on":                           {[]sample{at(0, 0, 100), at(1, 10, 90), at(4, 40, 60)}, "10.0", "6.0"},
		"what is old does not count":         {[]sample{at(0, 0, 2000), at(1, 1000, 1000), at(20, 1010, 990), at(22, 1030, 970)}, "10.0", "97.0"},
		"standing still":                     {[]sample{at(0, 7, 10), at(5, 7, 10)}, "0.0", "unknown"},
		"more comes than is done":            {[]sample{at(0, 0, 10), at(5, 50, 30)}, "10.0", "unknown"},
		"nothing is left":                    {[]sample{at(0, 0, 10), at(5, 50, 0)}, "10.0", "0.0"},
		"work that began again begins again": {[]sample{at(0, 1000, 10), at(5, 0, 10), at(6, 5, 5)}, "unknown", "unknown"},
	} {
		var r rate
		for _, s := range test.samples {
			r.add(s)
		}
		if got := shown(r.perSecond()) + " " + shown(r.eta()); got != test.perSecond+" "+test.eta {
			t.Errorf("%s: %s, want %s %s", name, got, test.perSecond, test.eta)
		}
	}
	if got := (*rate)(nil).eta(); got != nil {
		t.Error("no rate has an end")
	}
}

func TestTheCopyEndsWithItsSlowestSourceAndCountsOnlyWhatThisProcessReads(t *testing.T) {
	t.Parallel()
	var r rates
	start := time.Now()
	progress := func(done, read int64) []copier.TableProgress {
		return []copier.TableProgress{
			{Table: pg.Name{Schema: "public", Table: "a"}, Size: 1000, SizeDone: done, Bytes: read},
			{Table: pg.Name{Schema: "public", Table: "b"}, Size: 500},
		}
	}
	r.copying(start, 0, progress(600, 0)) // an earlier run's chunks
	if r.copyETA(1) != nil {
		t.Error("what an earlier run copied has a rate")
	}
	for second := range 4 {
		at := start.Add(time.Duration(second+1) * time.Second)
		r.copying(at, 0, progress(600+100*int64(second+1), 1))
		if second > 0 {
			r.copying(at, 1, progress(10*int64(second), 1))
		}
	}
	key := func(source int, table string) string {
		return shown(r.tables[tableKey{source, "public." + table}].eta())
	}
	if got := fmt.Sprint(key(0, "a"), " ", key(0, "b"), " ", shown(r.copyETA(1)), " ", shown(r.copyETA(2)), " ", shown(r.copyETA(3))); got != "0.0 unknown 5.0 147.0 unknown" {
		t.Errorf("seconds left of a table, of one that waits, of the source, of both, of three: %s", got)
	}
}

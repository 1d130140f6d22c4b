package forecast

import (
	"math"
	"strings"
	"testing"
	"time"
)

// The arithmetic, on round numbers.
func TestAForecastMultipliesWhatWasMeasured(t *testing.T) {
	in := Input{
		Bytes: 100 << 30, Rows: 400e6, Shards: 4, IndexRows: 800e6,
		Measured: Measured{Bytes: 256 << 20, Rows: 1e6, Seconds: 19.97, Streams: 4, Log: 300 << 20, IndexRows: 2e6, IndexSeconds: 1, IndexLog: 100 << 20, ScanSeconds: 0.1, Changes: 8000, ChangeTime: 0.4},
		Sources: []Source{
			{LogPerSecond: 1 << 20, ChangesPerSecond: 4000, Room: 50 << 30, RoomIs: "its disk cannot be seen"},
			{LogPerSecond: 5 << 20, ChangesPerSecond: 6000, Room: 27 << 30, RoomIs: "it may keep half of the free disk"},
		},
		Longest: 30 * time.Millisecond, Writers: 3, LockWait: 500 * time.Millisecond,
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.005*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	f := Make(in)
	near("copy", f.Copy.Seconds, 7988)                                                                // 400 trials
	near("indexes", f.Indexes.Seconds, 400*1*math.Log2(100e6)/math.Log2(250e3)+2*0.1*400)             // n log n, and two scans
	near("log of source 0", float64(f.Log[0].Bytes), (1<<20)*(f.Copy.Seconds+f.Indexes.Seconds))      //
	near("log of the shards", float64(f.ShardsLog), 400*(300<<20)+400*(100<<20))                      //
	near("source 1 is full in", *f.Log[1].FullSeconds, 27.0*1024/5)                                   // 1 h 32 m
	near("catching up", *f.CatchUp.Seconds, 10000*(f.Copy.Seconds+f.Indexes.Seconds)/(20000.0-10000)) //
	near("freeze", f.Freeze.Seconds, 0.03)
	if len(f.Warnings) != 1 || f.Warnings[0].What != "source 1 fills the 27 GB its slot may keep in 1h32m10s, copy and indexes need 2h24m21s" {
		t.Errorf("%+v", f.Warnings)
	}

	in.Sources[1].ChangesPerSecond, in.Longest = 16001, time.Hour
	f = Make(in)
	if f.CatchUp.Seconds != nil {
		t.Errorf("20,000 changes a second catch up with 20,001: %v", *f.CatchUp.Seconds)
	}
	near("a freeze waits no longer than lock_timeout", f.Freeze.Seconds, 0.5)
	var warned []string
	for _, w := range f.Warnings {
		warned = append(warned, w.What)
	}
	all := strings.Join(warned, "\n")
	if len(warned) != 3 || !strings.Contains(all, "the stream will not catch up: 20001 rows a second are changed, the shards change 20000") ||
		!strings.Contains(all, "is open for 1h0m0s already") {
		t.Errorf("%q", warned)
	}

	if f := Make(Input{Sources: []Source{{Room: 1}}}); f.Copy.Seconds != 0 || f.Indexes.Seconds != 0 || *f.CatchUp.Seconds != 0 || len(f.Warnings) != 0 {
		t.Errorf("of nothing: %+v", f)
	}
}

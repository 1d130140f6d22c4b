package forecast

import (
	"fmt"
	"math"
	"time"
)

// Input is what a forecast is made of.
type Input struct {
	Bytes  int64 // of heap and TOAST to copy, over all sources
	Rows   int64 // of them, 0 where no server has an estimate
	Shards int
	// IndexRows is how many rows all indexes beside the keys' will have together.
	IndexRows int64
	Measured  Measured
	Sources   []Source
	Longest   time.Duration // of the transactions seen writing on the sources
	Writers   int           // those seen
	LockWait  time.Duration // the longest that a freeze waits for one, [cutover] lock_timeout
}

// Source is what was seen of one source while the plan was made.
type Source struct {
	LogPerSecond     float64 // bytes
	ChangesPerSecond float64 // rows inserted, updated and deleted in the database
	Room             int64   // bytes a slot may keep
	RoomIs           string  // what sets that
}

// Forecast is what is foretold, each part with what it rests on.
type Forecast struct {
	Measured  Measured   `json:"measured"`
	Copy      Span       `json:"copy"`
	Indexes   Span       `json:"indexes"`          // and the vacuum behind them
	Log       []Kept     `json:"log"`              // by source
	ShardsLog int64      `json:"shards_log_bytes"` // what all write, the vacuum's left out
	CatchUp   CatchUp    `json:"catch_up"`
	Freeze    Span       `json:"freeze"` // how much of it is the waiting for writers in flight
	Warnings  []Foretold `json:"warnings"`
}

// Span is a time and why.
type Span struct {
	Seconds float64 `json:"seconds"`
	Basis   string  `json:"basis"`
}

// Kept is the log that a source's slot keeps until the stream begins.
type Kept struct {
	Bytes       int64    `json:"bytes"`
	PerSecond   float64  `json:"bytes_per_second"`
	Room        int64    `json:"room_bytes"`
	FullSeconds *float64 `json:"full_in_seconds"` // until all of it is used, null where nothing is written
	Basis       string   `json:"basis"`
}

// CatchUp is the stream behind copy and indexes.
type CatchUp struct {
	Seconds *float64 `json:"seconds"` // null: it does not catch up
	Changes float64  `json:"changes_per_second"`
	Applied float64  `json:"applied_per_second"`
	Basis   string   `json:"basis"`
}

// Foretold is what will go wrong, and what helps.
type Foretold struct {
	What string `json:"what"`
	Hint string `json:"hint"`
}

// tight is the part of the room from which on it is named.
const tight = 0.5

// Make foretells from what was measured and seen.
func Make(in Input) *Forecast {
	m := in.Measured
	f := &Forecast{Measured: m, Log: []Kept{}, Warnings: []Foretold{}}
	if m.Bytes > 0 {
		f.Copy.Seconds = m.Seconds * float64(in.Bytes) / float64(m.Bytes)
		f.ShardsLog = int64(float64(m.Log) * float64(in.Bytes) / float64(m.Bytes))
	}
	if m.IndexRows > 0 {
		f.ShardsLog += int64(float64(m.IndexLog) * float64(in.IndexRows) / float64(m.IndexRows))
	}
	f.Copy.Basis = fmt.Sprintf("%s of %s were copied in %.2f s by %d sessions and taken back", size(m.Bytes), size(in.Bytes), m.Seconds, m.Streams)
	scan := 0.0
	if m.Rows > 0 {
		scan = 2 * m.ScanSeconds * float64(in.Rows) / float64(m.Rows) // it is read, and written again
	}
	f.Indexes.Seconds = scan + m.IndexSeconds*sorting(in, m)
	f.Indexes.Basis = fmt.Sprintf("%d rows were put into indexes in %.2f s, %d will be; vacuum as two scans", m.IndexRows, m.IndexSeconds, in.IndexRows)
	until := f.Copy.Seconds + f.Indexes.Seconds
	for n, s := range in.Sources {
		f.keep(n, s, until)
		f.CatchUp.Changes += s.ChangesPerSecond
	}
	f.catchUp(m, until)
	f.Freeze.Seconds = min(in.Longest, in.LockWait).Seconds()
	f.Freeze.Basis = fmt.Sprintf("of %d transactions seen writing the oldest was %s old, lock_timeout is %s; cutover --rehearse measures the steps behind it",
		in.Writers, in.Longest.Round(time.Millisecond), in.LockWait)
	if in.Longest > in.LockWait {
		f.warn("[cutover] on_blockers, or end it before the cutover",
			"a transaction that writes is open for %s already, longer than a freeze waits for it (lock_timeout %s)", in.Longest.Round(time.Second), in.LockWait)
	}
	return f
}

// sorting is how many times the work of the trial's index builds all will take: rows that are sorted, n log n.
func sorting(in Input, m Measured) float64 {
	if m.IndexRows == 0 || m.Rows == 0 {
		return 0
	}
	deep := func(rows float64) float64 { return math.Log2(max(rows, 2)) }
	times := float64(in.IndexRows) / float64(m.IndexRows)
	return max(times*deep(float64(in.Rows)/float64(max(in.Shards, 1)))/deep(float64(m.Rows)/float64(max(m.Streams, 1))), 0)
}

func (f *Forecast) keep(n int, s Source, until float64) {
	k := Kept{Bytes: int64(s.LogPerSecond * until), PerSecond: s.LogPerSecond, Room: s.Room,
		Basis: fmt.Sprintf("it writes %s a second now; %s", size(int64(s.LogPerSecond)), s.RoomIs)}
	if s.LogPerSecond > 0 && s.Room > 0 {
		full := float64(s.Room) / s.LogPerSecond
		k.FullSeconds = &full
		if float64(k.Bytes) > tight*float64(s.Room) {
			f.warn("write less meanwhile, give [copy] workers or the shards more, or raise [stream] wal_budget and max_slot_wal_keep_size where the disk has room",
				"source %d fills the %s its slot may keep in %s, copy and indexes need %s", n, size(s.Room), span(full), span(until))
		}
	}
	f.Log = append(f.Log, k)
}

func (f *Forecast) catchUp(m Measured, until float64) {
	c := &f.CatchUp
	if m.ChangeTime > 0 {
		c.Applied = float64(m.Changes) / m.ChangeTime
	}
	c.Basis = fmt.Sprintf("%.0f rows a second are changed now; %d rows were changed by their keys in %.2f s", c.Changes, m.Changes, m.ChangeTime)
	switch {
	case c.Changes == 0:
		c.Seconds = new(float64)
	case c.Applied > c.Changes:
		seconds := c.Changes * until / (c.Applied - c.Changes)
		c.Seconds = &seconds
	case m.Changes > 0:
		f.warn("write less, or give the shards faster disks", "the stream will not catch up: %.0f rows a second are changed, the shards change %.0f", c.Changes, c.Applied)
	}
}

func (f *Forecast) warn(hint, what string, args ...any) {
	f.Warnings = append(f.Warnings, Foretold{What: fmt.Sprintf(what, args...), Hint: hint})
}

// span is a time in words.
func span(seconds float64) string {
	if seconds < 10 {
		return fmt.Sprintf("%.1f s", seconds)
	}
	if seconds > 365*24*3600 {
		return "more than a year"
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// size is a number of bytes in words.
func size(bytes int64) string {
	value, units := float64(bytes), []string{"B", "kB", "MB", "GB", "TB"}
	for len(units) > 1 && value >= 1024 {
		value, units = value/1024, units[1:]
	}
	return fmt.Sprintf("%.4g %s", value, units[0])
}

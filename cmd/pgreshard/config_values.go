package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"pgreshard/move"
)

// byteSize is a number of bytes, written as PostgreSQL writes sizes: "64MB", units of 1024. A bare number is bytes.
type byteSize int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{{"TB", 1 << 40}, {"GB", 1 << 30}, {"MB", 1 << 20}, {"kB", 1 << 10}, {"KB", 1 << 10}, {"B", 1}, {"", 1}}

// UnmarshalText reads a size; an empty text is zero, for settings whose default is worked out later.
func (s *byteSize) UnmarshalText(text []byte) error {
	t := strings.TrimSpace(string(text))
	if t == "" {
		*s = 0
		return nil
	}
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(t, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > (1<<62)/u.bytes {
			break
		}
		*s = byteSize(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size (hint: write it like 64MB; units are B, kB, MB, GB and TB)", t)
}

// String is the size in the largest unit that keeps it whole, in the form UnmarshalText reads.
func (s byteSize) String() string {
	for _, u := range sizeUnits {
		if u.suffix != "KB" && s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return "0"
}

// duration is a length of time, written "5s", "500ms" or "1m30s".
type duration time.Duration

// UnmarshalText reads a duration.
func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration (hint: write it like 5s, 500ms or 2m)", text)
	}
	*d = duration(v)
	return nil
}

// window is the part of a day in which migrate may cut over by itself. The zero window is always open.
type window struct {
	from, to time.Duration // since midnight; to below from goes past midnight
	zone     *time.Location
}

// parseWindow reads "02:00-04:00 Europe/Berlin"; an empty text is the window that is always open.
func parseWindow(text string) (window, error) {
	if text == "" {
		return window{}, nil
	}
	hours, zone, ok := strings.Cut(text, " ")
	start, end, dash := strings.Cut(hours, "-")
	if !ok || !dash {
		return window{}, fmt.Errorf("%q is not a window", text)
	}
	from, err := time.Parse("15:04", start)
	if err != nil {
		return window{}, fmt.Errorf("%q is not a time of day", start)
	}
	to, err := time.Parse("15:04", end)
	if err != nil {
		return window{}, fmt.Errorf("%q is not a time of day", end)
	}
	if from.Equal(to) {
		return window{}, fmt.Errorf("%q starts and ends at the same time", hours)
	}
	location, err := time.LoadLocation(strings.TrimSpace(zone))
	if err != nil || strings.TrimSpace(zone) == "Local" {
		return window{}, fmt.Errorf("%q is not a time zone", zone)
	}
	midnight := time.Date(from.Year(), from.Month(), from.Day(), 0, 0, 0, 0, time.UTC)
	return window{from: from.Sub(midnight), to: to.Sub(midnight), zone: location}, nil
}

// open says whether t lies in the window; its start does, its end does not.
func (w window) open(t time.Time) bool {
	if w.zone == nil {
		return true
	}
	local := t.In(w.zone)
	since := time.Duration(local.Hour())*time.Hour + time.Duration(local.Minute())*time.Minute +
		time.Duration(local.Second())*time.Second
	if w.from < w.to {
		return w.from <= since && since < w.to
	}
	return since >= w.from || since < w.to
}

// opens is when a window that is not open at t opens next.
func (w window) opens(t time.Time) time.Time {
	local := t.In(w.zone)
	for day := 0; ; day++ {
		at := time.Date(local.Year(), local.Month(), local.Day()+day, 0, int(w.from/time.Minute), 0, 0, w.zone)
		if at.After(t) {
			return at
		}
	}
}

// tell adds to the status of a move that follows its source that the window is closed.
func (w window) tell(s move.Status, now time.Time) move.Status {
	if s.State == move.StateStreaming && !w.open(now) {
		closed := "the cutover window is closed, it opens at " + w.opens(now).Format("2006-01-02 15:04 MST")
		s.SafeToCutOver = move.SafeToCutOver{Because: append([]string{closed}, s.SafeToCutOver.Because...)}
	}
	return s
}

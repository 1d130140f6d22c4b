package main

import (
	"fmt"
	"io"

	"pgreshard/forecast"
)

// Foretold is what the forecast warns of.
func (r planReport) Foretold() []forecast.Foretold {
	if r.Forecast == nil {
		return nil
	}
	return r.Forecast.Warnings
}

// forecastLine is one part of a forecast in words.
type forecastLine struct{ What, Value, Basis string }

func forecastLines(f *forecast.Forecast) []forecastLine {
	lines := []forecastLine{
		{"copy", secondsWords(f.Copy.Seconds), f.Copy.Basis},
		{"indexes and vacuum", secondsWords(f.Indexes.Seconds), f.Indexes.Basis},
	}
	for n, k := range f.Log {
		value := fmt.Sprintf("%s of %s", bytesWords(k.Bytes), bytesWords(k.Room))
		if k.FullSeconds != nil {
			value += ", full in " + longWords(*k.FullSeconds)
		}
		lines = append(lines, forecastLine{fmt.Sprintf("log that source %d keeps", n), value, k.Basis})
	}
	caughtUp := "never"
	if f.CatchUp.Seconds != nil {
		caughtUp = secondsWords(*f.CatchUp.Seconds)
	}
	return append(lines,
		forecastLine{"catching up", caughtUp, f.CatchUp.Basis},
		forecastLine{"waiting for writers in the freeze", fmt.Sprintf("%.0f ms", 1000*f.Freeze.Seconds), f.Freeze.Basis},
		forecastLine{"log that the shards write", bytesWords(f.ShardsLog), "as the trial's part of it"})
}

// longWords is a time that may be very long.
func longWords(seconds float64) string {
	const day = 24 * 3600
	if seconds > 100*day {
		return "more than 100 days"
	}
	return secondsWords(seconds)
}

// writeForecast prints what the move will take.
func writeForecast(w io.Writer, f *forecast.Forecast) error {
	if f == nil {
		return nil
	}
	fmt.Fprintln(w, "what it will take, by a small part of the copy that was made and taken back")
	err := columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "what\tforetold\tby")
		for _, line := range forecastLines(f) {
			fmt.Fprintf(t, "%s\t%s\t%s\n", line.What, line.Value, line.Basis)
		}
	})
	fmt.Fprintln(w)
	return err
}

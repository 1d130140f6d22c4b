package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"pgreshard/move"
)

const (
	drawEvery = 250 * time.Millisecond // on a terminal
	lineEvery = time.Second            // elsewhere
	lineWidth = 78                     // columns a drawn line may take
	barWidth  = 24
)

// followOn redraws a move's progress on a terminal until ctx ends.
func followOn(ctx context.Context, s *screen, snapshot func() move.Status) {
	every(ctx, drawEvery, func() { s.draw(progressLines(snapshot())) })
	s.draw(progressLines(snapshot()))
}

// follow writes a line of a move's progress a second, where it says something new, until ctx ends.
func follow(ctx context.Context, w io.Writer, snapshot func() move.Status) {
	last := ""
	tell := func() {
		if line := progressLine(snapshot()); line != last {
			last = line
			fmt.Fprintln(w, line)
		}
	}
	every(ctx, lineEvery, tell)
	tell()
}

func every(ctx context.Context, wait time.Duration, do func()) {
	ticker := time.NewTicker(wait)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

// progressLine is the whole progress in one line.
func progressLine(s move.Status) string {
	parts := []string{s.State}
	switch s.State {
	case "copying":
		parts = append(parts, sumCopy(s.Copy).words(s.CopyETA))
	case "streaming":
		for _, t := range s.Streams {
			parts = append(parts, fmt.Sprintf("source %d %s", t.Source, streamWords(t)))
		}
	case "cutting_over", "rolling_back":
		parts = append(parts, or(s.Cutover.Step, "waiting"))
	}
	for _, what := range s.Waiting {
		parts = append(parts, "waits: "+redact(what))
	}
	for _, what := range s.Alarms {
		parts = append(parts, "alarm: "+what)
	}
	return strings.Join(parts, ": ")
}

// progressLines is the progress as a terminal shows it: the state, a bar for the copy and for each table being
// copied, a line for each stream.
func progressLines(s move.Status) []string {
	lines := []string{stateLine(s)}
	for _, what := range s.Waiting {
		lines = append(lines, "waits: "+redact(what))
	}
	for _, what := range s.Alarms {
		lines = append(lines, "alarm: "+what)
	}
	if s.State == "copying" {
		total := sumCopy(s.Copy)
		lines = append(lines, bar(total.share())+" "+total.words(s.CopyETA))
		for _, t := range busiest(s.Copy, 6) {
			one := sumCopy([]move.CopyStatus{t})
			lines = append(lines, fmt.Sprintf("%s %s from source %d", bar(one.share()), t.Table, t.Source))
		}
	}
	if s.State == "streaming" || s.State == "cutting_over" {
		for _, t := range s.Streams {
			lines = append(lines, fmt.Sprintf("source %d: %s", t.Source, streamWords(t)))
		}
	}
	for i, line := range lines {
		lines[i] = cut(line, lineWidth)
	}
	return lines
}

// busiest are the first n tables that are being copied.
func busiest(list []move.CopyStatus, n int) []move.CopyStatus {
	var busy []move.CopyStatus
	for _, t := range list {
		if t.State == "copying" && len(busy) < n {
			busy = append(busy, t)
		}
	}
	return busy
}

func bar(share float64) string {
	full := int(share * barWidth)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
}

// cut shortens a line to n characters: a wrapped one could not be redrawn in place.
func cut(line string, n int) string {
	r := []rune(line)
	if len(r) <= n {
		return line
	}
	return string(r[:n-1]) + "…"
}

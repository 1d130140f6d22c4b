package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestTheLastLinesOfTheLogAreKeptForThePage(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	inner, err := newLogger(&out, "text")
	if err != nil {
		t.Fatal(err)
	}
	var kept recent
	log := kept.keeping(inner)
	log.Debug("of no interest")
	for range recentMost {
		log.Info("old")
	}
	log.With("source", 1).Warn("interrupted", "error", errors.New("dial postgres://mover:secret@h/d failed"), slog.Int("pause", 2))
	list := kept.events()
	if len(list) != recentMost || list[0].Level != "WARN" || list[0].Text != "interrupted, source 1, error dial postgres://… failed, pause 2" || list[1].Text != "old" {
		t.Errorf("%d lines are kept, the last %+v", len(list), list[0])
	}
	if !strings.Contains(out.String(), `level=WARN msg=interrupted source=1 error="dial postgres://… failed" pause=2`) || strings.Count(out.String(), "\n") != recentMost+1 {
		t.Errorf("the log itself: %s", out.String())
	}
}

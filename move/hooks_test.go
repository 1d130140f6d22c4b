package move_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// script is a hook that leaves a line in a file, with what it was told, and then does what is given.
func script(log, then string) []string {
	return []string{"sh", "-c", fmt.Sprintf(`echo "$PGRESHARD_STEP $PGRESHARD_MOVE $PGRESHARD_FROM $PGRESHARD_TO $PGRESHARD_DEADLINE $(cat "$PGRESHARD_LAYOUT")" >> '%s'; %s`, log, then)}
}

type hookCall struct {
	name, move, from, to string
	deadline             time.Time
	layout               layout.Record
}

func hookCalls(t *testing.T, log string) (names []string, calls []hookCall) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		p := strings.SplitN(line, " ", 6)
		c := hookCall{name: p[0], move: p[1], from: p[2], to: p[3]}
		seconds, err := strconv.ParseInt(p[4], 10, 64)
		if err := errors.Join(err, json.Unmarshal([]byte(p[5]), &c.layout)); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		c.deadline = time.Unix(seconds, 0)
		names, calls = append(names, c.name), append(calls, c)
	}
	return names, calls
}

// A hook that fails or hangs keeps the freeze from being made, one that fails after the switch is repeated, and those before
// and after stand around all attempts.
func TestHooksStandAroundACutover(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", behindSchema)
	log := filepath.Join(t.TempDir(), "hooks")
	s.config.Hooks = move.Hooks{Timeout: 20 * time.Second, BeforeFreeze: script(log, "echo 'cannot pause' >&2; exit 3"), AfterUndo: script(log, ""), AfterSwitch: script(log, "exit 1")}
	expect := func(what string, want ...string) {
		t.Helper()
		names, calls := hookCalls(t, log)
		if fmt.Sprint(names) != fmt.Sprint(want) {
			t.Fatalf("%s: hooks ran as %v, want %v", what, names, want)
		}
		for _, c := range calls {
			version := 2
			if c.name == "after_undo" {
				version = 1
			}
			if c.move != s.config.Name || c.from != "1" || c.to != "2" || c.layout.Version != version || len(c.layout.Shards) != version {
				t.Errorf("%s: hook %s was told %+v", what, c.name, c)
			}
		}
		if err := os.Remove(log); err != nil {
			t.Error(err)
		}
	}
	vetoed := func(what, says string) {
		t.Helper()
		m := s.move()
		err := m.Migrate(t.Context(), move.MigrateOptions{})
		var undone *move.UndoneError
		var hook *move.HookError
		if !errors.As(err, &undone) || undone.Step != "before_freeze" || !errors.As(err, &hook) || !strings.Contains(err.Error(), says) {
			t.Fatalf("%s: it ended with %v", what, err)
		}
		if frozen := s.sources[0].Query(t, `select is_called from pgreshard.fence_until`)[0][0]; frozen != "f" && s.sources[0].Query(t, `select last_value from pgreshard.fence_until`)[0][0] != "0" {
			t.Errorf("%s: the source is frozen", what)
		}
		h := m.Snapshot().Cutover.Hooks
		if len(h) != 2 || h[0].Name != "after_undo" || h[0].Error != "" || h[1].Name != "before_freeze" || h[1].Error == "" {
			t.Errorf("%s: status says of the hooks %+v", what, h)
		}
	}
	vetoed("a failing hook", "exit status 3")
	expect("a failing hook", "before_freeze", "after_undo")

	s.config.Hooks.BeforeFreeze, s.config.Hooks.Timeout = script(log, "sleep 100"), 2*time.Second
	began := time.Now()
	vetoed("a hook that hangs", "it took longer than 2s")
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("a hook that hangs held the move for %s", took)
	}
	expect("a hook that hangs", "before_freeze", "after_undo")

	// An undone freeze, then a switch whose hook fails at first.
	s.config.Hooks.BeforeFreeze, s.config.Hooks.Timeout = script(log, "echo paused"), 20*time.Second
	asked := s.rehearse()
	if asked.FreezeSeconds == nil {
		t.Errorf("a rehearsal: %+v", asked)
	}
	expect("a rehearsal", "before_freeze", "after_undo")
	m := s.move()
	now := time.Now()
	err := m.Migrate(t.Context(), move.MigrateOptions{})
	var hook *move.HookError
	if !errors.As(err, &hook) || hook.Name != "after_switch" {
		t.Fatalf("a hook that fails after the switch: it ended with %v", err)
	}
	if h := m.Snapshot().Cutover.Hooks; len(h) != 2 || h[1].Output != "paused\n" {
		t.Errorf("status says of the hooks %+v", h)
	}
	_, calls := hookCalls(t, log)
	if until := calls[0].deadline; until.Before(now.Add(s.config.MaxFreeze)) || until.After(time.Now().Add(s.config.MaxFreeze+time.Duration(s.config.Attempts)*s.config.LockTimeout+time.Second)) {
		t.Errorf("the hook before the freeze was told to hold until %s, %s from now", until, time.Until(until))
	}
	expect("a hook that fails after the switch", "before_freeze", "after_switch")
	s.config.Hooks.AfterSwitch = script(log, "")
	if err := s.move().Migrate(t.Context(), move.MigrateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("the next run", "after_switch")
	s.sameRows(pgtest.RowsOptions{}, "items")
}

// rehearse has a worker that follows its source rehearse the cutover, then stops it. A step that a test adds to the recipe is
// run by it, and told by a dry run.
func (s *smallMove) rehearse() move.CutoverReport {
	s.t.Helper()
	m, ran := s.move(), 0
	m.AddStep("seal", "added", func() { ran++ })
	ctx, stop := context.WithCancel(s.t.Context())
	h := (&rig{t: s.t}).hold(ctx, m)
	dry, err := m.Cutover(s.t.Context(), move.CutoverOptions{DryRun: true})
	if err != nil || ran != 0 {
		s.t.Fatalf("a dry run ran %d steps: %v", ran, err)
	}
	r, err := m.Cutover(s.t.Context(), move.CutoverOptions{Rehearse: true})
	if err != nil || ran != 1 {
		s.t.Fatalf("a rehearsal ran %d steps: %v", ran, err)
	}
	for name, list := range map[string][]move.StepReport{"dry run": dry.Steps, "rehearsal": r.Steps} {
		at := func(step string) int {
			return slices.IndexFunc(list, func(s move.StepReport) bool { return s.Name == step })
		}
		if at("added") < 1 || at("seal") != at("added")+1 {
			s.t.Errorf("the added step is not in its place in a %s: %+v", name, list)
		}
	}
	stop()
	<-h.done
	return r
}

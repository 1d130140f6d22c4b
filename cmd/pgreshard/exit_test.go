package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgreshard/move"
)

// undone is an error as another package may have it: it knows its own exit code.
type undone struct{}

func (undone) Error() string { return "the cutover was undone" }
func (undone) ExitCode() int { return exitUndone }

func TestErrorsBecomeExitCodes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		code int
	}{
		"no error is 0":                 {nil, exitDone},
		"any error is 1":                {errors.New("x"), exitFailed},
		"a cancelled context is 1":      {context.Canceled, exitFailed},
		"usage is 2":                    {usage("h", "x"), exitUsage},
		"a wrapped error keeps its own": {fmt.Errorf("move: %w", undone{}), exitUndone},
		"problems of a plan are 3":      {&move.PlanError{}, exitCheck},
		"a difference is 3":             {fmt.Errorf("verify: %w", &move.DifferenceError{}), exitCheck},
		"an undone cutover is 4":        {&move.UndoneError{Err: &move.DifferenceError{}}, exitUndone},
		"an unknown switch is 5":        {&move.UnknownError{Err: errors.New("x")}, exitUnknown},
		"another configuration is 2":    {fmt.Errorf("%w: tables", move.ErrChangedConfig), exitUsage},
	} {
		if got := exitCode(test.err); got != test.code {
			t.Errorf("%s: got %d, want %d", name, got, test.code)
		}
	}
}

func TestEveryErrorLineHasAHintAndNoSecret(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"an error of nobody":     errors.New("x"),
		"an error with its hint": usage("do this", "x"),
		"a hint in the text":     errors.New("x (hint: y)"),
		"an address in it":       errors.New(`connect "postgres://u:hunter2@h/d": refused`),
		"a key=value address":    errors.New(`cannot parse "host=h password=hunter2 user=u"`),
		"a quoted password":      errors.New(`password = 'hunter2 \' hunter2'`),
	} {
		var b bytes.Buffer
		reportError(&b, err)
		line := b.String()
		if !strings.HasPrefix(line, "pgreshard: ") || strings.Count(line, "hint: ") != 1 || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: %q", name, line)
		}
		if strings.Contains(line, "hunter2") {
			t.Errorf("%s: a password is shown: %q", name, line)
		}
	}
}

func TestTheLogHoldsNoAddress(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var b bytes.Buffer
		log, err := newLogger(&b, format)
		if err != nil {
			t.Fatal(err)
		}
		log.With("url", "postgres://u:hunter2@h/d").Info("at postgresql://u:hunter2@h/d", "error", errors.New("password=hunter2 x"))
		if strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), "postgres://…") {
			t.Errorf("%s: %s", format, b.String())
		}
	}
}

func TestTheFirstSignalStopsAndTheSecondStopsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	signals, done, exited := make(chan os.Signal), make(chan struct{}), make(chan struct{})
	go stopAtSecond(signals, done, cancel, func() { close(exited) })

	signals <- syscall.SIGTERM
	<-ctx.Done()
	cause := context.Cause(ctx)
	if !errors.Is(cause, context.Canceled) || exitCode(cause) != exitFailed || !strings.Contains(cause.Error(), "terminated") {
		t.Errorf("cause: %v", cause)
	}
	signals <- os.Interrupt
	select {
	case <-exited:
	case <-time.After(5 * time.Second):
		t.Error("the second signal did not stop the program")
	}
}

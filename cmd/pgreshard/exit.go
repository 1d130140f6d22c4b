package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"pgreshard/move"
)

// The exit codes of the program, as the README lists them.
const (
	exitDone    = 0
	exitFailed  = 1 // may be run again
	exitUsage   = 2 // usage or configuration
	exitCheck   = 3 // a check failed: plan problems, verification differences
	exitUndone  = 4 // the cutover was undone, the source serves writes again
	exitUnknown = 5 // the outcome is unknown: look before running anything
)

// exitError gives an error its exit code and says what the operator can do. Errors of other packages say the same
// through the methods ExitCode and Hint, either of which may be missing.
type exitError struct {
	code int
	hint string
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }
func (e *exitError) ExitCode() int { return e.code }
func (e *exitError) Hint() string  { return e.hint }

// usage is an error in how the program was called.
func usage(hint, format string, args ...any) error {
	return &exitError{code: exitUsage, hint: hint, err: fmt.Errorf(format, args...)}
}

// exitCode maps an error to the code the program ends with.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &coded):
		return coded.ExitCode()
	default:
		return moveCode(err)
	}
}

// moveCode maps the errors of a move. An undone cutover comes first: why it was undone may be any of the others.
func moveCode(err error) int {
	var undone *move.UndoneError
	var unknown *move.UnknownError
	var plan *move.PlanError
	var difference *move.DifferenceError
	var objects *move.ObjectsError
	var notReady *move.NotReadyError
	switch {
	case errors.As(err, &unknown):
		return exitUnknown
	case errors.As(err, &undone), move.GaveUp(err):
		return exitUndone
	case errors.As(err, &plan), errors.As(err, &difference), errors.As(err, &objects), errors.As(err, &notReady):
		return exitCheck
	case errors.Is(err, move.ErrChangedConfig):
		return exitUsage
	}
	return exitFailed
}

// hintOf is what the operator can do about an error: what it says itself, else what its exit code means.
func hintOf(err error) string {
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) && hinted.Hint() != "" {
		return hinted.Hint()
	}
	if hint := move.Hint(err); hint != "" {
		return hint
	}
	switch exitCode(err) {
	case exitUsage:
		return "pgreshard --help lists the commands"
	case exitCheck:
		return "mend what is listed, then run the same command again"
	case exitUndone:
		var undone *move.UndoneError
		if errors.As(err, &undone) && undone.Back {
			return "the new layout serves writes; mend what is named and run the same command again"
		}
		return "the source serves writes; mend what is named and run the same command again"
	case exitUnknown:
		return "run nothing yet: pgreshard status reads both sides and says which layout serves"
	}
	if errors.Is(err, context.Canceled) {
		return "nothing is lost: the same command goes on where this one stopped"
	}
	return "the same command may be run again and goes on where it stopped"
}

// explain makes an error readable: one line for each thing wrong, each with a hint, no address or password in it. The key
// of a row that stopped the move is shown here, and in status, and nowhere else.
func explain(err error) string {
	text := redact(strings.TrimRight(err.Error(), "\n"))
	if !strings.Contains(text, "hint: ") {
		text += " (hint: " + hintOf(err) + ")"
	}
	var row interface{ RowKey() string }
	if errors.As(err, &row) && row.RowKey() != "" {
		text += " (key " + row.RowKey() + ")"
	}
	return text
}

// reportError writes an error for a person to standard error.
func reportError(w io.Writer, err error) {
	for line := range strings.Lines(explain(err)) {
		fmt.Fprintf(w, "pgreshard: %s\n", strings.TrimRight(line, "\n"))
	}
}

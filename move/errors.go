package move

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/replicator"
	"pgreshard/sink"
)

// PlanError lists everything that keeps a move from starting. Nothing was changed. Exit code 3.
type PlanError struct{ Problems layout.Problems }

func (e *PlanError) Error() string {
	var list []string
	for _, p := range e.Problems {
		list = append(list, p.String())
	}
	noun := "problems block"
	if len(list) == 1 {
		noun = "problem blocks"
	}
	return fmt.Sprintf("%d %s the move:\n%s", len(list), noun, strings.Join(list, "\n"))
}

// DifferenceError means that the destination does not hold exactly what the source holds. Exit code 3; inside a
// cutover it is the reason of an UndoneError.
type DifferenceError struct {
	Tables []string // the tables' names
	Detail string   // a clause a table
}

func (e *DifferenceError) Error() string {
	return fmt.Sprintf("verification found differences in %s (%s); hint: `pgreshard verify` lists the rows", strings.Join(e.Tables, ", "), e.Detail)
}

// UndoneError means that a cutover was given up before the switch: the source serves writes again. Exit code 4.
type UndoneError struct {
	Step string
	Err  error
	Back bool // it was a rollback: the new layout serves writes again
}

func (e *UndoneError) Error() string {
	if e.Back {
		return fmt.Sprintf("the rollback was undone at step %s, the new layout serves writes again: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("the cutover was undone at step %s, the source serves writes again: %v", e.Step, e.Err)
}

func (e *UndoneError) Unwrap() error { return e.Err }

// GaveUp says that a cutover was given up in its check, at the last of the attempts, for what may pass: no write was refused.
// Exit code 4, as where a freeze was undone for the same.
func GaveUp(err error) bool {
	var s *stepError
	return errors.As(err, &s) && s.step == "check" && mayPass(err)
}

// InTheWay says that open transactions are why a cutover was not made.
func InTheWay(err error) bool {
	var undone *UndoneError
	return errors.Is(err, errWritersInFlight) && (GaveUp(err) || errors.As(err, &undone))
}

// UnknownError means that the switch was asked for and its outcome could not be read. Exit code 5.
type UnknownError struct{ Err error }

func (e *UnknownError) Error() string {
	return fmt.Sprintf("whether the switch happened is unknown: %v; hint: `pgreshard status` reads both sides and says which layout serves", e.Err)
}

func (e *UnknownError) Unwrap() error { return e.Err }

// ErrChangedConfig means that shards, tables or rules are not those the move was made with. Exit code 2.
var ErrChangedConfig = errors.New("the configuration differs from the one this move was made with")

// ErrNoMove means that the destination's first shard knows of no move of this name.
var ErrNoMove = errors.New("there is no such move")

// ErrCancelled means that a cancel has begun to take the move away and could not do it everywhere.
var ErrCancelled = errors.New("this move was cancelled, but what it made is not gone everywhere; hint: run `pgreshard cancel` again")

// ended are the errors after which the source's log can no longer be read to the end: the copy must be made again.
var ended = []error{replicator.ErrSlotMissing, replicator.ErrSlotLost, replicator.ErrConfirmedAhead, replicator.ErrServerBehind,
	replicator.ErrOtherSystem, replicator.ErrOtherHistory, replicator.ErrPublicationMissing}

func isEnded(err error) bool {
	return slices.ContainsFunc(ended, func(e error) bool { return errors.Is(err, e) })
}

const startOver = "`pgreshard cancel --drop-data`, then `pgreshard migrate`; the source serves all along"

// Hint is what the operator can do about an error that a package below could not say, because it depends on where in a
// move it happened; empty where there is nothing to add.
func Hint(err error) string {
	var none *sink.PlaceError
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, ErrNoMove):
		return "`pgreshard migrate` makes it; else [move] name or the first destination shard's URL is not what it was made with"
	case errors.Is(err, replicator.ErrSlotLost):
		return "raise max_slot_wal_keep_size on the source, then start over: " + startOver
	case isEnded(err):
		return "changes may be lost, so the move must be started over: " + startOver
	case errors.Is(err, replicator.ErrSlotForeign), errors.Is(err, replicator.ErrSlotExists):
		return "somebody else made it: give the move another name, or drop the slot if nobody uses it"
	case errors.Is(err, replicator.ErrPublicationForeign), errors.Is(err, replicator.ErrPublicationExists):
		return "somebody else made it: give the move another name, or drop the publication if nobody uses it"
	case errors.As(err, &none) && none.At != 0 && lookup.Missing(err) != nil:
		return "give the key exactly one mapping row on the source, or delete the rows that carry it, and run the same command again"
	case errors.As(err, &none) && none.At != 0:
		return "the stream cannot pass this row, whatever is changed behind it: mend the row or its mapping on the source, or the rules, and start over: " + startOver
	case errors.As(err, &none):
		return "give the key exactly one mapping row on the source, or mend the row, and run the same command again; other rules need a new start: " + startOver
	case errors.As(err, &connect):
		return "see that the server runs and takes this role and address (URL, pg_hba.conf), then run the same command again"
	}
	return ""
}

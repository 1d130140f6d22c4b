package replicator

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"pgreshard/pg"
)

// What can be wrong with a slot, a publication or a start position; none of it mends itself but ErrSlotInUse.
var (
	// ErrSlotMissing: the slot is not on this server. The move must be started over, or the server is another one.
	ErrSlotMissing = errors.New("the replication slot does not exist")
	// ErrSlotExists: a slot of this name is there already. Whoever made it before must drop it first.
	ErrSlotExists = errors.New("a replication slot of this name exists already")
	// ErrSlotLost: the server has removed log the slot needs, or invalidated it otherwise. The move must start over.
	ErrSlotLost = errors.New("the replication slot is lost")
	// ErrSlotInUse: another connection streams from the slot. An old walsender of ours goes away by itself within
	// wal_sender_timeout.
	ErrSlotInUse = errors.New("the replication slot is in use")
	// ErrSlotForeign: the slot was made for another plugin or database. It is not ours to use or to drop.
	ErrSlotForeign = errors.New("the replication slot is not one of ours")
	// ErrConfirmedAhead: the slot was confirmed beyond the position to start from, so changes in between will never be
	// sent again. The move must start over.
	ErrConfirmedAhead = errors.New("the replication slot was confirmed beyond the checkpoint")
	// ErrServerBehind: the server's log ends before the position to start from: it is not the server that sent it
	// (a standby promoted without the last changes, a restored backup).
	ErrServerBehind = errors.New("the server's log ends before the checkpoint")
	// ErrOtherSystem: the server's system identifier is not the expected one.
	ErrOtherSystem = errors.New("this is another PostgreSQL cluster than before")
	// ErrPublicationMissing: the publication is gone or was made after changes that are to be decoded now.
	ErrPublicationMissing = errors.New("the publication does not exist at this point of the log")
	// ErrPublicationExists: a publication of this name is there already.
	ErrPublicationExists = errors.New("a publication of this name exists already")
	// ErrPublicationForeign: somebody else made it. It is not ours to use or to drop.
	ErrPublicationForeign = errors.New("the publication was not made by pgreshard")
)

// AheadError is ErrConfirmedAhead with both positions.
type AheadError struct {
	Slot             string
	Confirmed, Start pg.LSN
}

func (e *AheadError) Error() string {
	return fmt.Sprintf("%v: replication slot %s is at %s, the checkpoint at %s: somebody read from the slot, or dropped it and made it again, "+
		"or what was held was put back to an earlier state", ErrConfirmedAhead, e.Slot, e.Confirmed, e.Start)
}

func (e *AheadError) Unwrap() error { return ErrConfirmedAhead }

// Blocker is a transaction a new slot has to wait for.
type Blocker struct {
	PID      int32  // 0 for a prepared transaction
	Prepared string // its identifier
	Database string // slots wait for transactions of every database of the server
	Age      time.Duration
}

func (b Blocker) String() string {
	who := fmt.Sprintf("pid %d", b.PID)
	if b.PID == 0 {
		who = fmt.Sprintf("prepared transaction %q", b.Prepared)
	}
	return fmt.Sprintf("%s (database %s, open for %s)", who, b.Database, b.Age.Round(time.Millisecond))
}

// BlockedError says that a slot was not made in time, because transactions older than it stayed open.
type BlockedError struct {
	Slot     string
	Blockers []Blocker // oldest first; empty where they have ended meanwhile
	Err      error
}

func (e *BlockedError) Error() string {
	const shown = 5
	var who []string
	for _, b := range e.Blockers[:min(shown, len(e.Blockers))] {
		who = append(who, b.String())
	}
	if more := len(e.Blockers) - shown; more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	if len(who) == 0 {
		who = []string{"none is left now, so it may succeed when tried again"}
	}
	return fmt.Sprintf("replication slot %s waits for open transactions: %s (%v); "+
		"hint: end them, or commit or roll back what is prepared, and try again", e.Slot, strings.Join(who, ", "), e.Err)
}

func (e *BlockedError) Unwrap() error { return e.Err }

// slotError turns the server's answer to a slot command into the error one can branch on.
func slotError(slot string, err error) error {
	var known error
	switch pg.Code(err) {
	case "42704":
		known = ErrSlotMissing
	case "42710":
		known = ErrSlotExists
	case "55006":
		known = ErrSlotInUse
	case "55000", "58P01":
		known = ErrSlotLost
	case "53400":
		return fmt.Errorf("replication slot %s: %w; hint: raise max_replication_slots or drop slots nobody uses", slot, err)
	default:
		return fmt.Errorf("replication slot %s: %w", slot, err)
	}
	return fmt.Errorf("replication slot %s: %w (%w)", slot, known, err)
}

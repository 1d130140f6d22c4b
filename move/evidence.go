package move

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
)

// Evidence is what a move can show for itself. There is no row's value in it, no key, and nothing of a URL.
type Evidence struct {
	Move   string       `json:"move"`
	State  string       `json:"state"`
	Layout StatusLayout `json:"layout"`
	Made   time.Time    `json:"made"`
	// Switched is when the new layout began to serve, nil where it never did.
	Switched      *time.Time `json:"switched"`
	FreezeSeconds *float64   `json:"freeze_seconds"` // from the freeze to the last shard opened
	// Steps are those of the cutover that switched.
	Steps []EvidenceStep `json:"steps"`
	// Totals are what every table added up to when the new layout began to serve, as of these positions of the sources; Unread says why not.
	switchTotals
	// Verify is the comparison in the freeze.
	Verify   VerifyStatus      `json:"verify"`
	Repairs  []EvidenceRepair  `json:"repairs"`
	Refusals []EvidenceRefusal `json:"refusals"`
}

// EvidenceStep is one step of a cutover.
type EvidenceStep struct {
	Step    string    `json:"step"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
}

// EvidenceRepair is one mending of rows.
type EvidenceRepair struct {
	At time.Time `json:"at"`
	Mended
}

// EvidenceRefusal is a cutover that was not brought to its end: the step that refused, and why, as far as that tells of no row.
type EvidenceRefusal struct {
	At   time.Time `json:"at"`
	Step string    `json:"step"`
	Why  string    `json:"why"`
}

// journalMost bounds what is read of the journal.
const journalMost = 10_000

// Evidence reads what the bookkeeping tells of the move.
func (m *Move) Evidence(ctx context.Context) (*Evidence, error) {
	known, err := m.find(ctx)
	if err == nil && known == nil {
		err = ErrNoMove
	}
	if err != nil {
		return nil, err
	}
	e := &Evidence{Move: m.Name, State: known.State, Layout: StatusLayout{Next: m.Destination.Layout}, Made: time.Now().UTC(),
		Steps: []EvidenceStep{}, Repairs: []EvidenceRepair{}, Refusals: []EvidenceRefusal{}}
	if err := errors.Join(m.detail(ctx, totalsKey, &e.switchTotals), m.detail(ctx, verifiedKey, &e.Verify)); err != nil {
		return nil, err
	}
	var entries []checkpoints.Entry
	err = m.home(ctx, func(conn *pgx.Conn) (err error) {
		serving, err := checkpoints.ReadServing(ctx, conn)
		if err == nil && serving != nil {
			e.Layout.Serving = serving.Version
		}
		if err == nil {
			entries, err = checkpoints.ReadJournal(ctx, conn, m.Name, journalMost)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := e.read(entries); err != nil {
		return nil, err
	}
	switch {
	case e.Unread != "" || len(e.Tables) > 0:
	case !m.MustVerify:
		e.Unread = "nothing is compared ([cutover] verify = false)"
	case e.Switched != nil:
		e.Unread = "the worker that switched ended before they were read, or could not take the snapshots"
	}
	return e, nil
}

// read takes from the journal what it tells of repairs and cutovers; what was rolled back has not switched.
func (e *Evidence) read(entries []checkpoints.Entry) error {
	var steps []EvidenceStep // of the cutover that is read
	ended, back := true, false
	for _, entry := range entries {
		switch {
		case entry.Step == StateRollingBack:
			back = true
		case entry.Step == StateCuttingOver:
			back = false
		case entry.Step == StateRolledBack:
			e.Switched, e.FreezeSeconds, e.Steps = nil, nil, []EvidenceStep{}
		case entry.Step == "repair":
			var mended []Mended
			if err := json.Unmarshal(entry.Note, &mended); err != nil {
				return err
			}
			for _, one := range mended {
				e.Repairs = append(e.Repairs, EvidenceRepair{entry.At, one})
			}
		case entry.Step == "undo":
			var note undoNote
			if err := json.Unmarshal(entry.Note, &note); err != nil {
				return err
			}
			if note.Why != errRehearsed.Error() {
				e.Refusals = append(e.Refusals, EvidenceRefusal{entry.At, note.Step, note.Why})
			}
			steps, ended = nil, true
		case slices.Contains(cutoverSteps, entry.Step):
			if entry.Step == cutoverSteps[0] && entry.Phase == "before" {
				if last := len(steps) - 1; !ended {
					e.Refusals = append(e.Refusals, EvidenceRefusal{steps[last].Began, steps[last].Step, "it was refused there, or the worker ended"})
				}
				steps = nil
			}
			steps = stepped(steps, entry)
			ended = entry.Phase == "after"
			if entry.Step == stepOpen && !back {
				e.switched(steps, entry)
			}
		}
	}
	return nil
}

// stepped adds an entry of a step. Of the switch only the beginning is noted, because its own record is what counts: it has ended when open begins.
func stepped(steps []EvidenceStep, entry checkpoints.Entry) []EvidenceStep {
	last := len(steps) - 1
	if last >= 0 && (steps[last].Step == entry.Step || steps[last].Step == "switch") && steps[last].Seconds == 0 {
		steps[last].Seconds = entry.At.Sub(steps[last].Began).Seconds()
	}
	if entry.Phase == "before" && (last < 0 || steps[last].Step != entry.Step) {
		steps = append(steps, EvidenceStep{Step: entry.Step, Began: entry.At})
	}
	return steps
}

// switched notes the cutover that has come to its last step.
func (e *Evidence) switched(steps []EvidenceStep, open checkpoints.Entry) {
	e.Steps = slices.Clone(steps)
	for _, s := range steps {
		switch {
		case s.Step == "switch":
			e.Switched = &s.Began
		case s.Step == "freeze" && open.Phase == "after":
			seconds := open.At.Sub(s.Began).Seconds()
			e.FreezeSeconds = &seconds
		}
	}
}

// cutoverSteps are those of the recipe, as the journal has them.
var cutoverSteps = []string{"arm", "check", "freeze", "drain", "finish", "verify", "seal", "switch", stepOpen}

// undoNote is what the journal says of a cutover that was undone.
type undoNote struct {
	Step string `json:"step"`
	Why  string `json:"why"`
}

// undoneBecause says why a cutover was undone in words that tell of no row.
func undoneBecause(err error) string {
	var differs *DifferenceError
	switch {
	case errors.Is(err, errRehearsed):
		return errRehearsed.Error()
	case errors.As(err, &differs):
		return "differences were found in " + strings.Join(differs.Tables, ", ")
	case errors.Is(err, errWritersInFlight):
		return "transactions of writers were in the way"
	case errors.Is(err, context.DeadlineExceeded):
		return "max_freeze was used up"
	}
	return "the worker's log says why"
}

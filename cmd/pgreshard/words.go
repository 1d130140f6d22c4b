package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"pgreshard/move"
)

// writeStatus says where a move stands in words a person can act on; its last line is whether to cut over.
func writeStatus(w io.Writer, s move.Status) error {
	var b strings.Builder
	leads := fmt.Sprintf("layout %d to layout %d; %s", s.Layout.Next-1, s.Layout.Next, servingWords(s.Layout))
	if s.Layout.Next == 0 {
		leads = fmt.Sprintf("which publishes the changes of layout %d", s.Layout.Serving)
	}
	fmt.Fprintf(&b, "move:   %s, %s\n", s.Move, leads)
	fmt.Fprintf(&b, "state:  %s\n", stateLine(s))
	if s.Error != nil {
		fmt.Fprintf(&b, "error:  %s\n", redact(*s.Error))
	}
	for _, what := range s.Waiting {
		fmt.Fprintf(&b, "waits:  %s\n", redact(what))
	}
	for _, what := range s.Alarms {
		fmt.Fprintf(&b, "alarm:  %s\n", what)
	}
	if s.Worker != "" {
		fmt.Fprintf(&b, "worker: %s\n", s.Worker)
	}
	for _, line := range statusLines(s) {
		fmt.Fprintln(&b, line)
	}
	for _, f := range s.Fences {
		fmt.Fprintf(&b, "fence:  source %d %s\n", f.Source, fenceWords(s, f))
	}
	fmt.Fprintf(&b, "safe to cut over: %s\n", safeWords(s.SafeToCutOver))
	_, err := io.WriteString(w, b.String())
	return err
}

func servingWords(l move.StatusLayout) string {
	if l.Serving == 0 {
		return "which layout serves is not known"
	}
	return fmt.Sprintf("layout %d serves", l.Serving)
}

// stateLine names a state and says what it means. Without one the move has not been looked up yet, or could not be.
func stateLine(s move.Status) string {
	if s.State == "" {
		return "not known yet"
	}
	return s.State + ": " + stateWords(s)
}

func fenceWords(s move.Status, f move.FenceStatus) string {
	switch {
	case !f.Refuses:
		return "lets writes pass"
	case f.Until != nil:
		return "refuses writes until " + f.Until.Format(time.RFC3339)
	case s.Layout.Serving != s.Layout.Next:
		return "is sealed: it refuses writes until pgreshard migrate or cancel decides"
	default:
		return "refuses writes for good"
	}
}

// idleWords says the same of a move that nobody works on.
func idleWords(s move.Status) string {
	const goesOn = "; no worker runs: pgreshard migrate goes on"
	switch s.State {
	case "created":
		return "nothing is copied yet" + goesOn
	case "schema":
		return "not all tables are made on the destination" + goesOn
	case "copying":
		return "not all rows are copied; the source serves" + goesOn
	case "indexing":
		return "rows are copied, not all indexes and constraints are built" + goesOn
	case "streaming":
		if s.Layout.Next == 0 {
			return "nothing is published, while the slots keep the log; no worker runs: pgreshard serve goes on, pgreshard cancel ends it"
		}
		return "everything is copied; the destination stands still while the slot keeps the source's log" + goesOn
	case "cutting_over":
		return "a cutover was interrupted; no worker runs: pgreshard migrate goes on from what was decided, pgreshard cancel gives the move up"
	case "switched":
		if s.Reverse == nil {
			return fmt.Sprintf("layout %d serves, the rest is to be cleaned up", s.Layout.Next) + goesOn
		}
		return fmt.Sprintf("layout %d serves; the old layout stands still while the slots keep the log; no worker runs: pgreshard migrate goes on, pgreshard complete ends the move", s.Layout.Next)
	case "rolling_back":
		return "a rollback was interrupted; no worker runs: pgreshard migrate goes on from what was decided"
	case "rolled_back":
		return fmt.Sprintf("layout %d serves again; pgreshard migrate follows the source again, pgreshard cancel takes away what is left of the move", s.Layout.Serving)
	}
	return ""
}

// stateWords says what a state means and what comes after it.
func stateWords(s move.Status) string {
	if s.Idle {
		if words := idleWords(s); words != "" {
			return words
		}
	}
	switch s.State {
	case "created":
		return "nothing is copied yet"
	case "schema":
		return "tables are being made on the destination"
	case "copying":
		return "rows are being copied; the source serves"
	case "indexing":
		return "rows are copied, indexes and constraints are being built"
	case "streaming":
		if s.Layout.Next == 0 {
			return "changes are published, there is no destination"
		}
		return "the destination follows the source"
	case "cutting_over":
		if s.Cutover.Step != "" {
			return "writes are being moved over, step " + s.Cutover.Step
		}
		return "writes are being moved over"
	case "switched":
		if s.Reverse != nil && s.Reverse.Lost == "" {
			return fmt.Sprintf("layout %d serves, the old layout follows it until pgreshard complete or pgreshard rollback", s.Layout.Next)
		}
		return fmt.Sprintf("layout %d serves", s.Layout.Next)
	case "rolling_back":
		return "writes are being moved back"
	case "rolled_back":
		return "the source serves again"
	case "completed":
		return "the move is done and cleaned up"
	case "cancelled":
		return "the move is given up; what is left on a node that did not answer goes with pgreshard cancel"
	default:
		return "a state this version does not know"
	}
}

func safeWords(s move.SafeToCutOver) string {
	if s.OK {
		return "yes"
	}
	return "no, because " + strings.Join(s.Because, "; ")
}

// statusLines has a line for each part of a move that has something to say.
func statusLines(s move.Status) []string {
	var lines []string
	if c := sumCopy(s.Copy); c.tables > 0 {
		lines = append(lines, "copy:   "+c.words(s.CopyETA))
	}
	for _, t := range s.Streams {
		if t.LagBytes != nil || s.State == "streaming" || s.State == "cutting_over" {
			lines = append(lines, fmt.Sprintf("stream: source %d %s", t.Source, streamWords(t)))
		}
		if t.Retained != nil {
			lines = append(lines, fmt.Sprintf("slot:   source %d %s", t.Source, slotWords(t)))
		}
	}
	for _, h := range s.Shards {
		lines = append(lines, fmt.Sprintf("shard:  %d at %s, %d rows inserted, %d updated, %d deleted", h.Shard,
			or(h.Node, "no known node"), h.Rows.Inserted, h.Rows.Updated, h.Rows.Deleted))
	}
	if s.Reverse != nil {
		lines = append(lines, reverseLines(*s.Reverse)...)
	}
	if s.CDC != nil {
		lines = append(lines, cdcLines(*s.CDC)...)
	}
	if s.Verify.State != "" && s.Verify.State != "none" {
		lines = append(lines, "verify: "+verifyWords(s.Verify))
	}
	lines = append(lines, provingLines(s.Verify)...)
	if s.Verify.State != "" && s.Verify.State != "none" {
		for _, w := range s.Verify.Whole {
			lines = append(lines, "verify: the freeze compares all of "+w)
		}
	}
	if s.Cutover.FreezeSeconds != nil {
		lines = append(lines, fmt.Sprintf("freeze: writes were refused for %.3f s", *s.Cutover.FreezeSeconds))
	}
	return lines
}

// reverseLines say how the old layout follows, and what a rollback would lose.
func reverseLines(r move.ReverseStatus) (lines []string) {
	if r.Lost != "" {
		lost := "what was written since then"
		if r.Written != nil {
			lost += fmt.Sprintf(", of about %d rows changed since the switch", *r.Written)
		}
		return []string{"back:   there is no way back: " + r.Lost + "; a rollback would lose " + lost}
	}
	for _, t := range r.Streams {
		lines = append(lines, fmt.Sprintf("back:   the old layout follows destination shard %d, %s", t.Source, streamWords(t)))
		if t.Retained != nil {
			lines = append(lines, fmt.Sprintf("slot:   destination shard %d %s", t.Source, slotWords(t)))
		}
	}
	if r.Rollback.OK {
		return append(lines, "back:   a rollback would lose nothing")
	}
	return append(lines, "back:   no rollback can be made now, because "+strings.Join(r.Rollback.Because, "; "))
}

// cdcLines say how far changes are published; why they are not stands among the alarms.
func cdcLines(c move.CDCStatus) (lines []string) {
	if c.BegunAnew != "" {
		lines = append(lines, "cdc:    publishing began anew, since changes were lost: "+c.BegunAnew)
	}
	for _, t := range c.Shards {
		text := map[string]string{"waiting": "waits for its turn", "rows": "the rows that are there are being published"}[t.State]
		if t.State == "changes" {
			text = streamWords(move.StreamStatus{LagBytes: t.LagBytes, LagSeconds: t.LagSeconds})
		}
		if t.Retained != nil {
			text += ", its slot " + slotWords(move.StreamStatus{Retained: t.Retained, Budget: t.Budget})
		}
		lines = append(lines, fmt.Sprintf("cdc:    layout %d shard %d to %s: %s", t.Layout, t.Shard, c.Stream, text))
	}
	return lines
}

// copyTotal is the copy of all tables of all sources.
type copyTotal struct {
	tables, done       int
	rows, bytes, total int64
}

func sumCopy(list []move.CopyStatus) copyTotal {
	var t copyTotal
	for _, c := range list {
		t.tables++
		t.rows += c.Rows
		t.bytes += c.Bytes
		t.total += c.BytesTotal
		if c.State == "done" {
			t.done++
		}
	}
	return t
}

// share is how much is copied, 0 to 1.
func (c copyTotal) share() float64 {
	switch {
	case c.tables > 0 && c.done == c.tables:
		return 1
	case c.total <= 0:
		return 0
	}
	return min(1, float64(c.bytes)/float64(c.total))
}

// words says how much is copied and, where that is known, how long the rest takes.
func (c copyTotal) words(eta *float64) string {
	if c.tables == 0 {
		return "what is to be copied is being looked at"
	}
	text := fmt.Sprintf("%.0f %%, %s of %s, %d rows, %d of %d tables", 100*c.share(), bytesWords(c.bytes), bytesWords(c.total),
		c.rows, c.done, c.tables)
	if eta != nil && c.done < c.tables {
		text += ", about " + secondsWords(*eta) + " left"
	}
	return text
}

func streamWords(t move.StreamStatus) string {
	if t.LagBytes == nil {
		return "lag not known"
	}
	text := bytesWords(*t.LagBytes) + " behind"
	if t.LagSeconds != nil {
		text += " (" + secondsWords(*t.LagSeconds) + ")"
	}
	if t.RowsPerSecond != nil {
		text += fmt.Sprintf(", %.0f rows/s", *t.RowsPerSecond)
	}
	if t.ETASeconds != nil && *t.ETASeconds >= 1 {
		text += ", about " + secondsWords(*t.ETASeconds) + " to catch up"
	}
	return text
}

// slotWords says what a slot costs its source.
func slotWords(t move.StreamStatus) string {
	text := "keeps " + bytesWords(*t.Retained) + " of log"
	if t.Budget != nil {
		text += " of the " + bytesWords(*t.Budget) + " it may"
	}
	if t.Growth != nil && *t.Growth >= 1 {
		text += ", " + bytesWords(int64(*t.Growth)) + "/s more"
	}
	if t.SafeWAL != nil {
		text += ", and is lost once " + bytesWords(*t.SafeWAL) + " more are written"
	}
	return text
}

func verifyWords(v move.VerifyStatus) string {
	switch {
	case v.State == "different":
		return fmt.Sprintf("%d differences (pgreshard verify shows them)", v.Differences)
	case v.Finished != nil:
		return fmt.Sprintf("%s, %d rows, %s", v.State, v.Rows, v.Finished.UTC().Format(time.RFC3339))
	default:
		return v.State
	}
}

// provingLines say how far a comparison has come that runs, or that was not brought to its end.
func provingLines(v move.VerifyStatus) (lines []string) {
	switch {
	case v.Interrupted:
		lines = append(lines, fmt.Sprintf("verify: was interrupted when %d of %d tables were found equal; pgreshard verify goes on", len(v.Verified), v.TablesTotal))
	case v.State == "running" && v.TablesTotal > 0:
		text := fmt.Sprintf("verify: %d of %d tables are found equal", len(v.Verified), v.TablesTotal)
		if v.BytesTotal > 0 {
			text += fmt.Sprintf(", %s of %s read", bytesWords(v.Bytes), bytesWords(v.BytesTotal))
		}
		if v.ETASeconds != nil {
			text += ", about " + secondsWords(*v.ETASeconds) + " left"
		}
		if v.Paced != "" {
			text += "; it waits, because " + v.Paced
		}
		lines = append(lines, text)
	default:
		return nil
	}
	for _, t := range v.Verified {
		lines = append(lines, fmt.Sprintf("verify: %s at %s, %d rows", t.Table, strings.Join(t.At, ", "), t.Rows))
	}
	return lines
}

// bytesWords shortens a number of bytes, in units of 1024 as PostgreSQL's.
func bytesWords(n int64) string {
	value, units := float64(n), []string{"B", "kB", "MB", "GB", "TB"}
	for len(units) > 1 && value >= 1024 {
		value, units = value/1024, units[1:]
	}
	if units[0] == "B" || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, units[0])
	}
	return fmt.Sprintf("%.1f %s", value, units[0])
}

func secondsWords(s float64) string {
	if s < 10 {
		return fmt.Sprintf("%.1f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

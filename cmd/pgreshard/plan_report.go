package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"pgreshard/move"
)

// planReport is a plan for a person, and as JSON the plan itself.
type planReport struct{ *move.Plan }

func (r planReport) OK() bool                     { return len(r.Problems) == 0 }
func (r planReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.Plan) }

func (r planReport) WriteText(w io.Writer) error {
	var b strings.Builder
	nodes := func(t io.Writer) {
		fmt.Fprintln(t, "node\taddress\tversion\tconnections")
		for _, n := range r.Nodes {
			fmt.Fprintf(t, "%s shard %d\t%s\t%s\t%d\n", n.Side, n.Shard, n.Node, n.Version, n.Sessions)
		}
	}
	var rows, bytes int64
	tables := func(t io.Writer) {
		fmt.Fprintln(t, "\ntable\trows\tsize\trule")
		for _, p := range r.Tables {
			rows, bytes = rows+max(0, p.Rows), bytes+p.Bytes
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", p.Table, rowsWords(p.Rows), bytesWords(p.Bytes), p.Rule)
		}
	}
	if err := columns(&b, nodes); err != nil {
		return err
	}
	if err := columns(&b, tables); err != nil {
		return err
	}
	what := "to copy"
	if r.PublishesOnly {
		what = "there"
	}
	fmt.Fprintf(&b, "\n%d tables, about %d rows, %s %s\n", len(r.Tables), rows, bytesWords(bytes), what)
	if err := writeSurveys(&b, r.Surveys); err != nil {
		return err
	}
	if err := writeStatements(&b, r.Statements); err != nil {
		return err
	}
	if err := writeForecast(&b, r.Forecast); err != nil {
		return err
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	for _, s := range r.Surveys {
		for _, w := range s.Warnings {
			fmt.Fprintf(&b, "warning: %s: %s; hint: %s\n", s.Table, w.What, w.Hint)
			if len(w.SubKeys) > 0 {
				fmt.Fprintf(&b, "         %s\n", subKeysWords(w.SubKeys))
			}
		}
	}
	for _, w := range r.Foretold() {
		fmt.Fprintf(&b, "warning: %s; hint: %s\n", w.What, w.Hint)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	switch {
	case len(r.Problems) == 1:
		fmt.Fprintln(&b, "1 problem blocks the move")
	case !r.OK():
		fmt.Fprintf(&b, "%d problems block the move\n", len(r.Problems))
	case r.PublishesOnly:
		fmt.Fprintln(&b, "nothing blocks it: there is no [destination], and pgreshard serve publishes the changes of these tables")
	case r.State == move.StateCompleted || r.State == move.StateSwitched:
		fmt.Fprintf(&b, "nothing blocks the move, which is %s already: pgreshard status shows it\n", r.State)
	case r.State != "":
		fmt.Fprintf(&b, "nothing blocks the move, which is made already and is %s: pgreshard status shows it, pgreshard migrate goes on from there\n", r.State)
	default:
		fmt.Fprint(&b, steps)
	}
	_, err := io.WriteString(w, redact(b.String()))
	return err
}

// steps is what migrate does once nothing blocks it.
const steps = `nothing blocks the move; pgreshard migrate will
  1. make the tables on the destination, without secondary indexes
  2. copy the rows, each to its shard, from one snapshot of each source
  3. build indexes and constraints, while changes are kept
  4. apply the changes until the destination follows closely
  5. refuse writes on the source for a moment, apply the last changes, compare both sides, and switch
`

func rowsWords(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

// writeStatements prints the statements that will have to ask every shard.
func writeStatements(w io.Writer, statements []move.PlannedStatement) error {
	if len(statements) == 0 {
		return nil
	}
	fmt.Fprintln(w, "statements that name a sharded table without its key, and so go to every shard (by their words, from pg_stat_statements)")
	err := columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "calls\tseconds\ttable\tkey\tstatement")
		for _, s := range statements {
			fmt.Fprintf(t, "%d\t%.1f\t%s\t%s\t%s\n", s.Calls, s.Seconds, s.Table, s.Key, statementWords(s.Query))
		}
	})
	fmt.Fprintln(w)
	return err
}

// statementWords is a statement on one line, cut where the line would be too long.
func statementWords(query string) string {
	const most = 90
	text := []rune(strings.Join(strings.Fields(query), " "))
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/verify"
)

// columns writes a table for a person; its rows are tab-separated.
func columns(w io.Writer, rows func(io.Writer)) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows(t)
	return t.Flush()
}

// routeReport is where a key belongs, for a person, and as JSON itself.
type routeReport struct{ move.Route }

func (routeReport) OK() bool                       { return true }
func (r routeReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.Route) }

func (r routeReport) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "layout %d of %s\n", r.Version, r.Database)
	if r.Translated != "" {
		fmt.Fprintf(&b, "translated key: %s\n", r.Translated)
	}
	for i, s := range r.Shards {
		fmt.Fprintf(&b, "shard %d at %s\n", s, r.Nodes[i])
	}
	if len(r.Shards) > 1 {
		fmt.Fprintln(&b, "write to all of them, read from any")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verifyReport is a comparison for a person, and as JSON the list of its tables.
type verifyReport struct {
	*verify.Report
	repaired move.RepairReport // zero: nothing was to be mended
}

func (r verifyReport) OK() bool                     { return r.Clean() }
func (r verifyReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.Tables) }

func (r verifyReport) WriteText(w io.Writer) error {
	for _, table := range r.repaired.Forgiven {
		fmt.Fprintf(w, "rows of %s stopped the stream: what came of it was taken as it came, and put right\n", table)
	}
	if r.repaired.Before != nil && !r.repaired.Before.Clean() {
		if err := (verifyReport{Report: r.repaired.Before}).WriteText(w); err != nil {
			return err
		}
		for _, m := range r.repaired.Mended {
			fmt.Fprintf(w, "mended %s on shard %d: %d rows written, %d taken away\n", m.Table, m.Shard, m.Written, m.Removed)
		}
		fmt.Fprintln(w, "compared again:")
	}
	err := columns(w, func(t io.Writer) {
		fmt.Fprintln(t, "table\tstate\trows\tmissing\textra\tdifferent\tmisplaced\tdoubled\tnot unique")
		for _, table := range r.Tables {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", table.Table, table.State, table.Rows, table.Missing, table.Extra,
				table.Different, table.Misplaced, table.Doubled, table.NotUnique)
		}
	})
	if err != nil {
		return err
	}
	if r.At != nil {
		fmt.Fprintf(w, "exactly as of %s on the sources\n", strings.Join(r.At, ", "))
	}
	for _, table := range r.Tables {
		for _, f := range table.Failures {
			fmt.Fprintf(w, "%s: %s %d did not answer: %s\n", table.Table, f.Side, f.Number, f.Reason)
		}
		for _, f := range table.Keys {
			fmt.Fprintf(w, "%s: %s\n", table.Table, findingWords(f))
		}
		if table.ReadAt != nil {
			fmt.Fprintf(w, "%s: was read whole as of %s, before an interruption, and now what has changed in it since\n", table.Table, strings.Join(table.ReadAt, ", "))
		}
		for _, c := range table.Conflicts {
			fmt.Fprintf(w, "%s: %s\n", table.Table, conflictWords(c))
		}
		for _, c := range table.Checks {
			if err := writeComparison(w, c, false); err != nil {
				return err
			}
		}
		if table.AtLeast {
			fmt.Fprintf(w, "%s: there are more\n", table.Table)
		}
		if table.State == verify.Changed {
			fmt.Fprintf(w, "%s: was written while it was compared: no row differs, and nothing is proved\n", table.Table)
		}
	}
	return nil
}

func conflictWords(c verify.Conflict) string {
	var rows []string
	for _, r := range c.Rows {
		rows = append(rows, fmt.Sprintf("%s on shard %d", r.Key, r.Shard))
	}
	if c.AtLeast {
		rows = append(rows, "and more")
	}
	return fmt.Sprintf("not unique, %s: %s", c.Constraint, strings.Join(rows, ", "))
}

func findingWords(f verify.Finding) string {
	text := fmt.Sprintf("%s %s", f.What, f.Key)
	if len(f.Columns) > 0 {
		text += fmt.Sprintf(" in %v", f.Columns)
	}
	if f.Source != nil {
		text += fmt.Sprintf(", source %d", *f.Source)
	}
	if f.Shard != nil {
		text += fmt.Sprintf(", shard %d", *f.Shard)
	}
	switch {
	case f.Want == nil:
	case *f.Want == verify.Nowhere:
		text += ", has no shard: no rule or mapping names one"
	default:
		text += fmt.Sprintf(", belongs on shard %d", *f.Want)
	}
	return text
}

// layoutReport is a layout for a person, and as JSON the record itself.
type layoutReport struct {
	layout.Record
	databases []string // the shards', by name
}

func (r layoutReport) writePgDog(w io.Writer) error { return writePgDog(w, r.Record, r.databases) }

func (layoutReport) OK() bool                       { return true }
func (r layoutReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.Record) }

func (r layoutReport) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "layout %d of %s", r.Version, r.Database)
	if r.ServingSince != nil {
		fmt.Fprintf(w, ", serving since %s", r.ServingSince.UTC().Format(time.RFC3339))
	}
	fmt.Fprintln(w)
	return columns(w, func(t io.Writer) {
		for _, s := range r.Shards {
			fmt.Fprintf(t, "shard %d\t%s\n", s.Shard, or(s.Node, "node not known"))
		}
		for _, rule := range r.Rules {
			fmt.Fprintf(t, "%s\t%s\t%s\n", rule.Table, rule.Kind, rule.Placement)
		}
	})
}

package layout

import (
	"slices"
	"strings"
)

// Problem is one reason why a Spec cannot place the tables that are there.
type Problem struct {
	Table string `json:"table,omitempty"` // "schema.table"; empty where the rule itself is wrong
	What  string `json:"what"`            // names the rule and what is wrong with it
	Hint  string `json:"hint"`            // what the operator can do
}

// String is one line, with the hint.
func (p Problem) String() string {
	line := p.What
	if p.Table != "" {
		line = p.Table + ": " + line
	}
	if p.Hint != "" {
		line += " (hint: " + p.Hint + ")"
	}
	return line
}

// Problems is every reason at once, as an error. The operator changes the configuration or the tables; nothing was done.
type Problems []Problem

// Error lists the problems, one a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

// add keeps one of each: a rule without a name meets many tables with the same mistake.
func (p *Problems) add(table, what, hint string) {
	if n := (Problem{table, what, hint}); !slices.Contains(*p, n) {
		*p = append(*p, n)
	}
}

package move

import (
	"fmt"
	"slices"

	"pgreshard/pg"
)

// CompareTables says what keeps rows of a source table from being written, unchanged, to the destination's table of
// the same name; nothing where they match. Order of columns, further columns and another partitioning do no harm.
func CompareTables(source, dest *pg.Table) []string {
	if dest == nil {
		return []string{"the table does not exist there"}
	}
	var out []string
	for _, s := range source.Columns {
		i, ok := dest.Column(s.Name)
		if !ok {
			out = append(out, fmt.Sprintf("column %s does not exist there", s.Name))
			continue
		}
		if why := compareColumns(s, dest.Columns[i]); why != "" {
			out = append(out, fmt.Sprintf("column %s %s", s.Name, why))
		}
	}
	for _, d := range dest.Columns {
		if _, ok := source.Column(d.Name); !ok && d.NotNull && !d.HasDefault && d.Identity == 0 && d.Generated == 0 {
			out = append(out, fmt.Sprintf("column %s exists only there, is NOT NULL and has no default", d.Name))
		}
	}
	if s, d := keyNames(source), keyNames(dest); !slices.Equal(s, d) {
		out = append(out, fmt.Sprintf("rows are told apart by %v there and by %v here", d, s))
	}
	if dest.Persistence != source.Persistence {
		out = append(out, "the table is logged on one side only")
	}
	return out
}

func compareColumns(s, d pg.Column) string {
	switch {
	case s.Type != d.Type:
		return fmt.Sprintf("is %s there and %s here", d.Type, s.Type)
	case (s.Generated != 0) != (d.Generated != 0):
		return "is generated on one side only"
	case d.NotNull && !s.NotNull:
		return "is NOT NULL there and may be null here"
	case s.Collation != d.Collation:
		return fmt.Sprintf("has collation %q there and %q here", d.Collation, s.Collation)
	}
	return ""
}

// keyNames lists the key's columns by name, sorted: their order in the index does not matter.
func keyNames(t *pg.Table) []string {
	var out []string
	for _, i := range t.Key {
		out = append(out, t.Columns[i].Name)
	}
	slices.Sort(out)
	return out
}

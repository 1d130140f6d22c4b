package sink

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// where lists the columns a row is found by: the key, and the sharding key where the old row tells it, so that a row
// another source placed here under the same key is never touched.
func (t *Table) where(find pg.Row) []int {
	out := t.Key
	for _, k := range t.RuleKey {
		if !t.inKey(k) && t.logs(k) && find[k].Kind != pg.Unchanged {
			out = append(out[:len(out):len(out)], k)
		}
	}
	return out
}

func (t *Table) inKey(column int) bool { return slices.Contains(t.Key, column) }
func (t *Table) logs(column int) bool  { return slices.Contains(t.Logged, column) }

// guard lists the columns lookups read in which the row must have what the update gives it: those the log carries, unless
// it is known that they change.
func (o *op) guard() []int {
	if o.remaps {
		return nil
	}
	return o.table.guarded(o.new)
}

// guarded lists the columns lookups read whose value the log carries.
func (t *Table) guarded(new pg.Row) []int {
	var out []int
	for _, c := range t.Guard {
		if new[c].Kind != pg.Unchanged {
			out = append(out, c)
		}
	}
	return out
}

// assignable lists the columns an update sets: those the log carries, but the key unless it changes, and a column
// GENERATED ALWAYS AS IDENTITY only where the row is replaced.
func (t *Table) assignable(o *op) []int {
	rekeys, replaces := o.rekeys(), t.replaces(o)
	var out []int
	for i, c := range t.Columns {
		if o.new[i].Kind == pg.Unchanged || c.Identity == 'a' && !replaces || !rekeys && t.inKey(i) {
			continue
		}
		out = append(out, i)
	}
	return out
}

// replaces says that an update gives a column GENERATED ALWAYS AS IDENTITY another value (SET … = DEFAULT does), or
// that the log does not tell.
func (t *Table) replaces(o *op) bool {
	for i, c := range t.Columns {
		if c.Identity != 'a' {
			continue
		}
		if o.old == nil && !t.inKey(i) || o.old != nil && differ(o.old[i], o.new[i]) {
			return true
		}
	}
	return false
}

// differ says that a column's two values are not known to be the same. One that an old row does not carry is not.
func differ(old, new pg.Datum) bool {
	if new.Kind == pg.Unchanged {
		return false
	}
	return old.Kind != new.Kind || string(old.Bytes) != string(new.Bytes)
}

func (t *Table) set(columns []int, values []string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = t.Columns[c].SQL() + " = " + values[i]
	}
	return strings.Join(out, ", ")
}

// match compares key columns by =, which the index knows, and any other so that NULL equals NULL.
func (t *Table) match(columns []int, values []string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		name, equals := "t."+t.Columns[c].SQL(), operator(t.Columns[c])
		switch {
		case t.inKey(c):
			out[i] = fmt.Sprintf("%s %s %s", name, equals, values[i])
		case equals == "=":
			out[i] = fmt.Sprintf("%s is not distinct from %s", name, values[i])
		default:
			out[i] = fmt.Sprintf("(%s %s %s or %s is null and %s is null)", name, equals, values[i], name, values[i])
		}
	}
	return strings.Join(out, " and ")
}

// operator is = as SQL. Our sessions see pg_catalog only, so that of an extension's type is named by the schema the type
// is in. Arrays, of whatever, have the one of pg_catalog.
func operator(c pg.Column) string {
	if c.TypeOID < pg.FirstUserOID || c.TypeType != 'b' || c.ElemOID != 0 {
		return "="
	}
	if schema := schemaOf(c.Type); schema != "" {
		return "operator(" + schema + ".=)"
	}
	return "="
}

// schemaOf is the schema in a type's full name, quoted as it is there.
func schemaOf(name string) string {
	quoted := false
	for i, c := range name {
		switch {
		case c == '"':
			quoted = !quoted
		case c == '.' && !quoted:
			return name[:i]
		case c == '(' && !quoted:
			return ""
		}
	}
	return ""
}

package sink

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// loadStatement is what runs after a COPY; each: it must write as many rows as the COPY took.
type loadStatement struct {
	sql  string
	each bool
}

// loadTable takes rows that may be there already, before they are merged. It has the columns alone: no constraint, no
// default, nothing generated.
const loadTable = "pg_temp.pgreshard_load"

// loadSQL makes the statements that write a chunk's rows: begin ends in the COPY, after is what remains before the mark.
func loadSQL(c *pg.Copy, upsert bool) (begin string, after []loadStatement) {
	list := loadColumns(c.Columns)
	format := ""
	if c.Binary {
		format = " (format binary)"
	}
	if !upsert {
		return fmt.Sprintf("begin; copy %s %s from stdin%s", c.Into.Name.SQL(), inParentheses(list), format), nil
	}
	begin = fmt.Sprintf("begin; create temp table pgreshard_load on commit drop as select %s from %s with no data; copy %s %s from stdin%s",
		list, c.Into.Name.SQL(), loadTable, inParentheses(list), format)
	insert := fmt.Sprintf("insert into %s (%s) overriding system value select %s from %s", c.Into.Name.SQL(), list, list, loadTable)

	var key, set []string
	replace := false
	for i, column := range c.Into.Columns {
		switch {
		case slices.Contains(c.Into.Key, i):
			key = append(key, column.SQL())
		case !slices.Contains(c.Columns, column.Name):
		case column.Identity == 'a':
			replace = true // it can be inserted but not be set
		default:
			set = append(set, column.SQL()+" = excluded."+column.SQL())
		}
	}
	switch target := strings.Join(key, ", "); {
	case replace:
		return begin, []loadStatement{{sql: loadDeleteSQL(c, key)}, {sql: insert, each: true}}
	case len(set) == 0:
		return begin, []loadStatement{{sql: insert + " on conflict (" + target + ") do nothing"}}
	default:
		return begin, []loadStatement{{sql: insert + " on conflict (" + target + ") do update set " + strings.Join(set, ", "), each: true}}
	}
}

// loadDeleteSQL removes the rows that are there in any version.
func loadDeleteSQL(c *pg.Copy, key []string) string {
	same := make([]string, len(key))
	for i, k := range key {
		same[i] = "d." + k + " = s." + k
	}
	return fmt.Sprintf("delete from %s d using %s s where %s", rowsOf(c.Into.Name, c.Into.Kind == 'p'), loadTable, strings.Join(same, " and "))
}

func loadColumns(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = pg.Column{Name: n}.SQL()
	}
	return strings.Join(quoted, ", ")
}

// inParentheses is empty for a table without columns, whose COPY takes no list.
func inParentheses(list string) string {
	if list == "" {
		return ""
	}
	return "(" + list + ")"
}

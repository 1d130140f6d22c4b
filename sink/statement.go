package sink

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// statement is one SQL statement with its parameters in text form. Several rows go in as one array per column, because
// one statement over 1,000 rows costs the server half of 1,000 statements.
type statement struct {
	sql    string
	types  []uint32 // parameter types; 0: the server infers it
	params [][]byte
	ops    []*op // what it does, for errors
	asks   bool  // returns the ordinals of the ops that hit a row (joint deletes)
}

const (
	typeBox       = 603
	typeText      = 25
	typeInt8      = 20
	typeTextArray = 1009
)

// asArray says whether values of the column can travel as an array of the column's own type, so that its input
// function reads each exactly as it would a lone value. Arrays have no array type, unnest takes composites apart, and box
// and who knows which type of an extension separate by something else than a comma: they travel as text and are cast.
func asArray(c pg.Column) bool {
	if c.TypeType == 'c' || c.BaseOID >= pg.FirstUserOID && (c.TypeType == 'b' || c.TypeType == 'd') {
		return false
	}
	return c.ArrayOID != 0 && c.ElemOID == 0 && c.BaseOID != typeBox
}

// rowSource is columns of rows as parameters of an unnest, and how each column is read from it.
type rowSource struct {
	args, names []string
	values      []string // by position in columns
	types       []uint32
	params      [][]byte
}

func unnest(t *Table, columns []int, rows []pg.Row, prefix string, first int) rowSource {
	var s rowSource
	for i, c := range columns {
		col := t.Columns[c]
		name := fmt.Sprintf("%s%d", prefix, i)
		value := "u." + name
		arg := fmt.Sprintf("$%d", first+i)
		switch {
		case !asArray(col):
			s.types = append(s.types, typeTextArray)
			value += "::" + col.Type
		case col.ArrayOID >= pg.FirstUserOID: // each shard has its own OID for it
			s.types = append(s.types, 0)
			arg += "::" + col.Type + "[]"
		default:
			s.types = append(s.types, col.ArrayOID)
		}
		s.args = append(s.args, arg)
		s.names = append(s.names, name)
		s.values = append(s.values, value)
		s.params = append(s.params, arrayLiteral(rows, c))
	}
	return s
}

// joined makes one "unnest(…) u(…)" of several sources.
func joined(ordinality bool, sources ...rowSource) string {
	var args, names []string
	for _, s := range sources {
		args, names = append(args, s.args...), append(names, s.names...)
	}
	with := ""
	if ordinality {
		with, names = " with ordinality", append(names, "n")
	}
	return fmt.Sprintf("unnest(%s)%s u(%s)", strings.Join(args, ", "), with, strings.Join(names, ", "))
}

// takes adds the parameters of a rowSource, which were numbered to follow those there are.
func (s *statement) takes(r rowSource) {
	s.types, s.params = append(s.types, r.types...), append(s.params, r.params...)
}

// insertRows writes whole rows; with upsert a row that is there already takes the new values.
func insertRows(t *Table, ops []*op, upsert bool) statement {
	columns := carriedColumns(ops[0].new)
	u := unnest(t, columns, newRows(ops), "c", 1)
	sql := fmt.Sprintf("insert into %s (%s)%s select %s from %s", t.Dest.SQL(), t.columnList(columns), t.overriding(),
		strings.Join(u.values, ", "), joined(false, u))
	if len(columns) == 0 {
		sql = fmt.Sprintf("insert into %s select from generate_series(1, %d)", t.Dest.SQL(), len(ops))
	}
	if upsert {
		sql += t.onConflict(columns)
	}
	return statement{sql: sql, types: u.types, params: u.params, ops: ops}
}

func carriedColumns(row pg.Row) []int {
	out := make([]int, 0, len(row))
	for i, d := range row {
		if d.Kind != pg.Unchanged {
			out = append(out, i)
		}
	}
	return out
}

func (t *Table) onConflict(columns []int) string {
	var set []string
	for _, i := range columns {
		c := t.Columns[i]
		if !slices.Contains(t.conflictKey(), i) {
			set = append(set, fmt.Sprintf("%s = excluded.%s", c.SQL(), c.SQL()))
		}
	}
	if len(set) == 0 {
		return fmt.Sprintf(" on conflict (%s) do nothing", t.columnList(t.conflictKey()))
	}
	return fmt.Sprintf(" on conflict (%s) do update set %s", t.columnList(t.conflictKey()), strings.Join(set, ", "))
}

// bind adds a lone parameter of the column's own type for each column.
func (s *statement) bind(t *Table, columns []int, row pg.Row) []string {
	var values []string
	for _, c := range columns {
		s.params = append(s.params, row[c].Bytes)
		if row[c].Kind == pg.Null {
			s.params[len(s.params)-1] = nil
		}
		value := fmt.Sprintf("$%d", len(s.params))
		if oid := t.Columns[c].TypeOID; oid < pg.FirstUserOID {
			s.types = append(s.types, oid)
		} else { // each shard has its own OID for it
			s.types = append(s.types, 0)
			value += "::" + t.Columns[c].Type
		}
		values = append(values, value)
	}
	return values
}

func (s statement) of(ops ...*op) statement { s.ops = ops; return s }

// expecting makes a statement of a change that returns a row for each row changed: it raises PR003 unless those are n.
// Inside a pipeline a count read by the client would come after the commit.
func (s statement) expecting(c rowChange, n int) statement {
	s.params = append(s.params, fmt.Appendf(nil, "%d", n))
	s.types = append(s.types, typeInt8)
	s.sql = fmt.Sprintf("with %sx as (%s) select pgreshard.expect(count(*), $%d) from x", c.before, c.sql, len(s.params))
	return s
}

// counting makes a statement of a change that returns how many rows it changed.
func (s statement) counting(c rowChange) statement {
	s.sql = fmt.Sprintf("with %sx as (%s) select count(*) from x", c.before, c.sql)
	return s
}

func (t *Table) columnList(columns []int) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = t.Columns[c].SQL()
	}
	return strings.Join(out, ", ")
}

func (t *Table) overriding() string {
	for _, c := range t.Columns {
		if c.Identity == 'a' {
			return " overriding system value"
		}
	}
	return ""
}

func all(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func newRows(ops []*op) []pg.Row {
	out := make([]pg.Row, len(ops))
	for i, o := range ops {
		out[i] = o.new
	}
	return out
}

func findRows(ops []*op) []pg.Row {
	out := make([]pg.Row, len(ops))
	for i, o := range ops {
		out[i] = o.find()
	}
	return out
}

// arrayLiteral is PostgreSQL's text form of a one-dimensional array over one column of rows.
func arrayLiteral(rows []pg.Row, column int) []byte {
	n := 2
	for _, r := range rows {
		n += len(r[column].Bytes) + 3
	}
	out := append(make([]byte, 0, n), '{')
	for i, r := range rows {
		if i > 0 {
			out = append(out, ',')
		}
		if d := r[column]; d.Kind == pg.Null {
			out = append(out, "NULL"...)
		} else {
			out = appendElement(out, d.Bytes)
		}
	}
	return append(out, '}')
}

func appendElement(out, value []byte) []byte {
	if plain(value) {
		return append(out, value...)
	}
	out = append(out, '"')
	for _, c := range value {
		if c == '"' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return append(out, '"')
}

// plain says that a value needs no quotes: digits, the sign and the characters of dates, numbers and uuids.
func plain(value []byte) bool {
	for _, c := range value {
		if (c < '0' || c > '9') && c != '-' && c != '.' && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(value) > 0
}

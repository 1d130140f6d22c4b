package sink

import (
	"fmt"
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
// function reads each exactly as it would a lone value. Arrays have no array type, and box separates by ';': they
// travel as text and are cast.
func asArray(c pg.Column) bool {
	return c.ArrayOID != 0 && c.ElemOID == 0 && c.BaseOID != typeBox
}

// rowSource is "unnest($1, $2) u(c0, c1)" over the given columns of ops' rows, and how each column is read from it.
type rowSource struct {
	from   string
	values []string // by position in columns
	types  []uint32
	params [][]byte
}

func unnest(t *Table, columns []int, rows []pg.Row, prefix string, first int) rowSource {
	var s rowSource
	for i, c := range columns {
		col := t.Columns[c]
		value := fmt.Sprintf("u.%s%d", prefix, i)
		if asArray(col) {
			s.types = append(s.types, col.ArrayOID)
		} else {
			s.types = append(s.types, typeTextArray)
			value += "::" + col.Type
		}
		s.values = append(s.values, value)
		s.params = append(s.params, arrayLiteral(rows, c))
	}
	args, names := make([]string, len(columns)), make([]string, len(columns))
	for i := range columns {
		args[i], names[i] = fmt.Sprintf("$%d", first+i), fmt.Sprintf("%s%d", prefix, i)
	}
	s.from = strings.Join(args, ", ") + "|" + strings.Join(names, ", ")
	return s
}

// joined makes one "unnest(…) u(…)" of several sources; tail is "" or " with ordinality".
func joined(ordinality bool, sources ...rowSource) string {
	var args, names []string
	for _, s := range sources {
		a, n, _ := strings.Cut(s.from, "|")
		args, names = append(args, a), append(names, n)
	}
	if ordinality {
		return fmt.Sprintf("unnest(%s) with ordinality u(%s, n)", strings.Join(args, ", "), strings.Join(names, ", "))
	}
	return fmt.Sprintf("unnest(%s) u(%s)", strings.Join(args, ", "), strings.Join(names, ", "))
}

// insertRows writes whole rows; with upsert a row that is there already takes the new values.
func insertRows(t *Table, ops []*op, upsert bool) statement {
	columns := all(len(t.Columns))
	u := unnest(t, columns, newRows(ops), "c", 1)
	sql := fmt.Sprintf("insert into %s (%s)%s select %s from %s", t.Dest.SQL(), t.columnList(columns), t.overriding(),
		strings.Join(u.values, ", "), joined(false, u))
	if len(columns) == 0 {
		sql = fmt.Sprintf("insert into %s select from generate_series(1, %d)", t.Dest.SQL(), len(ops))
	}
	if upsert {
		sql += t.onConflict()
	}
	return statement{sql: sql, types: u.types, params: u.params, ops: ops}
}

func (t *Table) onConflict() string {
	var set []string
	for i, c := range t.Columns {
		if !t.inKey(i) && c.Identity != 'a' {
			set = append(set, fmt.Sprintf("%s = excluded.%s", c.SQL(), c.SQL()))
		}
	}
	if len(set) == 0 {
		return fmt.Sprintf(" on conflict (%s) do nothing", t.columnList(t.Key))
	}
	return fmt.Sprintf(" on conflict (%s) do update set %s", t.columnList(t.Key), strings.Join(set, ", "))
}

// updateRows changes rows found by the table's key; every op carries the same columns. The statement raises in the
// server unless each op found its row.
func updateRows(t *Table, ops []*op) statement {
	where := t.where(ops[0].find())
	set := t.assignable(ops[0].new, nil)
	if len(set) == 0 {
		set = where[:1] // all-key tables, and updates of nothing: still the row must be there
	}
	w := unnest(t, where, findRows(ops), "w", 1)
	u := unnest(t, set, newRows(ops), "c", 1+len(where))
	sql := fmt.Sprintf("update only_if t set %s from %s where %s returning 1", t.set(set, u.values), joined(false, w, u), t.match(where, w.values))
	s := statement{types: append(w.types, u.types...), params: append(w.params, u.params...), ops: ops}
	if len(t.Guard) > 0 {
		g := unnest(t, t.Guard, newRows(ops), "g", 1+len(where)+len(set))
		s.types, s.params = append(s.types, g.types...), append(s.params, g.params...)
		sql = fmt.Sprintf("update only_if t set %s from %s where %s and %s returning 1", t.set(set, u.values), joined(false, w, u, g),
			t.match(where, w.values), t.match(t.Guard, g.values))
	}
	return s.expecting(strings.Replace(sql, "only_if", t.Dest.SQL(), 1), len(ops))
}

// deleteRows deletes rows found by the table's key and raises unless each op found its row.
func deleteRows(t *Table, ops []*op) statement {
	where := t.where(ops[0].find())
	w := unnest(t, where, findRows(ops), "w", 1)
	s := statement{types: w.types, params: w.params, ops: ops}
	return s.expecting(fmt.Sprintf("delete from %s t using %s where %s returning 1", t.Dest.SQL(), joined(false, w), t.match(where, w.values)), len(ops))
}

// deleteWherever deletes the rows that are there and, for joint ops, returns which ops found one.
func deleteWherever(t *Table, ops []*op) statement {
	where := t.where(ops[0].find())
	w := unnest(t, where, findRows(ops), "w", 1)
	sql := fmt.Sprintf("delete from %s t using %s where %s returning u.n", t.Dest.SQL(), joined(true, w), t.match(where, w.values))
	return statement{sql: sql, types: w.types, params: w.params, ops: ops, asks: true}
}

// rekeyRow changes a row's key, alone, because rows may swap or hand on their keys.
func rekeyRow(t *Table, o *op) statement {
	where := t.where(o.old)
	set := t.assignable(o.new, o.old)
	var s statement
	values := s.bind(t, set, o.new)
	match := s.bind(t, where, o.old)
	return s.of(o).expecting(fmt.Sprintf("update %s t set %s where %s returning 1", t.Dest.SQL(), t.set(set, values), t.match(where, match)), 1)
}

// oneOfEquals deletes or changes one of the rows of a table without key that equal the op's old row in every column.
func oneOfEquals(t *Table, o *op) statement {
	var s statement
	one := fmt.Sprintf("(select r.tableoid o, r.ctid c from %s r where %s limit 1) f", t.Dest.SQL(), s.equals(t, o.old))
	const row = "t.ctid = f.c and t.tableoid = f.o"
	if o.kind != opUpdate {
		return s.of(o).expecting(fmt.Sprintf("delete from %s t using %s where %s returning 1", t.Dest.SQL(), one, row), 1)
	}
	set := t.assignable(o.new, o.old)
	if len(set) == 0 {
		return s.of(o).expecting(fmt.Sprintf("select 1 from %s", one), 1)
	}
	values := s.bind(t, set, o.new)
	return s.of(o).expecting(fmt.Sprintf("update %s t set %s from %s where %s returning 1", t.Dest.SQL(), t.set(set, values), one, row), 1)
}

// equals compares every column of r with what the old row printed: by its output, save for types whose = tells exactly
// the same, because = calls 1.0 and 1.00 the same and does not exist for json.
func (s *statement) equals(t *Table, row pg.Row) string {
	conds := []string{"true"}
	for i, c := range t.Columns {
		switch {
		case row[i].Kind == pg.Null:
			conds = append(conds, fmt.Sprintf("r.%s is null", c.SQL()))
		case row[i].Kind == pg.Unchanged:
		case exactlyEqual(c):
			conds = append(conds, fmt.Sprintf("r.%s = %s", c.SQL(), s.bind(t, []int{i}, row)[0]))
		default:
			s.params, s.types = append(s.params, row[i].Bytes), append(s.types, typeText)
			conds = append(conds, fmt.Sprintf(`r.%s is not null and format('%%s', r.%s) collate "C" = $%d`, c.SQL(), c.SQL(), len(s.params)))
		}
	}
	return strings.Join(conds, " and ")
}

// exactlyEqual lists bool, int8, int2, int4, date, timestamp, timestamptz and uuid.
func exactlyEqual(c pg.Column) bool {
	switch c.TypeOID {
	case 16, 20, 21, 23, 1082, 1114, 1184, 2950:
		return true
	}
	return false
}

// bind adds a lone parameter of the column's own type for each column.
func (s *statement) bind(t *Table, columns []int, row pg.Row) []string {
	var values []string
	for _, c := range columns {
		s.params = append(s.params, row[c].Bytes)
		if row[c].Kind == pg.Null {
			s.params[len(s.params)-1] = nil
		}
		s.types = append(s.types, t.Columns[c].TypeOID)
		values = append(values, fmt.Sprintf("$%d", len(s.params)))
	}
	return values
}

func (s statement) of(o *op) statement { s.ops = []*op{o}; return s }

// expecting wraps a data-changing statement so that it raises PR003 unless it changed n rows: inside a pipeline a
// count read by the client would come after the commit.
func (s statement) expecting(sql string, n int) statement {
	s.params = append(s.params, fmt.Appendf(nil, "%d", n))
	s.types = append(s.types, typeInt8)
	s.sql = fmt.Sprintf("with x as (%s) select pgreshard.expect(count(*), $%d) from x", sql, len(s.params))
	return s
}

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

func (t *Table) inKey(column int) bool { return contains(t.Key, column) }
func (t *Table) logs(column int) bool  { return contains(t.Logged, column) }

func contains(list []int, n int) bool {
	for _, m := range list {
		if m == n {
			return true
		}
	}
	return false
}

// assignable lists the columns an update sets: those the log carries, but the key unless it changes, and an identity
// column GENERATED ALWAYS never.
func (t *Table) assignable(new, rekeyed pg.Row) []int {
	var out []int
	for i, c := range t.Columns {
		if new[i].Kind == pg.Unchanged || c.Identity == 'a' || rekeyed == nil && t.inKey(i) {
			continue
		}
		out = append(out, i)
	}
	return out
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
		if t.inKey(c) {
			out[i] = fmt.Sprintf("t.%s = %s", t.Columns[c].SQL(), values[i])
		} else {
			out[i] = fmt.Sprintf("t.%s is not distinct from %s", t.Columns[c].SQL(), values[i])
		}
	}
	return strings.Join(out, " and ")
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

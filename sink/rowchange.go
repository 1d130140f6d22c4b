package sink

import (
	"fmt"
	"strings"

	"pgreshard/pg"
)

// rowChange is SQL that changes rows and returns one row for each: sql, after before, which is empty or ends in a comma.
type rowChange struct{ before, sql string }

// updateRows changes rows found by the table's key; every op carries the same columns. The statement raises in the
// server unless each op found its row.
func updateRows(t *Table, ops []*op) statement {
	where, set, guard := t.where(ops[0].find()), t.assignable(ops[0]), ops[0].guard()
	var s statement
	w := unnest(t, where, findRows(ops), "w", 1)
	u := unnest(t, set, newRows(ops), "c", 1+len(where))
	g := unnest(t, guard, newRows(ops), "g", 1+len(where)+len(set))
	s.takes(w)
	s.takes(u)
	s.takes(g)
	match := t.match(append(where[:len(where):len(where)], guard...), append(w.values, g.values...))
	c := t.changed(set, u.values, joined(false, w, u, g), match, t.replaces(ops[0]))
	return s.of(ops...).expecting(c, len(ops))
}

// updateRow is an update of one row on its own: of one whose key changes (rows may swap or hand on their keys), of one
// of several equal rows of a table without key, or of one that may not be there. It must have the new row's value in the
// columns same already.
func updateRow(t *Table, o *op, same ...int) (statement, rowChange) {
	set, guard := t.assignable(o), append(o.guard(), same...)
	var s statement
	values := s.bind(t, set, o.new)
	match := s.locate(t, o.find())
	if len(guard) > 0 {
		match += " and " + t.match(guard, s.bind(t, guard, o.new))
	}
	return s.of(o), t.changed(set, values, "", match, t.replaces(o))
}

// changed is the rowChange that gives columns values where match holds between t and from. Where replace is set the row
// is deleted and put again, because no UPDATE may set a column GENERATED ALWAYS AS IDENTITY. Where there is nothing to
// set, the row must still be there.
func (t *Table) changed(set []int, values []string, from, match string, replace bool) rowChange {
	list := func(word string) string {
		if from == "" {
			return ""
		}
		return word + from
	}
	switch {
	case replace:
		out := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			out[i] = "t." + c.SQL()
		}
		for i, c := range set {
			out[c] = values[i]
		}
		names := make([]string, len(out))
		for i := range out {
			names[i] = fmt.Sprintf("v%d", i)
			out[i] += " as " + names[i]
		}
		return rowChange{
			before: fmt.Sprintf("gone as (delete from %s t%s where %s returning %s), ", t.destRows(), list(" using "), match, strings.Join(out, ", ")),
			sql: fmt.Sprintf("insert into %s (%s) overriding system value select %s from gone returning 1",
				t.Dest.SQL(), t.columnList(all(len(t.Columns))), strings.Join(names, ", ")),
		}
	case len(set) == 0:
		return rowChange{sql: fmt.Sprintf("select 1 from %s t%s where %s", t.destRows(), list(", "), match)}
	}
	return rowChange{sql: fmt.Sprintf("update %s t set %s%s where %s returning 1", t.destRows(), t.set(set, values), list(" from "), match)}
}

// deleteRows deletes rows found by the table's key and raises unless each op found its row.
func deleteRows(t *Table, ops []*op) statement {
	where := t.where(ops[0].find())
	w := unnest(t, where, findRows(ops), "w", 1)
	var s statement
	s.takes(w)
	return s.of(ops...).expecting(rowChange{sql: fmt.Sprintf("delete from %s t using %s where %s returning 1",
		t.destRows(), joined(false, w), t.match(where, w.values))}, len(ops))
}

// deleteWherever deletes the rows that are there and, for joint ops, returns which ops found one.
func deleteWherever(t *Table, ops []*op) statement {
	where := t.where(ops[0].find())
	w := unnest(t, where, findRows(ops), "w", 1)
	sql := fmt.Sprintf("delete from %s t using %s where %s returning u.n", t.destRows(), joined(true, w), t.match(where, w.values))
	return statement{sql: sql, types: w.types, params: w.params, ops: ops, asks: true}
}

// oneOfEquals deletes or changes one of the rows of a table without key that equal the op's old row in every column.
func oneOfEquals(t *Table, o *op) statement {
	if o.kind == opUpdate {
		s, c := updateRow(t, o)
		return s.expecting(c, 1)
	}
	var s statement
	sql := fmt.Sprintf("delete from %s t where %s returning 1", t.destRows(), s.locate(t, o.find()))
	if o.joint != nil {
		s.sql, s.asks = sql, true // the only op's ordinal is 1
		return s.of(o)
	}
	return s.of(o).expecting(rowChange{sql: sql}, 1)
}

// locate is the condition that t is the row that row tells of: by its key, or one of those that equal it.
func (s *statement) locate(t *Table, row pg.Row) string {
	if len(t.Key) > 0 {
		where := t.where(row)
		return t.match(where, s.bind(t, where, row))
	}
	return fmt.Sprintf("(t.tableoid, t.ctid) = (select r.tableoid, r.ctid from %s r where %s limit 1)", t.destRows(), s.equals(t, row))
}

// equals compares every column of r with what the old row printed: by its output, save for types whose = tells exactly
// the same, because = calls 1.0 and 1.00 the same and does not exist for json.
func (s *statement) equals(t *Table, row pg.Row) string {
	conds := []string{"true"}
	for i, c := range t.Columns {
		switch {
		case row[i].Kind == pg.Null:
			conds = append(conds, fmt.Sprintf("r.%s is not distinct from null", c.SQL()))
		case row[i].Kind == pg.Unchanged:
		case exactlyEqual(c):
			conds = append(conds, fmt.Sprintf("r.%s = %s", c.SQL(), s.bind(t, []int{i}, row)[0]))
		default:
			s.params, s.types = append(s.params, row[i].Bytes), append(s.types, typeText)
			conds = append(conds, fmt.Sprintf(`r.%s is distinct from null and format('%%s', r.%s) collate "C" = $%d`, c.SQL(), c.SQL(), len(s.params)))
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

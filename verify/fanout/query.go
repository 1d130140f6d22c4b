package fanout

import (
	"bytes"
	"fmt"
	"strings"
)

// Query is a question about the rows of one table, as Describe makes it of a person's words.
type Query struct {
	From       string // the table as a statement names it
	GroupBy    []Value
	Aggregates []Aggregate
	Where      string // a condition on the table's columns; empty: every row
	Keys       *Keys  // nil: rows of every key
}

// Value is an expression over a table's columns.
type Value struct {
	Name    string // as it was asked for
	SQL     string
	Type    string // of its value, without modifier
	Collate string // how its values are compared where that could differ from one server to another; begins with a blank
}

// Aggregate is one of a question's, in the parts that a shard is asked for.
type Aggregate struct {
	Name  string // as it was asked for: sum(amount)
	Type  string // of the result
	parts []Value
	merge string // the result, over the parts of all shards: p0 and p1
}

// Keys narrow a question to the rows that carry one of some keys.
type Keys struct {
	Columns []Value
	Values  [][]string // for each key a text for each column
}

// mostGroups is how many groups a question may make.
const mostGroups = 10_000

// parts are what a shard is asked for, in the order of its columns.
func (q *Query) parts() []Value {
	all := append([]Value{}, q.GroupBy...)
	for _, a := range q.Aggregates {
		all = append(all, a.parts...)
	}
	return all
}

// shard is the statement that asks one shard for its part.
func (q *Query) shard() (sql string, args [][]byte) {
	var list, conditions []string
	for _, v := range q.parts() {
		list = append(list, v.SQL)
	}
	if q.Where != "" {
		conditions = append(conditions, "("+q.lines()+")")
	}
	if q.Keys != nil {
		condition, values := q.Keys.condition()
		conditions, args = append(conditions, condition), values
	}
	sql = "select " + strings.Join(list, ", ") + " from " + q.From
	if conditions != nil {
		sql += " where " + strings.Join(conditions, " and ")
	}
	return sql + q.grouped() + fmt.Sprintf(" limit %d", mostGroups+1), args
}

// lines is the condition on lines of its own, so that a comment in it ends with it.
func (q *Query) lines() string { return "\n" + q.Where + "\n" }

// grouped groups by the first columns of a list.
func (q *Query) grouped() string {
	if len(q.GroupBy) == 0 {
		return ""
	}
	numbers := make([]string, len(q.GroupBy))
	for i := range numbers {
		numbers[i] = fmt.Sprint(i + 1)
	}
	return " group by " + strings.Join(numbers, ", ")
}

func (k *Keys) condition() (sql string, args [][]byte) {
	columns, list, arrays, names := make([]string, len(k.Columns)), make([]string, len(k.Columns)), make([]string, len(k.Columns)), make([]string, len(k.Columns))
	for i, c := range k.Columns {
		columns[i], names[i] = c.SQL, fmt.Sprintf("k%d", i)
		list[i] = fmt.Sprintf("u.k%d::%s", i, c.Type)
		arrays[i] = fmt.Sprintf("$%d::text[]", i+1)
		values := make([]*string, len(k.Values))
		for n := range k.Values {
			values[n] = &k.Values[n][i]
		}
		args = append(args, textArray(values))
	}
	return fmt.Sprintf("(%s) in (select %s from unnest(%s) u(%s))",
		strings.Join(columns, ", "), strings.Join(list, ", "), strings.Join(arrays, ", "), strings.Join(names, ", ")), args
}

// merged is the statement that merges rows of the parts, one array of texts a column.
func (q *Query) merged() string {
	var list []string
	at := len(q.GroupBy)
	for i := range q.GroupBy {
		list = append(list, fmt.Sprintf("c%d", i))
	}
	for _, a := range q.Aggregates {
		own := strings.NewReplacer("p0", fmt.Sprintf("c%d", at), "p1", fmt.Sprintf("c%d", at+1))
		list = append(list, own.Replace(a.merge))
		at += len(a.parts)
	}
	return "select " + strings.Join(list, ", ") + " from " + unnested(q.parts()) + q.grouped() + strings.Replace(q.grouped(), "group", "order", 1)
}

// unnested is a table of columns c0, c1, … made of parameters, one array of texts each.
func unnested(columns []Value) string {
	typed, arrays, names := make([]string, len(columns)), make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		typed[i] = fmt.Sprintf("u.c%d::%s%s c%[1]d", i, c.Type, c.Collate)
		arrays[i], names[i] = fmt.Sprintf("$%d::text[]", i+1), fmt.Sprintf("c%d", i)
	}
	return fmt.Sprintf("(select %s from unnest(%s) u(%s)) p", strings.Join(typed, ", "), strings.Join(arrays, ", "), strings.Join(names, ", "))
}

// textArray is an array literal; nil is NULL.
func textArray(values []*string) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		if v == nil {
			b.WriteString("NULL")
			continue
		}
		b.WriteByte('"')
		for _, c := range []byte(*v) {
			if c == '"' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.Bytes()
}

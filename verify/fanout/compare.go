package fanout

import (
	"context"
	"fmt"
	"strings"

	"pgreshard/pg"
)

// State is what came out of comparing two answers.
type State string

// The states of a comparison.
const (
	Equal   State = "equal"
	Differs State = "differs"
	Partial State = "partial" // a shard did not answer: nothing can be said, whatever its lines show
)

// Comparison is one question asked on both sides of a move.
type Comparison struct {
	Table      string   `json:"table"`
	Aggregates []string `json:"aggregates"`
	GroupBy    []string `json:"group_by,omitempty"`
	Where      string   `json:"where,omitempty"`
	Copy       *int     `json:"shard,omitempty"` // of a table that every shard has whole: the one whose copy this is about
	State      State    `json:"state"`
	Lines      []Line   `json:"lines"`

	Source      *Answer `json:"source"`
	Destination *Answer `json:"destination"`
}

// Line is one group on both sides. A side that has no such group has no values.
type Line struct {
	Group       []*string `json:"group,omitempty"`
	Source      []*string `json:"source"`
	Destination []*string `json:"destination"`
	Differs     []string  `json:"differs,omitempty"` // the aggregates that do
}

// Differences is the number of lines that differ.
func (c *Comparison) Differences() (n int64) {
	for _, l := range c.Lines {
		if len(l.Differs) > 0 {
			n++
		}
	}
	return n
}

// Compare puts two answers side by side. Whether groups and values are equal the server says that merged one of them.
func Compare(ctx context.Context, q *Query, source, destination *Answer) (*Comparison, error) {
	c := &Comparison{Table: q.From, Where: q.Where, State: Equal, Lines: []Line{}, Source: source, Destination: destination}
	c.Aggregates, c.GroupBy = q.Words()
	open := source.open
	if open == nil {
		open = destination.open
	}
	if open != nil {
		conn, err := open(ctx)
		if err != nil {
			return nil, fmt.Errorf("compare what the shards said: %w", err)
		}
		defer pg.Close(conn)
		if _, err := conn.PgConn().Exec(ctx, userPath).ReadAll(); err != nil {
			return nil, err
		}
		sql, args := q.paired(source, destination)
		found, err := rows(ctx, conn.PgConn(), sql, args)
		if err != nil {
			return nil, fmt.Errorf("compare what the shards said: %w", err)
		}
		for _, row := range found {
			c.Lines = append(c.Lines, q.line(row, source, destination))
		}
	}
	switch {
	case source.Partial() || destination.Partial():
		c.State = Partial
	case c.Differences() > 0:
		c.State = Differs
	}
	return c, nil
}

// paired is the statement that gives, for each group, which row of each answer it is, and whether each value is equal.
func (q *Query) paired(source, destination *Answer) (sql string, args [][]byte) {
	columns := []Value{{Type: "boolean"}, {Type: "integer"}}
	columns = append(columns, q.GroupBy...)
	for _, a := range q.Aggregates {
		columns = append(columns, Value{Type: a.Type, Collate: a.parts[0].Collate})
	}
	values := make([][]*string, len(columns))
	for side, answer := range map[string]*Answer{"true": source, "false": destination} {
		for i, row := range answer.Rows {
			n := fmt.Sprint(i)
			for k, v := range append(append([]*string{&side, &n}, row.Group...), row.Values...) {
				values[k] = append(values[k], v)
			}
		}
	}
	for _, list := range values {
		args = append(args, textArray(list))
	}
	const one = "(array_agg(%s) filter (where %s))[1]"
	list := []string{fmt.Sprintf(one, "c1", "c0"), fmt.Sprintf(one, "c1", "not c0")}
	for i := range q.Aggregates {
		value := fmt.Sprintf("row(c%d)", 2+len(q.GroupBy)+i)
		list = append(list, fmt.Sprintf(one, value, "c0")+" is not distinct from "+fmt.Sprintf(one, value, "not c0"))
	}
	var groups []string
	for i := range q.GroupBy {
		groups = append(groups, fmt.Sprintf("c%d", 2+i))
	}
	sql = "select " + strings.Join(list, ", ") + " from " + unnested(columns)
	if groups != nil {
		by := strings.Join(groups, ", ")
		sql += " group by " + by + " order by " + by
	}
	return sql, args
}

// line reads a row of paired.
func (q *Query) line(row []*string, source, destination *Answer) (l Line) {
	of := func(at *string, a *Answer) []*string {
		if at == nil {
			return nil
		}
		var n int
		_, _ = fmt.Sscan(*at, &n) // a number that was sent
		l.Group = a.Rows[n].Group
		return a.Rows[n].Values
	}
	l.Source, l.Destination = of(row[0], source), of(row[1], destination)
	for i, equal := range row[2:] {
		if equal == nil || *equal != "t" {
			l.Differs = append(l.Differs, q.Aggregates[i].Name)
		}
	}
	return l
}

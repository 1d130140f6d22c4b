package fanout

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

// Question is a Query in a person's words.
type Question struct {
	Table      *pg.Table
	From       string   // Table as a statement names it
	Aggregates []string // count, or count, sum, avg, min or max of a column
	GroupBy    []string // columns
	Where      string   // a condition on the table's columns; empty: every row
	KeyColumns []string // those Keys are of
	Keys       [][]string
}

// Problem is what makes a question unfit.
type Problem struct{ What, Hint string }

// describing is a Question while a server is asked what it means.
type describing struct {
	Question
	server   *pgconn.PgConn
	problems []Problem
	types    map[uint32]string // names of types
}

const (
	userPath = `set search_path = "$user", public`
	ownPath  = `set search_path = pg_catalog`
	typeName = `select pg_catalog.format_type($1::oid, -1) from pg_catalog.set_config('search_path', 'pg_catalog', true) own_path` // with its schema
)

// Describe asks a server what a question means there, and for everything that makes it unfit. conn is in no transaction;
// nothing is changed, what is tried is rolled back. An error means that the server could not be asked.
func Describe(ctx context.Context, conn *pgx.Conn, question Question) (*Query, []Problem, error) {
	d := &describing{Question: question, server: conn.PgConn(), types: map[uint32]string{}}
	q := &Query{From: d.From, Where: d.Where}
	if err := d.exec(ctx, userPath); err != nil {
		return nil, nil, err
	}
	defer func() { _ = d.exec(context.WithoutCancel(ctx), ownPath) }()
	for _, name := range d.GroupBy {
		v, err := d.grouping(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		q.GroupBy = append(q.GroupBy, v)
	}
	for _, text := range d.Aggregates {
		a, err := d.aggregate(ctx, text)
		if err != nil {
			return nil, nil, err
		}
		q.Aggregates = append(q.Aggregates, a)
	}
	if len(d.problems) == 0 {
		if err := d.condition(ctx, q); err != nil {
			return nil, nil, err
		}
	}
	if len(d.problems) == 0 && len(d.Keys) > 0 {
		if err := d.keys(ctx, q); err != nil {
			return nil, nil, err
		}
	}
	if len(d.problems) > 0 {
		return nil, d.problems, nil
	}
	return q, nil, nil
}

func (d *describing) problem(hint, what string, args ...any) {
	d.problems = append(d.problems, Problem{fmt.Sprintf(what, args...), hint})
}

func (d *describing) exec(ctx context.Context, sql string) error {
	_, err := d.server.Exec(ctx, sql).ReadAll()
	return err
}

// column finds a column by its name.
func (d *describing) column(name string) (c pg.Column, ok bool) {
	if i, found := d.Table.Column(name); found {
		return d.Table.Columns[i], true
	}
	var names []string
	for _, c := range d.Table.Columns {
		names = append(names, c.Name)
	}
	d.problem("its columns: "+strings.Join(names, ", "), "%s has no column %q", d.Table.Name, name)
	return c, false
}

// typeOf is the type of an expression over the table, or what the server says against it.
func (d *describing) typeOf(ctx context.Context, expression string) (name string, oid uint32, refused *pgconn.PgError, err error) {
	s, err := d.server.Prepare(ctx, "", "select "+expression+" from "+d.From, nil)
	if errors.As(err, &refused) && !pg.Transient(err) {
		return "", 0, refused, nil
	}
	if err != nil {
		return "", 0, nil, err
	}
	oid = s.Fields[0].DataTypeOID
	if d.types[oid] == "" {
		r := d.server.ExecParams(ctx, typeName, [][]byte{fmt.Append(nil, oid)}, nil, nil, nil).Read()
		if r.Err != nil {
			return "", 0, nil, r.Err
		}
		d.types[oid] = string(r.Rows[0][0])
	}
	return d.types[oid], oid, nil, nil
}

// collated is how values of a column are compared: by bytes where they have a collation at all, since that of one server
// need not be another's.
func (d *describing) collated(ctx context.Context, c pg.Column) (string, error) {
	const bytes = ` collate "C"`
	_, _, refused, err := d.typeOf(ctx, c.SQL()+bytes)
	if refused != nil {
		return "", err
	}
	return bytes, err
}

func (d *describing) grouping(ctx context.Context, name string) (v Value, err error) {
	c, ok := d.column(name)
	if !ok {
		return v, nil
	}
	v = Value{Name: name, SQL: c.SQL()}
	if v.Collate, err = d.collated(ctx, c); err != nil {
		return v, err
	}
	v.SQL += v.Collate
	var refused *pgconn.PgError
	if v.Type, _, refused, err = d.typeOf(ctx, v.SQL); err != nil || refused == nil {
		_, _, refused, err = d.typeOf(ctx, "count(*) over (partition by "+v.SQL+" order by "+v.SQL+")")
	}
	if refused != nil {
		d.problem("group by a column of another type", "rows cannot be grouped by %s: %s", name, refused.Message)
	}
	return v, err
}

var aggregateWords = regexp.MustCompile(`^(?:(count)|(count|sum|avg|min|max)\((.+)\))$`)

// aggregate says how a shard is asked for an aggregate, and how what the shards say is merged.
func (d *describing) aggregate(ctx context.Context, text string) (Aggregate, error) {
	m := aggregateWords.FindStringSubmatch(text)
	switch {
	case m == nil:
		d.problem("count, sum(column), avg(column), min(column) or max(column)", "%q cannot be merged over shards", text)
		return Aggregate{}, nil
	case m[1] != "":
		return countOf(text, "*"), nil
	}
	function := m[2]
	c, ok := d.column(m[3])
	switch {
	case !ok:
		return Aggregate{}, nil
	case function == "count":
		return countOf(text, c.SQL()), nil
	case function == "min" || function == "max":
		return d.extreme(ctx, text, function, c)
	}
	return d.total(ctx, text, function, c)
}

func countOf(text, of string) Aggregate {
	return Aggregate{Name: text, Type: "bigint", parts: []Value{{SQL: "count(" + of + ")", Type: "bigint"}}, merge: "coalesce(sum(p0), 0)::bigint"}
}

// extreme is min or max.
func (d *describing) extreme(ctx context.Context, text, function string, c pg.Column) (Aggregate, error) {
	collate, err := d.collated(ctx, c)
	if err != nil {
		return Aggregate{}, err
	}
	sql := fmt.Sprintf("%s(%s%s)", function, c.SQL(), collate)
	typ, _, refused, err := d.typeOf(ctx, sql)
	if refused != nil {
		d.untaken(function, c, refused)
	}
	return Aggregate{Name: text, Type: typ, parts: []Value{{SQL: sql, Type: typ, Collate: collate}}, merge: function + "(p0)"}, err
}

const (
	typeInt8, typeFloat4, typeFloat8, typeMoney, typeInterval, typeNumeric = 20, 700, 701, 790, 1186, 1700
)

// total is sum or avg. A sum of floats depends on the order of the rows, which no two shards share; the decimal numbers that
// floats are written as add up to one sum in any.
func (d *describing) total(ctx context.Context, text, function string, c pg.Column) (Aggregate, error) {
	of := c.SQL()
	typ, oid, refused, err := d.typeOf(ctx, fmt.Sprintf("%s(%s)", function, of))
	divisor := ""
	switch {
	case err != nil:
		return Aggregate{}, err
	case refused != nil:
		d.untaken(function, c, refused)
		return Aggregate{}, nil
	case oid == typeFloat4, oid == typeFloat8:
		of, typ = of+"::text::numeric", "numeric"
	case oid == typeInt8, oid == typeNumeric:
		typ = "numeric"
	case oid == typeInterval:
		divisor = "::double precision" // there is no other way to divide an interval
	case oid != typeMoney:
		d.problem("sum a column of a number's or an interval's type", "%s gives %s, which cannot be merged over shards", text, typ)
	}
	sum := Value{SQL: "sum(" + of + ")", Type: typ}
	if function == "sum" {
		return Aggregate{Name: text, Type: typ, parts: []Value{sum}, merge: "sum(p0)"}, nil
	}
	return Aggregate{Name: text, Type: typ, parts: []Value{sum, {SQL: "count(" + of + ")", Type: "bigint"}}, merge: "sum(p0) / nullif(sum(p1), 0)" + divisor}, nil
}

func (d *describing) untaken(function string, c pg.Column, refused *pgconn.PgError) {
	d.problem("take another column, or count it", "%s does not take %s, which is of type %s: %s", function, c.Name, c.Type, refused.Message)
}

// condition has the server read and plan the question as it will be asked, and then the condition alone, in a place where
// nothing but an expression can stand. It is a condition of the row, the same whenever and wherever it is asked.
func (d *describing) condition(ctx context.Context, q *Query) error {
	sql, _ := q.shard()
	var refused *pgconn.PgError
	err := d.rolledBack(ctx, "begin read only", func() error {
		s, err := d.server.Prepare(ctx, "", sql, nil)
		if err != nil {
			return err
		}
		if len(s.ParamOIDs) > 0 {
			d.problem("write a value", "where has a parameter, and nothing gives it a value")
			return nil
		}
		return d.server.ExecParams(ctx, "explain "+sql, nil, nil, nil, nil).Read().Err
	})
	if err == nil && q.Where != "" && len(d.problems) == 0 {
		err = d.rolledBack(ctx, "begin", func() error { return d.alone(ctx, q) })
	}
	if errors.As(err, &refused) && !pg.Transient(err) {
		hint := "one condition on columns of " + d.Table.Name.String() + ", as it may stand behind WHERE, and no other statement"
		if refused.Code == "42501" {
			hint = "grant the role select on the table, and temporary on the database"
		}
		d.problem(hint, "where: the server does not take it: %s (SQLSTATE %s)", refused.Message, refused.Code)
		return nil
	}
	return err
}

// What a condition reads and calls is asked of the server: made part of a function of this session's temporary schema, which
// is rolled back, it stands in the catalog. A function that takes nothing and is not immutable tells of the session, the server or the time.
const (
	condition     = `select case when (%s) then 1 end from %s`
	makeCondition = `create function pg_temp.pgreshard_where() returns setof integer language sql begin atomic %s; end`
	selectReads   = `
select distinct d.refobjid::regclass::text from pg_catalog.pg_proc p join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_proc'::regclass and d.objid = p.oid
 where p.proname = 'pgreshard_where' and p.pronamespace = pg_my_temp_schema() and d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid <> $1::oid`
	selectCalls = `
with body as (select prosqlbody::text as text from pg_catalog.pg_proc where proname = 'pgreshard_where' and pronamespace = pg_my_temp_schema())
select distinct f.oid::regprocedure::text
  from body, regexp_matches(body.text, ':(?:funcid|opfuncid|aggfnoid|winfnoid) ([1-9][0-9]*)', 'g') m, pg_catalog.pg_proc f
 where f.oid = m[1]::oid and (f.provolatile = 'v' or f.provolatile = 's' and (f.oid >= 16384 or f.pronargs = 0))
union all
select 'the time, or who asks' from body where body.text ~ 'SQLVALUEFUNCTION' order by 1`
)

func (d *describing) alone(ctx context.Context, q *Query) error {
	sql := fmt.Sprintf(condition, q.lines(), d.From)
	if _, err := d.server.Prepare(ctx, "", sql, nil); err != nil {
		return err
	}
	if standby, err := d.texts(ctx, "select pg_is_in_recovery()"); err != nil || standby[0] == "t" { // which makes no function
		return err
	}
	if err := d.server.ExecParams(ctx, fmt.Sprintf(makeCondition, sql), nil, nil, nil, nil).Read().Err; err != nil {
		return err
	}
	others, err := d.texts(ctx, selectReads, fmt.Append(nil, d.Table.OID))
	if err != nil {
		return err
	}
	if len(others) > 0 {
		d.problem("a shard has only its own rows of other tables: write a condition on the table's own columns", "where reads %s as well", strings.Join(others, ", "))
	}
	calls, err := d.texts(ctx, selectCalls)
	if len(calls) > 0 {
		d.problem("write a value, and call nothing but immutable functions and stable ones of PostgreSQL itself",
			"where asks for %s, whose answer need not be the same on both sides", strings.Join(calls, ", "))
	}
	return err
}

func (d *describing) texts(ctx context.Context, sql string, args ...[]byte) (list []string, err error) {
	r := d.server.ExecParams(ctx, sql, args, nil, nil, nil).Read()
	for _, row := range r.Rows {
		list = append(list, string(row[0]))
	}
	return list, r.Err
}

func (d *describing) rolledBack(ctx context.Context, begin string, do func() error) error {
	err := d.exec(ctx, begin)
	if err == nil {
		err = do()
	}
	return errors.Join(err, d.exec(context.WithoutCancel(ctx), "rollback"))
}

// keys has the server read the keys as values of their columns.
func (d *describing) keys(ctx context.Context, q *Query) error {
	q.Keys = &Keys{Values: d.Keys}
	for i, name := range d.KeyColumns {
		c, ok := d.column(name)
		if !ok {
			return nil
		}
		v := Value{Name: name, SQL: c.SQL(), Type: c.Base}
		q.Keys.Columns = append(q.Keys.Columns, v)
		values := make([]*string, len(d.Keys))
		for n := range d.Keys {
			values[n] = &d.Keys[n][i]
		}
		err := d.server.ExecParams(ctx, "select count(u::"+c.Base+") from unnest($1::text[]) u", [][]byte{textArray(values)}, nil, nil, nil).Read().Err
		var refused *pgconn.PgError
		if errors.As(err, &refused) && !pg.Transient(err) {
			d.problem("write each as PostgreSQL prints it", "keys: one is no value of %s, which is of type %s (SQLSTATE %s)", name, c.Type, refused.Code)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Words are the aggregates' names, as they were asked for.
func (q *Query) Words() (aggregates, groups []string) {
	for _, a := range q.Aggregates {
		aggregates = append(aggregates, a.Name)
	}
	for _, v := range q.GroupBy {
		groups = append(groups, v.Name)
	}
	return slices.Clip(aggregates), groups
}

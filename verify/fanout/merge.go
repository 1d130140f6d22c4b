package fanout

import (
	"context"

	"pgreshard/pg"
)

// merge makes one answer of the parts, on the first server that can; what the shards failed with stays with it.
func (r *Request) merge(ctx context.Context, parts []part) (*Answer, error) {
	a := &Answer{Asked: []Asked{}}
	columns := make([][]*string, len(r.Query.parts()))
	for _, p := range parts {
		if p.err != nil {
			return nil, p.err
		}
		a.Failures = append(a.Failures, p.failures...)
		if p.conn == nil {
			continue
		}
		a.Asked = append(a.Asked, Asked{Shard: p.shard.Number, Node: p.node.Name, Leads: p.node.Leads})
		for _, row := range p.rows {
			for i, value := range row {
				columns[i] = append(columns[i], value)
			}
		}
	}
	args := make([][]byte, len(columns))
	for i, values := range columns {
		args[i] = textArray(values)
	}
	var failed []Failure
	for _, p := range parts {
		if p.conn == nil {
			continue
		}
		found, err := rows(ctx, p.conn.PgConn(), r.Query.merged(), args)
		if err == nil && len(found) > mostGroups {
			err = ErrTooManyGroups
		}
		if err == nil {
			a.Rows, a.open = r.Query.split(found), p.node.Open
			return a, nil
		}
		if !pg.Transient(err) {
			return nil, err
		}
		failed = append(failed, failureOf(p.shard.Number, p.node.Name, err))
	}
	a.Failures = append(a.Failures, failed...)
	return a, context.Cause(ctx)
}

func (q *Query) split(found [][]*string) []Row {
	out := make([]Row, len(found))
	for i, row := range found {
		out[i] = Row{Group: row[:len(q.GroupBy)], Values: row[len(q.GroupBy):]}
	}
	return out
}

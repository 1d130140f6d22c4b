package sink

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// batch is a run of statements that goes to the server in one round trip. Statements are prepared once a connection,
// in the same trip.
type batch struct {
	a     *applier
	sends []send
}

type send struct {
	simple    string // a command without parameters
	statement *statement
}

func (a *applier) batch() *batch { return &batch{a: a} }

func (b *batch) simple(sql string) { b.sends = append(b.sends, send{simple: sql}) }
func (b *batch) send(s *statement) { b.sends = append(b.sends, send{statement: s}) }

// sendBytes of values are enough to be sent before the rest is there.
const sendBytes = 256 << 10

// run sends everything with one Sync and reads every result; the first error is returned. Joint ops are settled only
// when all went well.
func (b *batch) run(ctx context.Context) error {
	if len(b.sends) == 0 {
		return nil
	}
	defer b.a.stream.counters.asks(b.a.shard)()
	p := b.a.conn.PgConn().StartPipeline(ctx)
	fresh := map[string]string{}
	unsent := 0
	for _, s := range b.sends {
		if s.statement == nil {
			p.SendQueryParams(s.simple, nil, nil, nil, nil)
			continue
		}
		name := b.a.prepared[s.statement.sql]
		if name == "" {
			name = fresh[s.statement.sql]
		}
		if name == "" {
			name = fmt.Sprintf("s%d", b.a.nextName)
			b.a.nextName++
			fresh[s.statement.sql] = name
			p.SendPrepare(name, s.statement.sql, s.statement.types)
		}
		p.SendQueryPrepared(name, s.statement.params, nil, nil)
		for _, value := range s.statement.params {
			unsent += len(value)
		}
		if unsent >= sendBytes { // the server begins, and no second copy of the whole batch is held
			if err := p.Flush(); err != nil {
				return errors.Join(err, p.Close())
			}
			unsent = 0
		}
	}
	if err := p.Sync(); err != nil {
		return errors.Join(err, p.Close())
	}
	hits, err := b.read(p)
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	for sql, name := range fresh {
		b.a.prepared[sql] = name
	}
	return b.settle(hits)
}

// read collects, per statement that asks, the ordinals of its ops that hit a row.
func (b *batch) read(p *pgconn.Pipeline) (map[*statement][]int, error) {
	hits := map[*statement][]int{}
	var first error
	next := 0
	for {
		result, err := p.GetResults()
		if err != nil {
			if first == nil {
				first = err
			}
			if b.a.conn.PgConn().IsClosed() {
				return nil, first
			}
			continue
		}
		switch r := result.(type) {
		case *pgconn.PipelineSync:
			return hits, first
		case *pgconn.ResultReader:
			s := b.sends[next].statement
			next++
			for r.NextRow() {
				if s != nil && s.asks {
					var n int
					fmt.Sscan(string(r.Values()[0]), &n)
					hits[s] = append(hits[s], n-1)
				}
			}
			if _, err := r.Close(); err != nil && first == nil {
				first = err
			}
		case nil:
			return hits, first
		}
	}
}

// settle counts which joint deletes found their row; the last shard to answer finds out whether exactly one did.
func (b *batch) settle(hits map[*statement][]int) error {
	for _, s := range b.sends {
		if s.statement == nil || !s.statement.asks {
			continue
		}
		for _, n := range hits[s.statement] {
			if j := s.statement.ops[n].joint; j != nil {
				j.hits.Add(1)
			}
		}
		for _, o := range s.statement.ops {
			if err := b.a.answered(o); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *applier) answered(o *op) error {
	if o.joint == nil || o.joint.pending.Add(-1) > 0 {
		return nil
	}
	found := o.joint.hits.Load()
	if found == 1 || found == 0 && o.joint.loss {
		return nil
	}
	a.stream.counters.zeroRows(a.shard)
	e := &DivergedError{Table: o.table.Source, Shard: a.shard, At: o.at, Key: keyText(o.find(), o.table.Key), What: "delete of a row that is on no shard"}
	if found > 1 {
		e.What = fmt.Sprintf("delete of a row that is on %d shards", found)
	}
	return e
}

package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Names in a lookup_query resolve as for a user who has set nothing: our sessions run with search_path pg_catalog,
// so the path is set for the question and put back behind it, for this transaction only.
const (
	enterPath = `select set_config('pgreshard.search_path', current_setting('search_path'), true),
		set_config('search_path', '"$user", public', true)`
	leavePath = `select set_config('search_path', current_setting('pgreshard.search_path'), true)`
)

// pipelineKeys bounds the questions in flight on one connection.
const pipelineKeys = 4096

// Ask asks one server for keys in text form: one round trip for up to 4,096 of them, pipelined, or, where the query knows how to ask
// for many, in one statement. Inside an open transaction it
// sees what that transaction sees and leaves it as it was; no row, NULL and several rows are answers, not errors.
// An error of the server (a key its parameter's type does not take, a dropped mapping table) fails the transaction.
//
// The query is prepared once per connection. The parameter's type is left to the server, so that a key means to it
// what a literal would.
func Ask(ctx context.Context, conn *pgconn.PgConn, q *Query, keys [][]byte) ([]Answer, error) {
	answers := make([]Answer, 0, len(keys))
	for len(keys) > 0 {
		n := min(len(keys), pipelineKeys)
		var some []Answer
		var err error
		if n >= manyKeys && q.Many != "" {
			some, err = askMany(ctx, conn, q.Many, keys[:n])
		} else {
			some, err = askPipelined(ctx, conn, q.SQL, keys[:n])
		}
		if err != nil {
			return nil, err
		}
		answers = append(answers, some...)
		keys = keys[n:]
	}
	return answers, nil
}

// Conn makes an Asker of a connection; its questions are part of whatever transaction is open there.
func Conn(conn *pgconn.PgConn) Asker {
	return AskerFunc(func(ctx context.Context, q *Query, keys [][]byte) ([]Answer, error) {
		return Ask(ctx, conn, q, keys)
	})
}

// manyKeys are enough to be worth an array.
const manyKeys = 8

// askMany asks in one statement.
func askMany(ctx context.Context, conn *pgconn.PgConn, sql string, keys [][]byte) ([]Answer, error) {
	at := make(map[string]int, len(keys))
	array := []byte{'{'}
	for i, key := range keys {
		if _, twice := at[string(key)]; !twice {
			at[string(key)] = i
			array = appendElement(array, key)
		}
	}
	array[len(array)-1] = '}' // of the last comma
	answers := make([]Answer, len(keys))
	err := exchange(ctx, conn, sql, [][]byte{array}, func(r *pgconn.ResultReader) error {
		for r.NextRow() {
			values := r.Values()
			i, asked := at[string(values[0])]
			if !asked {
				return errors.New("a lookup answered for a key that was not asked")
			}
			answers[i].add(values[1])
		}
		_, err := r.Close()
		return err
	})
	for i, key := range keys {
		answers[i] = answers[at[string(key)]]
	}
	return answers, err
}

// appendElement appends an element of an array's text, and a comma.
func appendElement(array, key []byte) []byte {
	array = append(array, '"')
	for _, c := range key {
		if c == '"' || c == '\\' {
			array = append(array, '\\')
		}
		array = append(array, c)
	}
	return append(array, '"', ',')
}

// askPipelined asks for one key after the other, without waiting in between.
func askPipelined(ctx context.Context, conn *pgconn.PgConn, sql string, keys [][]byte) ([]Answer, error) {
	answers := make([]Answer, 0, len(keys))
	err := exchange(ctx, conn, sql, keys, func(r *pgconn.ResultReader) error {
		var a Answer
		for r.NextRow() {
			a.add(r.Values()[0])
		}
		answers = append(answers, a)
		_, err := r.Close()
		return err
	})
	return answers, err
}

// add adds a row's column.
func (a *Answer) add(value []byte) {
	if a.Rows++; a.Rows == 1 {
		a.Value = bytes.Clone(value)
		a.Null = value == nil
	}
}

// exchange runs a query once for each of its parameters, in one round trip, and has each result read.
func exchange(ctx context.Context, conn *pgconn.PgConn, sql string, params [][]byte, read func(*pgconn.ResultReader) error) error {
	known := preparedOn(conn)
	var fresh []string
	p := conn.StartPipeline(ctx)
	run := func(sql string, params ...[]byte) {
		name, prepared := known.names[sql]
		if !prepared {
			name = known.next()
			known.names[sql] = name
			fresh = append(fresh, sql)
			p.SendPrepare(name, sql, nil)
		}
		p.SendQueryPrepared(name, params, nil, nil)
	}
	run(enterPath)
	for _, param := range params {
		run(sql, param)
	}
	run(leavePath)
	err := p.Sync()
	if err == nil {
		err = readResults(p, len(params), read)
	}
	if closed := p.Close(); err == nil {
		err = closed
	}
	if err != nil {
		known.forget(append(fresh, sql)) // the error may say that sql is stale: 0A000 after its table was altered
	}
	return err
}

// readResults reads what one exchange brings up to its sync: the path's result, n of the query, the path's.
func readResults(p *pgconn.Pipeline, n int, read func(*pgconn.ResultReader) error) error {
	for seen := 0; ; {
		result, err := p.GetResults()
		if err != nil {
			return err
		}
		switch r := result.(type) {
		case *pgconn.StatementDescription:
		case *pgconn.PipelineSync:
			return nil
		case *pgconn.ResultReader:
			if 0 < seen && seen <= n {
				err = read(r)
			} else {
				_, err = r.Close()
			}
			if seen++; err != nil {
				return err
			}
		default:
			return fmt.Errorf("a lookup got %T where it expected its rows", result)
		}
	}
}

// statements are the lookup queries prepared on one connection, by their SQL.
type statements struct {
	names map[string]string
	made  int
}

// next gives a name no statement of this connection has had, so that one that went stale can be left behind.
func (s *statements) next() string {
	s.made++
	return fmt.Sprintf("pgreshard_lookup_%d", s.made)
}

// forget makes the next use of these queries prepare them anew.
func (s *statements) forget(queries []string) {
	for _, sql := range queries {
		delete(s.names, sql)
	}
}

const statementsKey = "pgreshard.lookup.statements"

func preparedOn(conn *pgconn.PgConn) *statements {
	data := conn.CustomData()
	s, ok := data[statementsKey].(*statements)
	if !ok {
		s = &statements{names: map[string]string{}}
		data[statementsKey] = s
	}
	return s
}

// AddUp adds one shard's answers to those of others: a sharded mapping answers from exactly one.
func AddUp(total, answers []Answer) {
	for i, answer := range answers {
		if answer.Rows > 0 {
			answer.Rows += total[i].Rows
			total[i] = answer
		}
	}
}

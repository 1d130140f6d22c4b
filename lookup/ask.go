package lookup

import (
	"bytes"
	"context"
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

// Ask asks one server for keys in text form: one pipelined round trip for up to 4,096 of them. Inside an open transaction it
// sees what that transaction sees and leaves it as it was; no row, NULL and several rows are answers, not errors.
// An error of the server (a key its parameter's type does not take, a dropped mapping table) fails the transaction.
//
// The query is prepared once per connection. The parameter's type is left to the server, so that a key means to it
// what a literal would.
func Ask(ctx context.Context, conn *pgconn.PgConn, q *Query, keys [][]byte) ([]Answer, error) {
	answers := make([]Answer, 0, len(keys))
	for len(keys) > 0 {
		n := min(len(keys), pipelineKeys)
		some, err := askPipelined(ctx, conn, q.SQL, keys[:n])
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

func askPipelined(ctx context.Context, conn *pgconn.PgConn, sql string, keys [][]byte) ([]Answer, error) {
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
	for _, key := range keys {
		run(sql, key)
	}
	run(leavePath)
	err := p.Sync()

	var answers []Answer
	if err == nil {
		answers, err = readAnswers(p, len(keys))
	}
	if closed := p.Close(); err == nil {
		err = closed
	}
	if err != nil {
		known.forget(append(fresh, sql)) // the error may say that sql is stale: 0A000 after its table was altered
		return nil, err
	}
	return answers, nil
}

// readAnswers reads the results of one askPipelined up to its sync.
func readAnswers(p *pgconn.Pipeline, keys int) ([]Answer, error) {
	answers := make([]Answer, 0, keys)
	path := true // the first result is enterPath's
	for {
		result, err := p.GetResults()
		if err != nil {
			return nil, err
		}
		switch r := result.(type) {
		case *pgconn.StatementDescription:
		case *pgconn.PipelineSync:
			return answers, nil
		case *pgconn.ResultReader:
			answer, err := readAnswer(r)
			if err != nil {
				return nil, err
			}
			if !path && len(answers) < keys {
				answers = append(answers, answer)
			}
			path = false
		default:
			return nil, fmt.Errorf("a lookup got %T where it expected its rows", result)
		}
	}
}

func readAnswer(r *pgconn.ResultReader) (Answer, error) {
	var a Answer
	for r.NextRow() {
		a.Rows++
		if a.Rows > 1 {
			continue
		}
		if a.Value = bytes.Clone(r.Values()[0]); a.Value == nil {
			a.Null = true
		}
	}
	_, err := r.Close()
	return a, err
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

package verify

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
	"pgreshard/verify/fanout"
)

// node is a Node with the sessions opened on it so far.
type node struct {
	Node
	side     string // "source" or "shard"
	encoding string // server_encoding

	mu   sync.Mutex
	idle []*pgx.Conn
	dead *Failure // set where it could not be reached at all: it is not tried again
}

// beginScan opens the transaction of one scan, and what it sets ends with it: money has one text form everywhere, and a
// grouping by key stays in memory as long as that is cheap.
const beginScan = "begin isolation level repeatable read read only; %s set local lc_monetary = 'C'; set local work_mem = '64MB'"

// use runs f in a read-only transaction of its own, with settings beside those of every scan, on this node. Errors come
// back as *Failure.
func (n *node) use(ctx context.Context, settings string, f func(*pgconn.PgConn) error) error {
	conn, err := n.take(ctx)
	if err == nil {
		err = n.scan(ctx, conn, settings, f)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &Failure{Side: n.side, Number: n.Number, Reason: fanout.Reason(err), err: err}
}

func (n *node) scan(ctx context.Context, conn *pgx.Conn, settings string, f func(*pgconn.PgConn) error) error {
	server := conn.PgConn()
	err := simple(ctx, server, fmt.Sprintf(beginScan, n.snapshot())+settings)
	if err == nil {
		err = f(server)
	}
	if err == nil {
		err = simple(ctx, server, "commit")
	}
	if err != nil {
		pg.Close(conn) // a failed scan may have left rows unread
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.idle = append(n.idle, conn)
	return nil
}

// simple runs commands without results in one round trip.
func simple(ctx context.Context, server *pgconn.PgConn, sql string) error {
	_, err := server.Exec(ctx, sql).ReadAll()
	return err
}

// snapshot is the command that makes a transaction read under the node's snapshot, or nothing.
func (n *node) snapshot() string {
	if n.Snapshot == "" {
		return ""
	}
	return "set transaction snapshot '" + strings.ReplaceAll(n.Snapshot, "'", "''") + "';"
}

func (n *node) take(ctx context.Context) (*pgx.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead != nil {
		return nil, n.dead.err
	}
	if last := len(n.idle) - 1; last >= 0 {
		conn := n.idle[last]
		n.idle = n.idle[:last]
		return conn, nil
	}
	n.mu.Unlock()
	conn, err := n.Open(ctx)
	n.mu.Lock()
	return conn, err
}

// reach opens the first session, learns the encoding, and marks the node dead where that fails.
func (n *node) reach(ctx context.Context) {
	err := n.use(ctx, "", func(conn *pgconn.PgConn) error {
		n.encoding = conn.ParameterStatus("server_encoding")
		return nil
	})
	if f, ok := err.(*Failure); ok {
		n.dead = f
	}
}

func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	leave := n.Keep
	if leave == nil {
		leave = pg.Close
	}
	for _, conn := range n.idle {
		leave(conn)
	}
	n.idle = nil
}

// each reads the rows of one statement, in text form. The values are valid until f returns.
func each(ctx context.Context, conn *pgconn.PgConn, sql string, args [][]byte, f func(values [][]byte) error) error {
	result := conn.ExecParams(ctx, sql, args, nil, nil, nil)
	var err error
	for err == nil && result.NextRow() {
		err = f(result.Values())
	}
	if _, closed := result.Close(); err == nil {
		err = closed
	}
	return err
}

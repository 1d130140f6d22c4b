package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// sessions keeps one open connection a node and role, because inside a freeze a new one costs milliseconds.
type sessions struct {
	mu   sync.Mutex
	open map[sessionKey]*session
}

type sessionKey struct {
	side   *Side
	number int
	role   pg.Role
}

type session struct {
	mu   sync.Mutex // one caller at a time
	conn *pgx.Conn
	used time.Time // last
}

// idleLong is after how long a session is asked whether it still answers: its server may have gone and come back, and what
// fails on it within a freeze costs that attempt.
const idleLong = time.Second

func (s *sessions) of(key sessionKey) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[sessionKey]*session{}
	}
	if s.open[key] == nil {
		s.open[key] = &session{}
	}
	return s.open[key]
}

func (s *sessions) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.open {
		pg.Close(one.conn)
	}
	s.open = nil
}

// spares are idle sessions that wait for their next use. A verification leaves those it opened here.
type spares struct {
	mu   sync.Mutex
	idle map[sessionKey][]*pgx.Conn
}

func (s *spares) keep(key sessionKey, conn *pgx.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == nil {
		s.idle = map[sessionKey][]*pgx.Conn{}
	}
	s.idle[key] = append(s.idle[key], conn)
}

// take gives nil where none is left that still answers as far as is known.
func (s *spares) take(key sessionKey) *pgx.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := len(s.idle[key]); n > 0; n = len(s.idle[key]) {
		conn := s.idle[key][n-1]
		s.idle[key] = s.idle[key][:n-1]
		if !conn.IsClosed() {
			return conn
		}
	}
	return nil
}

func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conns := range s.idle {
		for _, conn := range conns {
			pg.Close(conn)
		}
	}
	s.idle = nil
}

// with runs fn on the node's kept session, in no transaction; a session fn left broken or inside one is closed. An error of a
// broken one names the node.
func (s *session) with(ctx context.Context, open func(context.Context) (*pgx.Conn, error), name func() string, fn func(*pgx.Conn) error) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && time.Since(s.used) > idleLong && s.conn.Ping(ctx) != nil {
		pg.Close(s.conn)
	}
	if s.conn != nil && s.conn.IsClosed() {
		s.conn = nil
	}
	if s.conn == nil {
		if s.conn, err = open(ctx); err != nil {
			return err
		}
	}
	err = fn(s.conn)
	s.used = time.Now()
	if err != nil && s.conn.IsClosed() && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("%s: %w", name(), err)
	}
	if err != nil && (s.conn.IsClosed() || s.conn.PgConn().TxStatus() != 'I') {
		pg.Close(s.conn)
		s.conn = nil
	}
	return err
}

// source and dest run fn on a session of one shard; home is the destination's first, where the bookkeeping lives.
func (m *Move) source(ctx context.Context, n int, fn func(*pgx.Conn) error) error {
	return m.kept(ctx, sessionKey{&m.Source, n, pg.Admin}, fn)
}

func (m *Move) dest(ctx context.Context, n int, fn func(*pgx.Conn) error) error {
	return m.kept(ctx, sessionKey{&m.Destination, n, pg.Writer}, fn)
}

func (m *Move) kept(ctx context.Context, key sessionKey, fn func(*pgx.Conn) error) error {
	return m.sessions.of(key).with(ctx, func(ctx context.Context) (*pgx.Conn, error) {
		return m.connect(ctx, key.side.Shards[key.number], key.role)
	}, func() string { return m.nodeWords(node{key.side == &m.Source, key.number}) }, fn)
}

// connect opens a session, which a worker that has been superseded does not get: those it had were ended by its successor.
func (m *Move) connect(ctx context.Context, shard pg.Shard, role pg.Role) (*pgx.Conn, error) {
	conn, err := pg.Open(ctx, shard, role, m.app())
	if err != nil && m.anyNode && role == pg.Reader {
		return m.openReplica(ctx, shard, err)
	}
	if err != nil || role == pg.Reader || m.book.Epoch == 0 {
		return conn, err
	}
	if err := m.book.Check(ctx, conn); err != nil {
		pg.Close(conn)
		return nil, err
	}
	return conn, nil
}

func (m *Move) home(ctx context.Context, fn func(*pgx.Conn) error) error {
	if m.forward != nil {
		return m.forward.home(ctx, fn)
	}
	if m.publishesOnly() {
		return m.source(ctx, 0, fn)
	}
	return m.dest(ctx, 0, fn)
}

// on runs fn on a session of its own.
func (m *Move) on(ctx context.Context, shard pg.Shard, role pg.Role, fn func(*pgx.Conn) error) error {
	conn, err := m.connect(ctx, shard, role)
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	return fn(conn)
}

// sources and dests run fn on every shard of a side at once and give the first error after all have ended.
func (m *Move) sources(ctx context.Context, fn func(ctx context.Context, n int, conn *pgx.Conn) error) error {
	return atOnce(ctx, len(m.Source.Shards), func(ctx context.Context, n int) error {
		return m.source(ctx, n, func(conn *pgx.Conn) error { return fn(ctx, n, conn) })
	})
}

func (m *Move) dests(ctx context.Context, fn func(ctx context.Context, n int, conn *pgx.Conn) error) error {
	return atOnce(ctx, len(m.Destination.Shards), func(ctx context.Context, n int) error {
		return m.dest(ctx, n, func(conn *pgx.Conn) error { return fn(ctx, n, conn) })
	})
}

// nodes runs fn on every shard of both sides.
func (m *Move) nodes(ctx context.Context, fn func(ctx context.Context, conn *pgx.Conn) error) error {
	return m.each(ctx, m.allNodes(), func(ctx context.Context, _ node, conn *pgx.Conn) error { return fn(ctx, conn) })
}

type onNode func(ctx context.Context, n node, conn *pgx.Conn) error

// each runs fn on nodes at once and gives every error, after all have ended.
func (m *Move) each(ctx context.Context, list []node, fn onNode) error {
	failed := make([]error, len(list))
	_ = atOnce(ctx, len(list), func(ctx context.Context, i int) error {
		on := m.dest
		if list[i].source {
			on = m.source
		}
		failed[i] = on(ctx, list[i].number, func(conn *pgx.Conn) error { return fn(ctx, list[i], conn) })
		return nil
	})
	return errors.Join(failed...)
}

// atOnce runs fn for 0 to n-1 at the same time; one that fails does not stop the others.
func atOnce(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	var g errgroup.Group
	for i := range n {
		g.Go(func() error { return fn(ctx, i) })
	}
	return g.Wait()
}

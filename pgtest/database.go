package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgreshard/pg"
)

// DB is one database of a cluster, as its superuser reaches it.
type DB struct {
	Cluster *Cluster
	Name    string

	addr string // host:port of the cluster or of a relay before it
}

var databaseNumber atomic.Int64

// cleanupLimit bounds what a test's end may wait for a server that it broke.
const cleanupLimit = 20 * time.Second

// Database makes an empty database that is dropped, with its logical slots, when the test ends.
func (c *Cluster) Database(t testing.TB) *DB {
	t.Helper()
	db, err := c.NewDatabase(t.Context(), databaseName(t.Name()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		if err := db.Drop(ctx); err != nil && c.Running() {
			t.Logf("clean up: %v", err)
		}
	})
	return db
}

// databaseName makes a name of at most 63 bytes that shows the test it belongs to and is unique in this process.
func databaseName(test string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(strings.TrimPrefix(test, "Test")))
	return fmt.Sprintf("%.40s_%d", clean, databaseNumber.Add(1))
}

// NewDatabase makes an empty database of the name given.
func (c *Cluster) NewDatabase(ctx context.Context, name string) (*DB, error) {
	db := &DB{Cluster: c, Name: name, addr: c.Addr()}
	err := c.asAdmin(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()+" template template0")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create database %s: %w", name, err)
	}
	return db, nil
}

// Existing is a database that is there already, as on a standby; nothing drops it.
func (c *Cluster) Existing(name string) *DB { return &DB{Cluster: c, Name: name, addr: c.Addr()} }

// asAdmin runs f on a connection to the maintenance database.
func (c *Cluster) asAdmin(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return f(conn)
}

const (
	databaseSlots = `select slot_name::text, active_pid from pg_replication_slots where database = $1`
	endBackend    = `select pg_terminate_backend($1)`
	dropSlot      = `select pg_drop_replication_slot($1)`
)

// Drop drops the database with its logical slots, ending whoever uses either.
func (db *DB) Drop(ctx context.Context) error {
	err := db.Cluster.asAdmin(ctx, func(conn *pgx.Conn) error {
		if err := db.dropSlots(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "drop database if exists "+pgx.Identifier{db.Name}.Sanitize()+" with (force)")
		return err
	})
	if err != nil {
		return fmt.Errorf("drop database %s: %w", db.Name, err)
	}
	return nil
}

// dropSlots repeats until none is left: a slot stays in use for a moment after its walsender was told to end.
func (db *DB) dropSlots(ctx context.Context, conn *pgx.Conn) error {
	type slot struct {
		Name string
		PID  *int32
	}
	for {
		rows, err := conn.Query(ctx, databaseSlots, db.Name)
		if err != nil {
			return err
		}
		slots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[slot])
		if err != nil || len(slots) == 0 {
			return err
		}
		var failed error
		for _, s := range slots {
			if s.PID != nil {
				_, _ = conn.Exec(ctx, endBackend, *s.PID)
			}
			if _, err := conn.Exec(ctx, dropSlot, s.Name); err != nil {
				failed = err
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(failed, ctx.Err())
		}
	}
}

// URL is the database's connection string.
func (db *DB) URL() string { return urlOf(db.addr, db.Name) }

func urlOf(addr, database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable", addr, url.PathEscape(database))
}

// Via is the same database reached through a relay.
func (db *DB) Via(r *Relay) *DB {
	return &DB{Cluster: db.Cluster, Name: db.Name, addr: r.Addr()}
}

// Shard is the database as the product names it.
func (db *DB) Shard(number int) pg.Shard { return pg.FixedURL(number, db.URL()) }

// Connect opens a session with the settings a plain client has.
func (db *DB) Connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, db.URL())
	if err != nil {
		return nil, fmt.Errorf("connect to database %s: %w", db.Name, err)
	}
	return conn, nil
}

// Conn opens a session that is closed when the test ends.
func (db *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	conn, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// Exec runs SQL in a session of its own; without arguments it may be several statements.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	conn, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\nin: %.300s", err, sql)
	}
}

// Query runs one SQL statement in a session of its own and returns its rows as text, NULL as `\N`.
func (db *DB) Query(t testing.TB, sql string, args ...any) [][]string {
	t.Helper()
	conn, err := db.Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	rows, err := queryText(t.Context(), conn, sql, args...)
	if err != nil {
		t.Fatalf("%v\nin: %.300s", err, sql)
	}
	return rows
}

// Session asks a database again and again in one session, which it opens anew where that is lost. To be asked by one goroutine.
type Session struct {
	db   *DB
	conn *pgx.Conn // nil: none is open
}

// Session gives a session that is open from the first Query on until the test ends.
func (db *DB) Session(t testing.TB) *Session {
	s := &Session{db: db}
	t.Cleanup(s.close)
	return s
}

// Query is DB.Query in this session.
func (s *Session) Query(t testing.TB, sql string, args ...any) [][]string {
	t.Helper()
	if s.conn != nil {
		if rows, err := queryText(t.Context(), s.conn, sql, args...); err == nil {
			return rows
		}
		s.close()
	}
	var err error
	if s.conn, err = s.db.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	rows, err := queryText(t.Context(), s.conn, sql, args...)
	if err != nil {
		t.Fatalf("%v\nin: %.300s", err, sql)
	}
	return rows
}

func (s *Session) close() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	_ = s.conn.Close(ctx)
	s.conn = nil
}

func queryText(ctx context.Context, conn *pgx.Conn, sql string, args ...any) ([][]string, error) {
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]string, error) {
		values := make([]string, len(row.RawValues()))
		for i, v := range row.RawValues() {
			values[i] = string(v)
			if v == nil {
				values[i] = `\N`
			}
		}
		return values, nil
	})
}

package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Role says what a session is for, and with that which settings it needs.
type Role int

const (
	// Reader reads a source: nothing it runs may write.
	Reader Role = iota
	// Admin changes bookkeeping, schema and fence.
	Admin
	// Writer writes moved rows: session_replication_role is replica, so that no user trigger fires and no foreign
	// key is asked about rows that arrive in another order.
	Writer
)

// settings are sent in the startup packet of every session, because a role or a database may carry any of them with
// another value (ALTER ROLE … SET) and would change the text of a value or end a long session.
var settings = map[string]string{
	"client_encoding":                     "UTF8",
	"DateStyle":                           "ISO, MDY",
	"IntervalStyle":                       "postgres",
	"TimeZone":                            "UTC",
	"extra_float_digits":                  "3",
	"bytea_output":                        "hex",
	"xmloption":                           "content",
	"lc_monetary":                         "C",
	"array_nulls":                         "on",
	"quote_all_identifiers":               "off",
	"search_path":                         "pg_catalog",
	"statement_timeout":                   "0",
	"lock_timeout":                        "0",
	"idle_in_transaction_session_timeout": "0",
	"idle_session_timeout":                "0",
	"default_transaction_read_only":       "off",
	"default_transaction_isolation":       "read committed",
	"row_security":                        "off",
	"synchronous_commit":                  "on",
	"standard_conforming_strings":         "on",
	"check_function_bodies":               "off",
	"jit":                                 "off",
}

// Config resolves where a shard is and how a session there is set up; app becomes application_name. Which of several
// hosts leads only Open finds out.
func Config(shard Shard, role Role, app string) (*pgx.ConnConfig, error) {
	url, err := shard.URL()
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", shard, err)
	}
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("address of %s is not a connection string Postgres understands: %w", shard, redacted(err))
	}
	maps.Copy(c.RuntimeParams, settings)
	maps.Copy(c.RuntimeParams, shard.Settings)
	c.RuntimeParams["application_name"] = app
	if role == Writer {
		c.RuntimeParams["session_replication_role"] = "replica"
	}
	c.AfterConnect = endNoTransaction
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	return c, nil
}

// endNoTransaction is what settings cannot hold, because servers before 17 refuse a setting they do not know.
func endNoTransaction(ctx context.Context, conn *pgconn.PgConn) error {
	var major int
	if _, err := fmt.Sscanf(conn.ParameterStatus("server_version"), "%d", &major); err != nil || major < 17 {
		return nil
	}
	return conn.Exec(ctx, "set transaction_timeout = 0").Close()
}

// redacted keeps a connection string, which may hold a password, out of an error.
func redacted(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		if inner := errors.Unwrap(parse); inner != nil {
			return inner
		}
		return errors.New("not a URL or a list of key=value")
	}
	return err
}

// Open connects to a shard's primary with every setting that matters pinned. Of several hosts the one that leads is
// taken, and none where two do; what is known of the shard is checked. adjust, if any, has the last word on the rest.
func Open(ctx context.Context, shard Shard, role Role, app string, adjust ...func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	c, err := Config(shard, role, app)
	if err != nil {
		return nil, err
	}
	if c, err = atLeader(ctx, shard, c); err != nil {
		return nil, err
	}
	for _, f := range adjust {
		f(c)
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", shard, &openError{err})
	}
	return conn, nil
}

// OpenReplication opens a logical replication session (replication=database). Notices the server sends on it are
// handed to notice, which may be nil.
func OpenReplication(ctx context.Context, shard Shard, app string, notice func(*pgconn.Notice)) (*pgconn.PgConn, error) {
	c, err := Config(shard, Admin, app)
	if err != nil {
		return nil, err
	}
	if c, err = atLeader(ctx, shard, c); err != nil {
		return nil, err
	}
	c.RuntimeParams["replication"] = "database"
	if notice != nil {
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notice(n) }
	}
	conn, err := pgconn.ConnectConfig(ctx, &c.Config)
	if err != nil {
		return nil, fmt.Errorf("replication connection to %s: %w", shard, &openError{err})
	}
	return conn, nil
}

const closeWait = 2 * time.Second

// Close ends a session without waiting longer than the server needs to be told; the error of a broken one means nothing.
func Close(conn *pgx.Conn) {
	if conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		_ = conn.Close(ctx)
	}
}

// Transient says that the same work may succeed when it is done again on a new connection: the connection broke, the
// server is starting or stopping, a lock or serialization conflict was lost, or connections ran out. It is false for
// an ended context.
func Transient(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	var other *OtherSystemError
	var leaders *LeadersError
	var none *NoLeaderError
	switch {
	case errors.As(err, &leaders):
		return true
	case errors.As(err, &none):
		return slices.ContainsFunc(none.Why, Transient)
	case errors.As(err, &other):
		return false
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return transientCode(server.Code)
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.Timeout(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		strings.Contains(err.Error(), "conn closed")
}

func transientCode(code string) bool {
	switch code {
	case "40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "55006", "25006":
		return true
	}
	return strings.HasPrefix(code, "08")
}

// Code is the SQLSTATE of a server's error, empty where err came from elsewhere.
func Code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

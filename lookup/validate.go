package lookup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Description is what a server makes of a lookup_query.
type Description struct {
	Columns    int
	Params     []uint32 // type OIDs on that server
	Result     uint32   // type OID of the first result column, 0 where there is none
	ResultType string   // its name, as format_type has it; empty where there is none
	Problems   []string // what makes it unfit to be a lookup_query, none where it is fit; each ends in a hint
}

const (
	validateTimeout = "select set_config('statement_timeout', '5000', true)"
	beginReadOnly   = "begin read only"
	resultTypeName  = "select format_type($1::oid, $2::int)"
)

// Validate asks a server whether sql can be a lookup_query: one statement, exactly the parameter $1, one result
// column, and nothing written. It prepares the query and runs it once for a NULL key in a read-only transaction,
// which it rolls back; conn must have no transaction open. An error means that the server could not be asked.
func Validate(ctx context.Context, conn *pgconn.PgConn, sql string) (*Description, error) {
	for _, setup := range []string{beginReadOnly, enterPath, validateTimeout} {
		if _, err := conn.Exec(ctx, setup).ReadAll(); err != nil {
			return nil, fmt.Errorf("validate a lookup_query: %w", err)
		}
	}
	defer rollback(conn)

	d := &Description{}
	prepared, err := conn.Prepare(ctx, "", sql, nil)
	if err != nil {
		return d, d.refused("the server does not take it", err, "correct the SQL; names without schema are looked for in public")
	}
	if d.describe(prepared); len(d.Problems) > 0 {
		return d, nil
	}
	return d, d.try(ctx, conn, prepared)
}

// describe checks what the server said about the prepared query.
func (d *Description) describe(s *pgconn.StatementDescription) {
	d.Columns, d.Params = len(s.Fields), s.ParamOIDs
	if len(s.ParamOIDs) != 1 {
		d.problem("it has %d parameters; hint: write the key as $1, and nothing else as a parameter", len(s.ParamOIDs))
	}
	if len(s.Fields) != 1 {
		d.problem("it has %d result columns; hint: select the translated key alone", len(s.Fields))
	}
	if len(s.Fields) > 0 {
		d.Result = s.Fields[0].DataTypeOID
	}
}

// try runs the query for a key that is NULL, which shows that it writes nothing and locks nothing.
func (d *Description) try(ctx context.Context, conn *pgconn.PgConn, s *pgconn.StatementDescription) error {
	typmod := fmt.Sprint(s.Fields[0].TypeModifier)
	result := conn.ExecPrepared(ctx, "", [][]byte{nil}, nil, nil).Read()
	if result.Err != nil {
		return d.refused("it fails", result.Err, "a lookup_query only reads; it may not write or lock rows")
	}
	name := conn.ExecParams(ctx, resultTypeName, [][]byte{[]byte(fmt.Sprint(d.Result)), []byte(typmod)}, nil, nil, nil).Read()
	if name.Err != nil {
		return fmt.Errorf("validate a lookup_query: %w", name.Err)
	}
	d.ResultType = string(name.Rows[0][0])
	return nil
}

// refused makes a problem of a server's error; any other error is the caller's.
func (d *Description) refused(what string, err error, hint string) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return fmt.Errorf("validate a lookup_query: %w", err)
	}
	if server.Code == "42501" { // insufficient_privilege
		hint = "grant the role what the query reads: usage on the schema, select on the tables, execute on functions"
	}
	d.problem("%s: %s (SQLSTATE %s); hint: %s", what, server.Message, server.Code, hint)
	return nil
}

func (d *Description) problem(format string, args ...any) {
	d.Problems = append(d.Problems, fmt.Sprintf(format, args...))
}

// rollback leaves the connection as it was found, also after the caller's context has ended.
func rollback(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback").ReadAll()
}

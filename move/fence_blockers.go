package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Blocker is a transaction that holds up a freeze.
type Blocker struct {
	PID       int32  // 0 for a prepared transaction
	Prepared  string // its gid; empty for a session's
	User      string
	App       string
	Age       time.Duration // of the transaction
	Statement string        // without values, cut; empty for a prepared transaction
}

// String names the blocker for an operator.
func (b Blocker) String() string {
	age := b.Age.Round(100 * time.Millisecond)
	if b.Prepared != "" {
		return fmt.Sprintf("prepared transaction %q of %s, %s old", b.Prepared, b.User, age)
	}
	return fmt.Sprintf("pid %d of %s, %s old: %s", b.PID, b.User, age, b.Statement)
}

// Who holds the fence's lock shared has written to a fenced table; who has a transaction ID has written somewhere.
const selectBlockers = `
select a.pid, '', coalesce(a.usename, ''), a.application_name, extract(epoch from clock_timestamp() - a.xact_start)::float8, a.query
  from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
   and a.xact_start <= clock_timestamp() - make_interval(secs => $1)
   and (a.backend_xid is not null or exists (
        select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory' and l.granted
           and l.classid = 1885827699 and l.objid = 1 and l.objsubid = 2))
union all
select 0, gid, owner, '', extract(epoch from clock_timestamp() - prepared)::float8, ''
  from pg_prepared_xacts where database = current_database()
 order by 5 desc`

// Without this right other roles' transactions look as if they had not begun, and standbys as if there were none.
const selectSeesAll = `select pg_has_role('pg_read_all_stats', 'usage')`

// errBlind means that the worker's role lost, after the plan, the right to see what a freeze must wait for.
var errBlind = errors.New("other roles' transactions and standbys cannot be seen; hint: grant pg_monitor to the worker's role, on the source")

// blockers lists transactions of this database that have written and are open for longer than given, and every
// prepared one, oldest first.
func blockers(ctx context.Context, q pg.Querier, olderThan time.Duration) ([]Blocker, error) {
	var sees bool
	if err := q.QueryRow(ctx, selectSeesAll).Scan(&sees); err != nil {
		return nil, fmt.Errorf("look for transactions in the way: %w", err)
	}
	if !sees {
		return nil, errBlind
	}
	rows, err := q.Query(ctx, selectBlockers, olderThan.Seconds())
	if err != nil {
		return nil, fmt.Errorf("look for transactions in the way: %w", err)
	}
	var out []Blocker
	var b Blocker
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&b.PID, &b.Prepared, &b.User, &b.App, &seconds, &b.Statement}, func() error {
		b.Age = time.Duration(seconds * float64(time.Second))
		b.Statement = withoutValues(b.Statement)
		out = append(out, b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for transactions in the way: %w", err)
	}
	return out, nil
}

const selectHolders = `
select a.pid, coalesce(a.usename, ''), extract(epoch from clock_timestamp() - a.xact_start)::float8, a.query
  from pg_locks l join pg_stat_activity a using (pid)
 where l.relation = $1::text::regclass and l.database = (select oid from pg_database where datname = current_database())
   and l.granted and a.pid <> pg_backend_pid() and a.xact_start is not null
 order by 3 desc`

// holders names, in words, the oldest session that has a lock on a table; empty where none is seen.
func holders(ctx context.Context, q pg.Querier, table pg.Name) string {
	var b Blocker
	var seconds float64
	if err := q.QueryRow(ctx, selectHolders, table.SQL()).Scan(&b.PID, &b.User, &seconds, &b.Statement); err != nil {
		return ""
	}
	b.Age, b.Statement = time.Duration(seconds*float64(time.Second)), withoutValues(b.Statement)
	return b.String()
}

const statementLength = 200

// withoutValues puts '?' for every literal of a statement and takes comments out, which carry values too. A literal
// that the server cut off ends with the statement.
func withoutValues(sql string) string {
	var b strings.Builder
	for i := 0; i < len(sql) && b.Len() < statementLength; {
		c, rest := sql[i], sql[i:]
		switch {
		case c == '\'':
			i += literalEnd(rest, i > 0 && (sql[i-1] == 'e' || sql[i-1] == 'E'))
			b.WriteByte('?')
		case c == '"':
			n := len(rest)
			if end := strings.IndexByte(rest[1:], '"'); end >= 0 {
				n = end + 2
			}
			b.WriteString(rest[:n])
			i += n
		case dollarTag(rest) != "":
			tag := dollarTag(rest)
			i += len(rest)
			if end := strings.Index(rest[len(tag):], tag); end >= 0 {
				i += end + 2*len(tag) - len(rest)
			}
			b.WriteByte('?')
		case strings.HasPrefix(rest, "--"):
			i += endOr(strings.IndexByte(rest, '\n'), len(rest))
		case strings.HasPrefix(rest, "/*"):
			i += endOr(strings.Index(rest, "*/")+2, len(rest))
			b.WriteByte(' ')
		case isWord(c):
			n := 1
			for n < len(rest) && (isWord(rest[n]) || rest[n] == '$' || rest[n] == '.' && isDigit(c)) {
				n++
			}
			if isDigit(c) && (i == 0 || sql[i-1] != '$') {
				b.WriteByte('?')
			} else {
				b.WriteString(rest[:n])
			}
			i += n
		default:
			b.WriteByte(c)
			i++
		}
	}
	return strings.ToValidUTF8(strings.Join(strings.Fields(b.String()), " "), "?")
}

// literalEnd is the length of the string literal at the start of s.
func literalEnd(s string, backslashes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case backslashes && s[i] == '\\':
			i++
		case s[i] == '\'' && i+1 < len(s) && s[i+1] == '\'':
			i++
		case s[i] == '\'':
			return i + 1
		}
	}
	return len(s)
}

// dollarTag is the $tag$ that s starts with, empty where it starts with none (a parameter is $1).
func dollarTag(s string) string {
	if s[0] != '$' {
		return ""
	}
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '$':
			return s[:i+1]
		case !isWord(s[i]) || i == 1 && isDigit(s[i]):
			return ""
		}
	}
	return ""
}

func endOr(n, otherwise int) int {
	if n <= 1 {
		return otherwise
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

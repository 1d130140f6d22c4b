package move_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hand writes random transactions to one source. What the server refuses is rolled back and forgotten.
type hand struct {
	*rand.Rand
	conn    *pgx.Conn
	shapes  []*shape
	tenants []int // those of this source
	id      int   // ids of this source are congruent to it modulo ids
	ids     int
	writes  *atomic.Int64 // statements that were acknowledged
	n       int
}

func (h *hand) someID() int     { return h.IntN(25)*h.ids + h.id }
func (h *hand) someTenant() int { return h.tenants[h.IntN(len(h.tenants))] }

func (h *hand) expression(v value) string {
	if h.IntN(6) == 0 {
		return "null"
	}
	return fmt.Sprintf(v.expression, h.IntN(1000))
}

func (h *hand) insert(s *shape) string {
	columns, values := []string{"id", "tenant", "a"}, []string{fmt.Sprint(h.someID()), fmt.Sprint(h.someTenant()), fmt.Sprint(h.IntN(6))}
	for _, v := range s.values {
		columns, values = append(columns, v.column), append(values, h.expression(v))
	}
	return fmt.Sprintf("insert into %s (%s) values (%s)", s.name, strings.Join(columns, ", "), strings.Join(values, ", "))
}

// statement is one random change of one table, or, on a lone source, of the tenants' mapping.
func (h *hand) statement() string {
	if h.ids == 1 && h.IntN(25) == 0 {
		parent := fmt.Sprint(h.someTenant())
		if h.IntN(3) == 0 {
			parent = "null"
		}
		return fmt.Sprintf("update tenants set parent = %s where id = %d", parent, h.someTenant())
	}
	s := h.shapes[h.IntN(len(h.shapes))]
	where := fmt.Sprintf("where id = %d", h.someID())
	switch h.IntN(5) {
	case 0:
		where = fmt.Sprintf("where tenant = %d", h.someTenant())
	case 1:
		where = fmt.Sprintf("where (tableoid, ctid) = (select tableoid, ctid from %s where id = %d limit 1)", s.name, h.someID())
	}
	switch h.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		return h.insert(s)
	case 6, 7, 8, 9, 10:
		if len(s.values) > 0 {
			v := s.values[h.IntN(len(s.values))]
			return fmt.Sprintf("update %s set %s = %s %s", s.name, v.column, h.expression(v), where)
		}
		fallthrough
	case 11, 12:
		return fmt.Sprintf("update %s set a = %d %s", s.name, h.IntN(6), where)
	case 13, 14:
		return fmt.Sprintf("update %s set tenant = %d %s", s.name, h.someTenant(), where)
	case 15:
		return fmt.Sprintf("update %s set id = %d, tenant = %d %s", s.name, h.someID(), h.someTenant(), where)
	case 16: // two rows change places
		return fmt.Sprintf("update %[1]s set id = case id when %[2]d then %[3]d else %[2]d end where id in (%[2]d, %[3]d)", s.name, h.someID(), h.someID())
	case 17:
		if h.IntN(60) == 0 {
			return "truncate " + s.name
		}
	case 18:
		if !s.omni && s.rule.LookupQuery == "" && !strings.Contains(strings.Join(s.columns, ","), "tenant bigint not null") && h.ids == 1 {
			return fmt.Sprintf("update %s set tenant = null %s", s.name, where)
		}
	}
	return fmt.Sprintf("delete from %s %s", s.name, where)
}

// transaction is some of them, with savepoints that are rolled back, and now and then prepared first.
func (h *hand) transaction(ctx context.Context) error {
	if h.IntN(3) > 0 {
		return h.exec(ctx, h.statement(), 1)
	}
	list := []string{"begin"}
	for range h.IntN(6) + 1 {
		switch h.IntN(5) {
		case 0:
			list = append(list, "savepoint a", h.statement(), "rollback to a")
		default:
			list = append(list, h.statement())
		}
	}
	h.n++
	switch name := fmt.Sprintf("p%d_%d", h.conn.PgConn().PID(), h.n); h.IntN(12) {
	case 0:
		list = append(list, "rollback")
	case 1:
		list = append(list, fmt.Sprintf("prepare transaction '%s'; commit prepared '%[1]s'", name))
	default:
		list = append(list, "commit")
	}
	return h.exec(ctx, strings.Join(list, ";"), len(list)-2)
}

func (h *hand) exec(ctx context.Context, sql string, writes int) error {
	// One command a message: a batch in one message would be one transaction.
	for _, one := range strings.Split(sql, ";") {
		if _, err := h.conn.PgConn().Exec(ctx, one).ReadAll(); err != nil {
			if h.conn.PgConn().TxStatus() != 'I' {
				_, _ = h.conn.PgConn().Exec(context.WithoutCancel(ctx), "rollback").ReadAll()
			}
			return fmt.Errorf("%w in %s", err, one)
		}
	}
	h.writes.Add(int64(writes))
	return nil
}

// pause is between two transactions of a writer: a stream that has to search for rows must keep up with them. Every so
// many writes it grows by as much again, for machines on which the stream does not.
const pause = 20 * time.Millisecond

// run writes until the layout it knows serves no more, or ctx ends.
func (h *hand) run(ctx context.Context, switched func() bool) error {
	for ; ctx.Err() == nil; time.Sleep(time.Duration(h.Int64N(int64(2*pause))) * time.Duration(1+h.writes.Load()/2500)) {
		err := h.transaction(ctx)
		var refused *pgconn.PgError
		switch {
		case err == nil:
		case !errors.As(err, &refused):
			if ctx.Err() != nil {
				return nil
			}
			return err
		case refused.Code == "25006":
			if switched() {
				return nil
			}
		case refused.Code[:2] == "42" || refused.Code[:2] == "22": // the test's own mistake, or an identity that is lacking
			return err
		}
	}
	return nil
}

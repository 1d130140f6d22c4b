package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// oneByOne does ops again in their order, each alone, after their batch failed because of rows: either it was the
// order within the batch, and this succeeds, or the one that fails is named.
func (a *applier) oneByOne(ctx context.Context, ops []op, cause error) error {
	if !rowsRefused(cause) {
		return checkpoints.Refused(cause)
	}
	if _, err := a.conn.Exec(ctx, "rollback to savepoint batch"); err != nil {
		return err // not cause: a lost shard is tried again, a refused row is not
	}
	for i := range ops {
		statements := planned(ops[i : i+1])
		run := a.runAlone
		if ops[i].kind == opUpsert {
			run = a.runMakingRoom
		}
		if err := run(ctx, &ops[i], statements); err != nil {
			return a.diverged(&ops[i], err)
		}
	}
	return nil
}

func (a *applier) runAlone(ctx context.Context, _ *op, statements []statement) error {
	b := a.batch()
	for j := range statements {
		b.send(&statements[j])
	}
	return b.run(ctx)
}

// runMakingRoom runs an upsert. A row that holds one of its unique values comes from a later moment than the stream is
// at, since the source has both: it is removed, and the stream brings it again.
func (a *applier) runMakingRoom(ctx context.Context, o *op, statements []statement) error {
	for {
		b := a.batch()
		b.simple("savepoint upsert")
		for j := range statements {
			b.send(&statements[j])
		}
		b.simple("release savepoint upsert")
		refused := b.run(ctx)
		if refused == nil || pg.Code(refused) != "23505" {
			return refused
		}
		if _, err := a.conn.Exec(ctx, "rollback to savepoint upsert"); err != nil {
			return err
		}
		if removed, err := a.makeRoom(ctx, o, refused); err != nil || removed == 0 {
			return cmp.Or(err, refused)
		}
	}
}

// uniqueColumns are a unique index's columns, NULL for an expression, and its predicate.
const uniqueColumns = `
select array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality k(n, o)
               left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.n and k.n > 0
              where o <= i.indnkeyatts order by o),
       coalesce(pg_get_expr(i.indpred, i.indrelid), 'true')
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = $1 and c.relname = $2`

// makeRoom deletes the row that a unique index refused o's new row for; 0 where which it is cannot be told.
func (a *applier) makeRoom(ctx context.Context, o *op, refused error) (removed int64, err error) {
	var server *pgconn.PgError
	if !errors.As(refused, &server) {
		return 0, nil
	}
	var names []*string
	var predicate string
	if err := a.conn.QueryRow(ctx, uniqueColumns, server.SchemaName, server.ConstraintName).Scan(&names, &predicate); err != nil {
		return 0, fmt.Errorf("read unique index %s: %w", server.ConstraintName, err)
	}
	var columns []int
	for _, name := range names {
		i := slices.IndexFunc(o.table.Columns, func(c pg.Column) bool { return name != nil && c.Name == *name })
		if i < 0 {
			return 0, nil
		}
		columns = append(columns, i)
	}
	var s statement
	table := rowsOf(pg.Name{Schema: server.SchemaName, Table: server.TableName}, false) // whose index it is holds the row itself
	s.sql = fmt.Sprintf("delete from %s t where %s and (%s)", table, o.table.match(columns, s.bind(o.table, columns, o.new)), predicate)
	result := a.exec(ctx, s)
	return result.CommandTag.RowsAffected(), result.Err
}

// rowsRefused says that a statement failed because of which rows are there: a count that is off, a unique or an
// exclusion constraint, an ON CONFLICT that would touch a row twice.
func rowsRefused(err error) bool {
	switch pg.Code(err) {
	case checkpoints.CodeRows, "23505", "23P01", "21000":
		return true
	}
	return false
}

func (a *applier) diverged(o *op, err error) error {
	if !rowsRefused(err) {
		return checkpoints.Refused(err)
	}
	e := &DivergedError{Table: o.table.Source, Shard: a.shard, At: o.at, Key: keyText(o.find(), o.table.Key)}
	missing := pg.Code(err) == checkpoints.CodeRows
	switch {
	case missing && o.table.loose() && o.joint == nil,
		missing && o.kind == opUpdate && len(o.guard()) > 0 && o.at > a.stream.careful[o.table].end:
		return &carefulError{table: o.table, at: o.at}
	case missing && o.kind == opUpdate:
		e.What = "update of a row that is not there"
	case missing:
		e.What = "delete of a row that is not there"
	case o.kind == opUpdate:
		e.What = "update to a unique value that is there already"
	default:
		e.What = "insert of a row that is there already"
	}
	if !missing {
		e.Err = fmt.Errorf("SQLSTATE %s", pg.Code(err))
	}
	a.stream.counters.zeroRows(a.shard)
	return e
}

package move

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/survey"
)

// PlannedStatement is a statement of the application that the new layout cannot send to one shard: it names a sharded
// table and, behind WHERE, ON or USING, none of its key.
type PlannedStatement struct {
	Table   string  `json:"table"`
	Key     string  `json:"key"`
	Query   string  `json:"query"` // its beginning, without values
	Calls   int64   `json:"calls"`
	Seconds float64 `json:"seconds"` // of the server, all calls together
}

// lostStatements is how many are named, those that took the most time.
const lostStatements = 10

// Of each statement that reads or changes rows; its constants are $1 already.
const selectStatements = `select query, sum(calls)::bigint, sum(total_exec_time) / 1000 from %s.pg_stat_statements
	where dbid = (select oid from pg_database where datname = current_database()) and strpos(query, '` + survey.Mark + `') = 0 and query ~* '^\s*(select|update|delete|with|merge)'
	group by query order by 3 desc limit 2000`

// checkStatements finds the statements that lose their shard, where pg_stat_statements tells which there are.
func (p *planner) checkStatements(ctx context.Context, inv *inventory) error {
	for n, shard := range p.Source.Shards {
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			var schema string
			err := conn.QueryRow(ctx, `select coalesce((select n.nspname from pg_extension e join pg_namespace n on n.oid = e.extnamespace
				where e.extname = 'pg_stat_statements'), '')`).Scan(&schema)
			if err != nil || schema == "" {
				return err
			}
			rows, err := conn.Query(ctx, fmt.Sprintf(selectStatements, ident(schema)))
			if err != nil {
				return err
			}
			var s PlannedStatement
			_, err = pgx.ForEachRow(rows, []any{&s.Query, &s.Calls, &s.Seconds}, func() error {
				if t := inv.spread(s.Query); t != nil && !inv.looksUp(s.Query) {
					s.Query = withoutValues(s.Query) // the extension leaves them where it had no room to take them out
					s.Table, s.Key = t.name.String(), strings.Join(t.rule.Columns, ", ")
					p.plan.Statements = append(p.plan.Statements, s)
				}
				return nil
			})
			return err
		})
		if err != nil {
			p.note("which statements lose their shard is not known: source %d: %s", n, oneLine(err))
		}
	}
	slices.SortStableFunc(p.plan.Statements, func(a, b PlannedStatement) int {
		return int(min(max(b.Seconds-a.Seconds, -1), 1))
	})
	p.plan.Statements = p.plan.Statements[:min(lostStatements, len(p.plan.Statements))]
	return ctx.Err()
}

// looksUp says that a statement is a lookup_query, which this program has asked itself.
func (inv *inventory) looksUp(query string) bool {
	return slices.ContainsFunc(inv.tables, func(t *moved) bool { return t.query != nil && t.query.SQL == query })
}

var word = regexp.MustCompile(`[\pL_][\pL\pN_$]*`)

// spread is a sharded table that a statement names without its key. It goes by words: a statement that names the key of
// another table of the same name counts as one that has it.
func (inv *inventory) spread(query string) *moved {
	words := word.FindAllString(strings.ToLower(query), -1)
	from := slices.IndexFunc(words, func(w string) bool { return w == "where" || w == "on" || w == "using" })
	var conditions []string
	if from >= 0 {
		conditions = words[from:]
	}
	for _, t := range inv.tables {
		if len(t.rule.Columns) == 0 || !slices.Contains(words, strings.ToLower(t.name.Table)) {
			continue
		}
		if slices.ContainsFunc(t.rule.Columns, func(c string) bool { return !slices.Contains(conditions, strings.ToLower(c)) }) {
			return t
		}
	}
	return nil
}

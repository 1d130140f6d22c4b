package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// checkHazards names what would go wrong behind the move's back, or break it late: partitions that cannot be published,
// text of no known encoding, subscriptions and rules that write where they should not.
func (p *planner) checkHazards(ctx context.Context, inv *inventory) {
	for n, catalog := range inv.sources {
		where := fmt.Sprintf("source shard %d", n)
		parts := inv.parts(catalog)
		for _, part := range parts {
			if part.IsLeaf() && part.Persistence != 'p' {
				p.problem(part.Name.String(), "it is an unlogged partition, whose changes are not in the log", "alter table "+part.Name.SQL()+" set logged")
			}
		}
		err := p.on(ctx, p.Source.Shards[n], pg.Reader, func(conn *pgx.Conn) error {
			if conn.PgConn().ParameterStatus("server_encoding") == "SQL_ASCII" {
				p.checkASCII(ctx, where)
			}
			if err := p.checkSubscribed(ctx, where, conn, oidsOf(parts)); err != nil || !p.CreateSchema {
				return err
			}
			return p.checkRules(ctx, conn, oidsOf(parts))
		})
		if err != nil {
			p.problem(where, "its subscriptions and rules cannot be read: "+oneLine(err), "")
		}
	}
	if !p.CreateSchema {
		p.checkRulesThere(ctx, inv)
	}
}

// checkASCII: a server does not convert text out of SQL_ASCII, and takes none that is not valid in its own encoding.
func (p *planner) checkASCII(ctx context.Context, where string) {
	for _, shard := range p.Destination.Shards {
		same := true
		_ = p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error { // one that does not answer is a problem already
			same = conn.PgConn().ParameterStatus("server_encoding") == "SQL_ASCII"
			return nil
		})
		if !same {
			p.problem(where, "its encoding is SQL_ASCII: in which encoding its text is, is not known, so that it cannot be converted",
				"dump the database and restore it into one of its text's true encoding, and move that")
			return
		}
	}
}

func (p *planner) checkSubscribed(ctx context.Context, where string, conn *pgx.Conn, oids []uint32) error {
	all, err := subscribed(ctx, conn, oids)
	for _, s := range all {
		p.problem(where, s.String(), s.hint()+", or take the table out of the publication it follows and refresh it")
	}
	return err
}

const selectRules = `
select n.nspname, c.relname, r.rulename, case r.ev_enabled when 'A' then 'always' else 'replica' end
  from pg_rewrite r join pg_class c on c.oid = r.ev_class join pg_namespace n on n.oid = c.relnamespace
 where r.ev_enabled in ('A', 'R') and c.oid = any($1) order by 1, 2, 3`

// checkRules: the worker's role fires no ordinary rule, but these, which would write something else than it was told.
func (p *planner) checkRules(ctx context.Context, conn *pgx.Conn, oids []uint32) error {
	rows, err := conn.Query(ctx, selectRules, oids)
	if err != nil {
		return err
	}
	var table pg.Name
	var rule, state string
	_, err = pgx.ForEachRow(rows, []any{&table.Schema, &table.Table, &rule, &state}, func() error {
		p.problem(table.String(), fmt.Sprintf("rule %s is enabled %s, and would rewrite what is written to the shards", rule, state),
			fmt.Sprintf("alter table %s enable rule %s (on every shard it can be enabled %s again after the move), or drop it", table.SQL(), ident(rule), state))
		return nil
	})
	return err
}

// checkRulesThere looks for such rules on tables that are there already.
func (p *planner) checkRulesThere(ctx context.Context, inv *inventory) {
	for n, shard := range p.Destination.Shards {
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			catalog, err := pg.ReadCatalog(ctx, conn)
			if err != nil {
				return err
			}
			return p.checkRules(ctx, conn, oidsOf(inv.parts(catalog)))
		})
		if err != nil {
			p.problem(fmt.Sprintf("destination shard %d", n), "its rules cannot be read: "+oneLine(err), "")
		}
	}
}

package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

const selectTaken = `select 'replication slot of database ' || coalesce(database, '(none)'), format('select pg_drop_replication_slot(%L)', slot_name)
	  from pg_replication_slots where slot_name = $1 and (database is distinct from current_database() or $2)
	union all
	select 'publication', format('drop publication %I', pubname) from pg_publication where pubname = $1 and $2`

// checkNames refuses a name under which something stands that this move did not make: slots are named once for a whole
// server, whatever the database.
func (p *planner) checkNames(ctx context.Context) {
	for n, shard := range p.Source.Shards {
		where := fmt.Sprintf("source shard %d", n)
		err := p.on(ctx, shard, pg.Reader, func(conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, selectTaken, p.slot(n), p.fresh)
			if err != nil {
				return err
			}
			var what, drop string
			_, err = pgx.ForEachRow(rows, []any{&what, &drop}, func() error {
				p.problem(where, fmt.Sprintf("a %s is called %s already, and is not this move's", what, p.slot(n)),
					"give the move another name, or, if nobody uses it: "+drop)
				return nil
			})
			return err
		})
		if err != nil {
			p.problem(where, "its slots cannot be read: "+oneLine(err), "")
		}
	}
}

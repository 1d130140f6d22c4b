package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// unnoticed looks, before anything is refused, for what neither the log nor a comparison of rows shows: a publication that
// lacks something, a subscription that writes on after the switch, an object that only one side has.
func (c *cutover) unnoticed(ctx context.Context) error {
	for n := range c.Source.Shards {
		if err := c.samePublication(ctx, c.inv, n); err != nil {
			return err
		}
	}
	err := c.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		all, err := subscribed(ctx, conn, oidsOf(c.inv.parts(c.inv.sources[n])))
		if err != nil {
			return err
		}
		var found []error
		for _, s := range all {
			found = append(found, fmt.Errorf("source %d: %s; hint: %s, and run the same command again", n, s, s.hint()))
		}
		return errors.Join(found...)
	})
	if err != nil || !c.CreateSchema {
		return err
	}
	return c.sameObjects(ctx, c.inv)
}

// parts lists, as one side's catalog has them, every table of the moved trees: roots, middles and leaves.
func (inv *inventory) parts(catalog *pg.Catalog) (out []*pg.Table) {
	for _, t := range inv.tables {
		if root := catalog.Table(t.name); root != nil {
			out = append(out, catalog.Tree(root)...)
		}
	}
	return out
}

func oidsOf(tables []*pg.Table) (out []uint32) {
	for _, t := range tables {
		out = append(out, t.OID)
	}
	return out
}

// subscription is a native subscription that writes a moved table. What applies it fires no statement trigger, so that no
// fence keeps it from writing to a source that has been left.
type subscription struct {
	name  string
	table pg.Name
}

func (s subscription) String() string {
	return fmt.Sprintf("subscription %s writes %s, and the fence does not stop it: what it wrote after the freeze would be lost", s.name, s.table)
}

func (s subscription) hint() string { return "alter subscription " + ident(s.name) + " disable" }

const selectSubscribed = `
select s.subname, n.nspname, c.relname
  from pg_subscription s join pg_subscription_rel r on r.srsubid = s.oid
  join pg_class c on c.oid = r.srrelid join pg_namespace n on n.oid = c.relnamespace
 where s.subenabled and s.subdbid = (select oid from pg_database where datname = current_database()) and c.oid = any($1)
 order by 1, 2, 3`

// subscribed lists the enabled subscriptions that write one of these tables.
func subscribed(ctx context.Context, q pg.Querier, tables []uint32) (all []subscription, err error) {
	rows, err := q.Query(ctx, selectSubscribed, tables)
	if err != nil {
		return nil, fmt.Errorf("read the subscriptions: %w", err)
	}
	var s subscription
	_, err = pgx.ForEachRow(rows, []any{&s.name, &s.table.Schema, &s.table.Table}, func() error { all = append(all, s); return nil })
	return all, err
}

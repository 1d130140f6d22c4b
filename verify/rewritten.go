package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgreshard/pg"
)

// ErrRewritten means that a table's files or partitions are not those any more that it had under the snapshot: TRUNCATE, most of
// ALTER TABLE's rewrites and DETACH PARTITION are seen by older snapshots too (PostgreSQL's documentation, "Caveats" of MVCC), so
// that nothing is known of how the table was. Under a later snapshot it can be compared.
var ErrRewritten = errors.New("the table was truncated, rewritten or made again while it was read; hint: compare again")

// rewritten asks, under a snapshot, whether a table ($1) is what it was then. Catalogs are read as of the snapshot; the functions
// that begin with to_ and pg_ answer for now.
const rewritten = `
with recursive tree(oid) as (
  select oid from pg_class where oid = to_regclass($1)
  union all
  select i.inhrelid from tree join pg_inherits i on i.inhparent = tree.oid join pg_class c on c.oid = i.inhrelid where c.relispartition
), now(oid) as (
  select to_regclass($1)::oid union select relid from pg_partition_tree(to_regclass($1))
)
select (select count(*) from tree join now using (oid)) <> greatest((select count(*) from tree), (select count(*) from now))
    or exists (select from tree join pg_class c using (oid) where c.relfilenode is distinct from coalesce(pg_relation_filenode(c.oid), 0))`

// AsItWas makes sure, after a table of r was read on every node under its snapshot, that it was still there. The error is a *Failure, of
// ErrRewritten where it was not.
func AsItWas(ctx context.Context, r Request, table int) error {
	v, err := begin(ctx, r)
	if err != nil {
		return err
	}
	defer v.close()
	return v.asItWas(ctx, &v.Tables[table], v.all())
}

// asItWas makes sure that what was read of a table, and for placing its rows, was there under the snapshots of some nodes. It is asked
// after the reading.
func (v *verifier) asItWas(ctx context.Context, t *Table, nodes []*node) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range nodes {
		if n.Snapshot == "" {
			continue
		}
		names := []pg.Name{v.side(t, n).sql.own.Name}
		if n.side == "shard" {
			names = append(names, t.PlacedBy...)
		}
		group.Go(func() error {
			return n.use(ctx, "", func(conn *pgconn.PgConn) error {
				for _, name := range names {
					err := each(ctx, conn, rewritten, [][]byte{[]byte(name.SQL())}, func(values [][]byte) error {
						if string(values[0]) == "t" {
							return fmt.Errorf("%s: %w", name, ErrRewritten)
						}
						return nil
					})
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return group.Wait()
}

package move

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// noteForeignKeys names the foreign keys of which the rules do not show that both rows always live on one shard.
func (p *planner) noteForeignKeys(ctx context.Context, inv *inventory) error {
	if len(p.Destination.Shards) == 1 {
		return nil
	}
	return p.on(ctx, p.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
		keys, err := ForeignKeys(ctx, conn, inv.names(), p.SkipConstraint)
		for _, k := range keys {
			from, to := inv.byName[k.Table], inv.byName[k.Refers]
			if from == nil || to == nil || to.rule.Omni || k.Leaf || together(k, from, to) {
				continue
			}
			if from.rule.Omni {
				p.note(`foreign key %s of %s cannot hold: %s is on every shard in full, and a row of %s on one; leave it out with [schema] skip = ["fk:%s"]`,
					k.Name, k.Table, k.Table, k.Refers, k.Name)
				continue
			}
			p.note(`foreign key %s of %s refers to %s, which is sharded (%s, and %s goes by %s): it can be kept only if both rows always live on one shard; `+
				`else leave it out with [schema] skip = ["fk:%s"]`, k.Name, k.Table, k.Refers, to.rule.Describe(), k.Table, from.rule.Describe(), k.Name)
		}
		return err
	})
}

// together says that the rules put both rows of a foreign key on one shard: they hash the same columns alike, or the
// referring table's key is looked up in the very row it refers to.
func together(k ForeignKey, from, to *moved) bool {
	a, b := from.rule, to.rule
	if len(a.Columns) == 0 || len(b.Columns) == 0 { // a shard has the whole table
		return len(a.Columns) == len(b.Columns) && a.Describe() == b.Describe()
	}
	if from.withMapping && slices.Equal(k.Columns, a.Columns) {
		return slices.ContainsFunc(to.plain, func(q plainLookup) bool {
			return q.query == from.query && slices.Equal(k.RefColumns, []string{q.key})
		})
	}
	if a.Placement() == nil || b.Placement() == nil || a.Placement().String() != b.Placement().String() || a.Hashes() != b.Hashes() ||
		a.Lookup != b.Lookup || a.OnMissing != b.OnMissing || len(a.Columns) != len(b.Columns) {
		return false
	}
	for i, column := range a.Columns {
		at := slices.Index(k.Columns, column)
		if at < 0 || k.RefColumns[at] != b.Columns[i] {
			return false
		}
	}
	return true
}

package move

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// A move without destination publishes its source's changes and does nothing else. The first source is its home.

func (m *Move) publishesOnly() bool { return len(m.Destination.Shards) == 0 }

// homeNode is where the bookkeeping lives.
func (m *Move) homeNode() node { return node{source: m.publishesOnly()} }

// publishOnly publishes until ctx ends.
func (m *Move) publishOnly(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// checkPublished looks at the tables of a move without destination.
func (p *planner) checkPublished(ctx context.Context) error {
	inv := &inventory{}
	for n, shard := range p.Source.Shards {
		conn, err := pg.Open(ctx, shard, pg.Reader, p.app())
		if err != nil {
			return err
		}
		catalog, err := pg.ReadCatalog(ctx, conn)
		pg.Close(conn)
		if err != nil {
			return err
		}
		inv.sources = append(inv.sources, catalog)
		p.checkOwners(ctx, inv, n)
		for _, root := range p.published(node{true, n}, catalog) {
			p.addPublished(root, catalog.Leaves(root))
		}
	}
	if len(p.plan.Tables) == 0 {
		p.problem("", "there is no table to publish", "look at [tables] include and exclude")
	}
	return nil
}

func (p *planner) addPublished(root *pg.Table, leaves []*pg.Table) {
	i := slices.IndexFunc(p.plan.Tables, func(t PlannedTable) bool { return t.Table == root.Name.String() })
	if i < 0 {
		i = len(p.plan.Tables)
		p.plan.Tables = append(p.plan.Tables, PlannedTable{Table: root.Name.String(), Rule: "published"})
	}
	for _, leaf := range leaves {
		p.plan.Tables[i].Bytes += leaf.Bytes
		p.plan.Tables[i].Rows += max(leaf.Rows, 0)
		column := virtual(leaf)
		switch {
		case len(leaf.Logged) == 0:
			p.problem(leaf.Name.String(), "without a usable replica identity the application's own UPDATE and DELETE would fail once it is published",
				"alter table "+leaf.Name.SQL()+" replica identity full")
		case leaf.Replica == pg.IdentityFull && column != "":
			found := virtualProblem(leaf, column)
			p.problem(found.Table, found.What, found.Hint)
		}
	}
}

// cancelPublishing takes away what publishing has made, the home last.
func (m *Move) cancelPublishing(ctx context.Context, w *work) error {
	if err := m.enter(ctx, StateCancelled); err != nil {
		return err
	}
	kept, err := m.keptCDC(ctx)
	if err != nil {
		return err
	}
	if err := m.dropLegs(ctx, kept.Legs, w.nodes...); err != nil {
		return err
	}
	forget := nodeNamed(func(ctx context.Context, _ node, conn *pgx.Conn) error { return m.dropBookkeeping(ctx, conn) })
	others := slices.DeleteFunc(w.present(true), func(n node) bool { return n == m.homeNode() })
	if err := errors.Join(m.each(ctx, others, forget), w.left("what was made there is left")); err != nil {
		return err
	}
	return m.each(ctx, []node{m.homeNode()}, forget)
}

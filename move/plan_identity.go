package move

import (
	"fmt"

	"pgreshard/layout"
	"pgreshard/pg"
)

// checkIdentity looks at how the log tells which row an UPDATE or DELETE of a leaf means.
func (p *planner) checkIdentity(inv *inventory, leaf *pg.Table, source int) {
	full := p.needsFull(inv, leaf, source)
	if full || leaf.Replica == pg.IdentityFull {
		if column := virtual(leaf); column != "" {
			found := virtualProblem(leaf, column)
			p.problem(found.Table, found.What, found.Hint)
			return
		}
	}
	if p.SetIdentity || !full {
		p.noteLoose(inv, leaf, source)
		return
	}
	what := "without a usable replica identity the application's own UPDATE and DELETE would fail once it is published"
	if len(leaf.Logged) > 0 {
		what = "its replica identity does not carry the sharding key, and with several sources an old row must tell whose it is"
	}
	p.problem(leaf.Name.String(), what, fmt.Sprintf(`alter table %s replica identity full, or set [tables] replica_identity = "full"`, leaf.Name.SQL()))
}

// virtual is the first of the table's virtual generated columns, which cannot be published: under FULL the server then
// refuses every UPDATE and DELETE.
func virtual(t *pg.Table) string {
	for _, c := range t.Columns {
		if c.Generated == 'v' {
			return c.Name
		}
	}
	return ""
}

func virtualProblem(t *pg.Table, column string) layout.Problem {
	what := "it has REPLICA IDENTITY FULL"
	if t.Replica != pg.IdentityFull {
		what = "it needs REPLICA IDENTITY FULL"
	}
	return layout.Problem{Table: t.Name.String(),
		What: fmt.Sprintf("%s and a virtual generated column, %s: the application's own UPDATE and DELETE would fail once it is published", what, column),
		Hint: fmt.Sprintf("give it a unique index over columns that are NOT NULL, with several sources the sharding key among them, and alter table %s "+
			"replica identity using index …; or drop the column until the move is over", t.Name.SQL())}
}

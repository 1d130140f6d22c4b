package replicator

import (
	"fmt"
	"strings"

	"pgreshard/pg"
)

// lines writes changes down, one a line.
func lines(changes []pg.Change) []string {
	var all []string
	for i := range changes {
		all = append(all, line(&changes[i]))
	}
	return all
}

func line(c *pg.Change) string {
	switch c.Op {
	case pg.OpBegin:
		return fmt.Sprintf("begin %d at %s", c.Tx.Xid, c.Tx.Commit)
	case pg.OpCommit:
		return fmt.Sprintf("commit %d at %s to %s", c.Tx.Xid, c.Tx.Commit, c.Tx.End)
	case pg.OpTruncate:
		s := "truncate"
		for _, r := range c.Truncate.Relations {
			s += " " + r.Name.String()
		}
		if c.Truncate.Cascade {
			s += " cascade"
		}
		if c.Truncate.RestartIdentity {
			s += " restart"
		}
		return s
	case pg.OpMessage:
		s := fmt.Sprintf("message %s %q at %s", c.Message.Prefix, c.Message.Content, c.Message.LSN)
		if c.Tx != nil {
			s += fmt.Sprintf(" in %d", c.Tx.Xid)
		}
		return s
	}
	s := map[pg.Op]string{pg.OpInsert: "insert ", pg.OpUpdate: "update ", pg.OpDelete: "delete "}[c.Op] + c.Relation.Name.String()
	if c.Old != nil && c.OldFull {
		s += " old " + rowText(c.Old)
	} else if c.Old != nil {
		s += " key " + rowText(c.Old)
	}
	if c.New != nil {
		s += " " + rowText(c.New)
	}
	return s
}

func rowText(row pg.Row) string {
	var values []string
	for _, d := range row {
		v := string(d.Bytes)
		switch {
		case d.Kind == pg.Null:
			v = "NULL"
		case d.Kind == pg.Unchanged:
			v = "unchanged"
		case v == "":
			v = `""`
		case len(v) > 100:
			v = fmt.Sprintf("%d bytes", len(v))
		}
		values = append(values, v)
	}
	return "[" + strings.Join(values, " ") + "]"
}

package move

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// change is one difference between what a source's moved table was and what it is, and what carries it to a shard.
type change struct {
	Kind  changeKind
	Table pg.Name      // the root
	Was   *shapeColumn // as it was, nil where it is new
	Now   *shapeColumn
	Type  string // an enumeration's name
	Label string
	Next  string  // the label before which it stands; empty: it is the last
	Leaf  pg.Name // the partition that came or went; Table is the one above it
	OID   uint32  // its OID on the source
	Bound string  // its bound there
	Text  string  // in words
	// Why says what keeps it from being carried.
	Why string
}

type changeKind int

const (
	other changeKind = iota // a change that Text tells and nothing carries
	columnAdded
	columnDropped
	columnRenamed
	columnRetyped
	columnLoosened  // NOT NULL was dropped
	columnTightened // NOT NULL was set
	columnDefaulted // its default is another
	labelAdded
	leafAdded // a partition was made or attached
	leafGone  // a partition was dropped or detached
)

// changesTo lists what was changed, columns by their numbers.
func (s shapes) changesTo(now shapes) (out []change) {
	for oid, old := range s.Tables {
		is, ok := now.Tables[oid]
		add := func(format string, args ...any) {
			out = append(out, change{Table: old.Name, Text: fmt.Sprintf(format, args...), Why: "it cannot be followed"})
		}
		switch {
		case ok && old.Pending:
		case !ok && old.Leaf && old.Parent != pg.Name{}:
			out = append(out, change{Kind: leafGone, Table: old.Parent, Leaf: old.Name, OID: oid, Text: old.Name.String() + " was dropped, detached or made again"})
		case !ok:
			add("%s was dropped, detached or made again", old.Name)
		case is.Name != old.Name:
			add("%s was renamed to %s", old.Name, is.Name)
		case is.Parent != old.Parent || is.Bound != old.Bound:
			add("%s was attached or detached as a partition", old.Name)
		case is.Replica != old.Replica:
			add("the replica identity of %s was changed", old.Name)
		case old.Parent == pg.Name{}: // partitions have their root's columns
			out = append(out, columnChanges(old, is, s.rewritten(old.Name, now))...)
		}
	}
	for oid, is := range now.Tables {
		switch was, ok := s.Tables[oid]; {
		case ok && !was.Pending:
		case is.Leaf && is.Parent != pg.Name{}:
			out = append(out, change{Kind: leafAdded, Table: is.Parent, Leaf: is.Name, OID: oid, Bound: is.Bound, Text: is.Name.String() + " was made or attached"})
		default:
			out = append(out, change{Table: is.Name, Text: is.Name.String() + " was made or attached", Why: "it cannot be followed"})
		}
	}
	for name, labels := range now.Enums {
		out = append(out, labelChanges(name, s.Enums[name], labels)...)
	}
	slices.SortFunc(out, func(a, b change) int { return strings.Compare(a.Text, b.Text) })
	return out
}

// rewritten says that a table of a root's tree has another file.
func (s shapes) rewritten(root pg.Name, now shapes) bool {
	for oid, old := range s.Tables {
		if is, ok := now.Tables[oid]; ok && old.Leaf && is.File != old.File && (old.Name == root || s.rootOf(old) == root) {
			return true
		}
	}
	return false
}

// rootOf is the topmost table above one.
func (s shapes) rootOf(t shape) pg.Name {
	for {
		parent := t.Parent
		for _, o := range s.Tables {
			if o.Name == t.Name {
				parent = o.Parent
			}
		}
		if (parent == pg.Name{}) {
			return t.Name
		}
		t = shape{Name: parent}
	}
}

func columnChanges(old, is shape, rewritten bool) (out []change) {
	for i := range old.Columns {
		was := &old.Columns[i]
		now := is.column(was.Num)
		c := change{Table: old.Name, Was: was, Now: now}
		if now == nil {
			c.Kind, c.Text = columnDropped, fmt.Sprintf("%s: column %q was dropped", old.Name, was.Name)
			if c.Why = ""; was.Generated {
				c.Why = "a generated column is not followed"
			}
			out = append(out, c)
			continue
		}
		if was.Generated != now.Generated || was.Identity != now.Identity || was.Collation != now.Collation || was.Generated && was.Default != now.Default {
			c.Text, c.Why = fmt.Sprintf("%s: column %q was defined anew", old.Name, now.Name), "it cannot be followed"
			out = append(out, c)
			continue
		}
		add := func(kind changeKind, why, format string, args ...any) {
			c := c
			c.Kind, c.Why, c.Text = kind, why, fmt.Sprintf(format, args...)
			out = append(out, c)
		}
		if was.Name != now.Name {
			add(columnRenamed, old.taken(now.Name), "%s: column %q was renamed to %q", old.Name, was.Name, now.Name)
		}
		if was.Type != now.Type {
			why := ""
			switch {
			case rewritten:
				why = "the table was rewritten, and its new values are not in the log"
			case was.Hashed != "" && now.Hashed != "" && was.Hashed != now.Hashed:
				why = "it is the sharding key, and rows stand by the hash that values of the other type have"
			}
			add(columnRetyped, why, "%s: column %q was %s and is %s", old.Name, now.Name, was.Type, now.Type)
		}
		if rewritten && was.revalued(now) {
			add(other, "it cannot be followed", "%s: the table was rewritten by an ALTER of column %q, and its new values are not in the log", old.Name, now.Name)
		}
		if was.NotNull && !now.NotNull {
			add(columnLoosened, "", "%s: column %q may be null", old.Name, now.Name)
		}
		if !was.NotNull && now.NotNull {
			add(columnTightened, "", "%s: column %q is not null", old.Name, now.Name)
		}
		if was.Default != now.Default {
			add(columnDefaulted, "", "%s: the default of column %q was changed", old.Name, now.Name)
		}
	}
	for i := range is.Columns {
		now := &is.Columns[i]
		if old.column(now.Num) != nil {
			continue
		}
		c := change{Kind: columnAdded, Table: old.Name, Now: now, Text: fmt.Sprintf("%s: column %q (%s) was added", old.Name, now.Name, now.Type)}
		c.Why = old.taken(now.Name)
		switch {
		case now.Generated:
			c.Why = "its values are computed, and the table was rewritten for it"
		case now.Identity:
			c.Why = "the table was rewritten for its values"
		case rewritten:
			c.Why = "the table was rewritten, and the values its rows got are not in the log"
		}
		out = append(out, c)
	}
	return out
}

// revalued says that a column of a table that was rewritten has the definition it had, but from another statement: an
// ALTER TYPE … USING to the type it had leaves just that, as VACUUM FULL or CLUSTER does not.
func (c *shapeColumn) revalued(now *shapeColumn) bool {
	return c.Type == now.Type && c.Default == now.Default && c.Row == now.Row && c.Row != "" && c.Written != now.Written
}

// taken says that a name was another column's: a row that carries it does not tell which of the two it means.
func (s shape) taken(name string) string {
	if slices.ContainsFunc(s.Columns, func(c shapeColumn) bool { return c.Name == name }) {
		return "the name was another column's before"
	}
	return ""
}

// labelChanges: labels may be added anywhere; one that is renamed is another in every row.
func labelChanges(name string, was, now []string) (out []change) {
	if was == nil { // a type that is new comes with the column that needs it
		return nil
	}
	for _, label := range was {
		if !slices.Contains(now, label) {
			return []change{{Table: pg.Name{Table: name}, Text: fmt.Sprintf("type %s: label %q was renamed", name, label), Why: "it cannot be followed"}}
		}
	}
	for i := len(now) - 1; i >= 0; i-- { // from the end, so that the label it stands before is there
		if slices.Contains(was, now[i]) {
			continue
		}
		c := change{Kind: labelAdded, Type: name, Label: now[i], Text: fmt.Sprintf("type %s: label %q was added", name, now[i])}
		if i+1 < len(now) {
			c.Next = now[i+1]
		}
		out = append(out, c)
	}
	return out
}

// early are the statements after which a shard takes rows from before the change and from after it. into is the shard's
// table as it is; what it has already is left out.
func (c *change) early(into *pg.Table) (sql []string) {
	switch c.Kind {
	case columnAdded:
		if _, there := into.Column(c.Now.Name); there {
			return nil
		}
		add := fmt.Sprintf("add column %s %s", columnSQL(c.Now.Name), c.Now.Type)
		if c.Now.Collation != "" {
			add += " collate " + c.Now.Collation
		}
		if c.Now.Missing != nil { // what rows have that were there before
			add += fmt.Sprintf(" default %s::%s", strings.TrimSpace(quoteLiteral(*c.Now.Missing)), c.Now.Type)
		}
		return []string{c.alter(add)}
	case columnDropped:
		if i, there := into.Column(c.Was.Name); there && into.Columns[i].NotNull {
			return []string{c.alter("alter column " + columnSQL(c.Was.Name) + " drop not null")}
		}
	case columnLoosened:
		if i := c.there(into); i >= 0 && into.Columns[i].NotNull {
			return []string{c.alter("alter column " + into.Columns[i].SQL() + " drop not null")}
		}
	case columnRetyped:
		if i := c.there(into); i >= 0 && into.Columns[i].Type != c.Now.Type {
			return []string{c.alter("alter column " + into.Columns[i].SQL() + " type " + c.Now.Type)}
		}
	case leafAdded:
		return []string{fmt.Sprintf("create table if not exists %s partition of %s %s", c.Leaf.SQL(), c.Table.SQL(), c.Bound)}
	case labelAdded:
		place := ""
		if c.Next != "" {
			place = " before" + quoteLiteral(c.Next)
		}
		return []string{fmt.Sprintf("alter type %s add value if not exists%s%s", c.Type, quoteLiteral(c.Label), place)}
	}
	return nil
}

// late are the statements that end the change, once every row from before it is applied. Those of one table are one
// transaction, renames first.
func (c *change) late(into *pg.Table) (sql []string) {
	switch c.Kind {
	case leafGone:
		return []string{"drop table if exists " + c.Leaf.SQL()}
	case columnDropped:
		if _, there := into.Column(c.Was.Name); there {
			return []string{c.alter("drop column " + columnSQL(c.Was.Name))}
		}
	case columnRenamed:
		if _, there := into.Column(c.Was.Name); there {
			return []string{c.alter("rename column " + columnSQL(c.Was.Name) + " to " + columnSQL(c.Now.Name))}
		}
	case columnTightened:
		return []string{c.alter("alter column " + columnSQL(c.Now.Name) + " set not null")}
	case columnDefaulted:
		return []string{c.setDefault()}
	case columnAdded:
		sql = append(sql, c.setDefault())
		if c.Now.NotNull {
			sql = append(sql, c.alter("alter column "+columnSQL(c.Now.Name)+" set not null"))
		}
		return sql
	}
	return nil
}

// there is where the changed column stands in a shard's table, by either name, -1 where it does not.
func (c *change) there(into *pg.Table) int {
	for _, name := range []string{c.Was.Name, c.Now.Name} {
		if i, ok := into.Column(name); ok {
			return i
		}
	}
	return -1
}

func (c *change) setDefault() string {
	if c.Now.Default == "" {
		return c.alter("alter column " + columnSQL(c.Now.Name) + " drop default")
	}
	return c.alter("alter column " + columnSQL(c.Now.Name) + " set default " + c.Now.Default)
}

func (c *change) alter(what string) string { return "alter table " + c.Table.SQL() + " " + what }

func columnSQL(name string) string { return pgx.Identifier{name}.Sanitize() }

// statements is everything a shard like the source was needs, for an operator who runs it.
func (c *change) statements(was *pg.Table) []string {
	if c.Kind == other || c.Kind == leafAdded || c.Kind == leafGone || c.Why != "" {
		return nil
	}
	return append(c.early(was), c.late(was)...)
}

package layout

import (
	"fmt"
	"strings"
)

// label names an entry in messages by what the operator wrote.
func (t ShardedTable) label() string {
	name := t.Name
	if name == "" {
		name = "any table"
	}
	if t.Schema != "" {
		name = t.Schema + "." + name
	}
	return fmt.Sprintf("[[sharded_tables]] %s (%s)", name, strings.Join(t.keyColumns(), ", "))
}

func (m Mapping) label() string {
	var b strings.Builder
	b.WriteString("[[sharded_mappings]] ")
	if m.Table != "" {
		b.WriteString(m.Table + ".")
	}
	b.WriteString(m.Column + " " + m.Kind)
	if m.Start != nil {
		fmt.Fprintf(&b, " from %v", m.Start)
	}
	if m.End != nil {
		fmt.Fprintf(&b, " to %v", m.End)
	}
	if m.Shard != nil {
		fmt.Fprintf(&b, " on shard %d", *m.Shard)
	}
	return b.String()
}

func (o ShardedSchema) label() string {
	if o.Name == "" {
		return "[[sharded_schemas]] for every schema"
	}
	return "[[sharded_schemas]] " + o.Name
}

// keyColumns is column or columns, whichever is given.
func (t ShardedTable) keyColumns() []string {
	if t.Column != "" {
		return []string{t.Column}
	}
	return t.Columns
}

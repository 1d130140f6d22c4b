package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"pgreshard/layout"
)

// formatPgDog is what layout --format takes.
const formatPgDog = "pgdog"

// pgDog is a layout as sections of pgdog.toml, with PgDog's own keys and no others: it refuses those it does not know.
type pgDog struct {
	Databases []pgDogDatabase `toml:"databases"`
	Sharded   []pgDogSharded  `toml:"sharded_tables,omitempty"`
	Mappings  []pgDogMapping  `toml:"sharded_mappings,omitempty"`
	Omni      []pgDogOmni     `toml:"omnisharded_tables,omitempty"`
}

type pgDogDatabase struct {
	Name         string `toml:"name"`
	Host         string `toml:"host"`
	Port         int    `toml:"port"`
	DatabaseName string `toml:"database_name"`
	Shard        int    `toml:"shard"`
	Role         string `toml:"role"`
}

type pgDogSharded struct {
	Database string `toml:"database"`
	Schema   string `toml:"schema"`
	Name     string `toml:"name"`
	Column   string `toml:"column"`
	DataType string `toml:"data_type"`
	Hasher   string `toml:"hasher"`
}

type pgDogMapping struct {
	Database string `toml:"database"`
	Schema   string `toml:"schema"`
	Table    string `toml:"table"`
	Column   string `toml:"column"`
	Kind     string `toml:"kind"`
	Values   []any  `toml:"values,omitempty"`
	Start    any    `toml:"start,omitempty"`
	End      any    `toml:"end,omitempty"`
	Shard    int    `toml:"shard"`
}

type pgDogOmni struct {
	Database string   `toml:"database"`
	Tables   []string `toml:"tables"`
}

// writePgDog writes the layout for PgDog; databases are the names of the shards' databases. A table PgDog does not know goes to
// every shard there, so none may be left out: what it cannot place is an error that names them all.
func writePgDog(w io.Writer, r layout.Record, databases []string) error {
	var d pgDog
	for i, s := range r.Shards {
		host, text, err := net.SplitHostPort(s.Node)
		if err != nil {
			return fmt.Errorf("where shard %d is, is not known: %w", s.Shard, err)
		}
		port, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("where shard %d is, is not known: %w", s.Shard, err)
		}
		d.Databases = append(d.Databases, pgDogDatabase{r.Database, host, port, databases[i], int(s.Shard), "primary"})
	}
	var problems layout.Problems
	if len(r.Shards) > 1 {
		for _, rule := range r.Rules {
			if why := d.add(rule, r.Database, len(r.Shards)); why != "" {
				problems = append(problems, layout.Problem{Table: rule.Table, What: "PgDog does not place rows so: " + why,
					Hint: "route its queries in the application: `pgreshard layout --json`, /route"})
			}
		}
	}
	if len(problems) > 0 {
		return &exitError{code: exitCheck, err: problems}
	}
	text, err := toml.Marshal(d)
	if err == nil {
		_, err = fmt.Fprintf(w, "# layout %d of %s\n%s", r.Version, r.Database, text)
	}
	return err
}

// pgDogTypes are the types whose values hash alike under a data_type of PgDog's.
var pgDogTypes = map[string]string{"smallint": "bigint", "integer": "bigint", "bigint": "bigint",
	"text": "varchar", "character varying": "varchar", "uuid": "uuid"}

// add puts one table's rule in, or says why PgDog has none like it.
func (d *pgDog) add(r layout.RecordRule, database string, shards int) (why string) {
	schema, table, _ := strings.Cut(r.Table, ".")
	if r.Kind == "omnisharded" {
		d.Omni = append(d.Omni, pgDogOmni{database, []string{table}})
		return ""
	}
	if len(r.Columns) != 1 || len(r.DataType) != 1 || r.LookupQuery != "" {
		return r.Placement
	}
	s := pgDogSharded{database, schema, table, r.Columns[0], pgDogTypes[r.DataType[0]], layout.HasherPostgres}
	hash := fmt.Sprintf("(%s) modulo %d", s.Column, shards)
	mapped := len(r.List)+len(r.Ranges) > 0 || r.Default != nil
	switch {
	case s.DataType == "":
		return "its key is of type " + r.DataType[0]
	case r.Placement == "sha1"+hash:
		s.Hasher = layout.HasherSHA1
	case r.Placement != "hash"+hash && !mapped:
		return r.Placement
	}
	d.Sharded = append(d.Sharded, s)
	mapping := func(kind string, shard layout.Shard) *pgDogMapping {
		d.Mappings = append(d.Mappings, pgDogMapping{Database: database, Schema: schema, Table: table, Column: s.Column, Kind: kind, Shard: int(shard)})
		return &d.Mappings[len(d.Mappings)-1]
	}
	for _, v := range r.List {
		mapping(layout.KindList, v.Shard).Values = []any{s.value(v.Value)}
	}
	for _, v := range r.Ranges {
		m := mapping(layout.KindRange, v.Shard)
		m.Start, m.End = s.value(v.From), s.value(v.To)
	}
	if r.Default != nil {
		mapping(layout.KindDefault, *r.Default)
	}
	return ""
}

// value is a mapping's value as PgDog reads it; nil for none.
func (s pgDogSharded) value(text string) any {
	if text == "" {
		return nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && s.DataType == "bigint" {
		return n
	}
	return text
}

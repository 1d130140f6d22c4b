package layout

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Spec is what the configuration says about one layout and what the layout record keeps of it: enough to Compile the
// same placement anywhere. Shards is how many there are, numbered from 0.
type Spec struct {
	Version  int             `json:"version" toml:"version"`
	Database string          `json:"database" toml:"database"`
	Shards   int             `json:"shards" toml:"shards"`
	Encoding string          `json:"encoding,omitempty" toml:"encoding"` // of the destination; text keys are hashed in it; empty: UTF8
	Tables   []ShardedTable  `json:"sharded_tables,omitempty" toml:"sharded_tables"`
	Mappings []Mapping       `json:"sharded_mappings,omitempty" toml:"sharded_mappings"`
	Omni     []OmniTables    `json:"omnisharded_tables,omitempty" toml:"omnisharded_tables"`
	Schemas  []ShardedSchema `json:"sharded_schemas,omitempty" toml:"sharded_schemas"`
	// Weights are the shards' parts of the slots; none: all are alike.
	Weights []int `json:"weights,omitempty" toml:"-"`
	// SlotTables say how slots were handed out before. This layout's own are taken as they are; of those of the one before it
	// Compile hands over as many slots as the shares ask for and no more; what stands in none is handed out anew.
	SlotTables []SlotTable `json:"slot_tables,omitempty" toml:"-"`
}

// ShardedTable is one [[sharded_tables]] entry, with PgDog's names: the table called Name, or without it every table
// that has the columns.
type ShardedTable struct {
	Database     string    `json:"database,omitempty" toml:"database"`
	Schema       string    `json:"schema,omitempty" toml:"schema"`
	Name         string    `json:"name,omitempty" toml:"name"`
	Column       string    `json:"column,omitempty" toml:"column"`
	Columns      []string  `json:"columns,omitempty" toml:"columns"`
	DataType     string    `json:"data_type,omitempty" toml:"data_type"`
	Hasher       string    `json:"hasher,omitempty" toml:"hasher"` // postgres | sha1
	LookupQuery  string    `json:"lookup_query,omitempty" toml:"lookup_query"`
	LookupResult string    `json:"lookup_result,omitempty" toml:"lookup_result"` // value | shard
	OnMissing    string    `json:"on_missing,omitempty" toml:"on_missing"`       // stop | default | identity
	Placement    string    `json:"placement,omitempty" toml:"placement"`         // modulo | slots
	Slots        int       `json:"slots,omitempty" toml:"slots"`
	Mapping      []Mapping `json:"mapping,omitempty" toml:"mapping"`

	// PgDog's keys that do not concern placement: accepted and reported by Spec.Ignored.
	Primary *bool `json:"-" toml:"primary"`
	// PgDog's keys of vector sharding: refused by Compile.
	Centroids      any    `json:"-" toml:"centroids"`
	CentroidsPath  string `json:"-" toml:"centroids_path"`
	CentroidProbes *int   `json:"-" toml:"centroid_probes"`
}

// Mapping is one [[sharded_mappings]] entry: keys of Column that are in Values, or from Start (inclusive) to End
// (exclusive), or whatever nothing else names, live on Shard. Values may be written as TOML or JSON numbers,
// strings, booleans or times; they are compared as values of the rule's data type.
type Mapping struct {
	Database string `json:"database,omitempty" toml:"database"`
	Schema   string `json:"schema,omitempty" toml:"schema"`
	Table    string `json:"table,omitempty" toml:"table"`
	Column   string `json:"column,omitempty" toml:"column"`
	Kind     string `json:"kind" toml:"kind"` // list | range | default
	Values   []any  `json:"values,omitempty" toml:"values"`
	Start    any    `json:"start,omitempty" toml:"start"`
	End      any    `json:"end,omitempty" toml:"end"`
	Shard    *int   `json:"shard" toml:"shard"` // nil where it was left out, which Compile refuses
}

// OmniTables is one [[omnisharded_tables]] entry: tables ("schema.table" or "table") every shard holds in full.
type OmniTables struct {
	Database string   `json:"database,omitempty" toml:"database"`
	Tables   []string `json:"tables" toml:"tables"`

	Sticky *bool `json:"-" toml:"sticky"` // PgDog's; reported by Spec.Ignored
}

// ShardedSchema is one [[sharded_schemas]] entry: every table of schema Name that no other rule names lives on Shard,
// or with All on every shard. Without Name it stands for every schema that nothing else covers.
type ShardedSchema struct {
	Database string `json:"database,omitempty" toml:"database"`
	Name     string `json:"name,omitempty" toml:"name"`
	Shard    *int   `json:"shard,omitempty" toml:"shard"`
	All      bool   `json:"all,omitempty" toml:"all"`
}

// The words a Spec may use.
const (
	HasherPostgres = "postgres"
	HasherSHA1     = "sha1"

	ResultValue = "value"
	ResultShard = "shard"

	MissingStop     = "stop"
	MissingDefault  = "default"
	MissingIdentity = "identity"

	PlacementModulo = "modulo"
	PlacementSlots  = "slots"

	KindList    = "list"
	KindRange   = "range"
	KindDefault = "default"
)

// DefaultSlots is how many slots placement "slots" has where the rule does not say.
const DefaultSlots = 16384

// IgnoredKeys lists the keys of PgDog's sharding sections that are accepted because they do not concern placement.
// Spec.Ignored says which of them a configuration holds.
var IgnoredKeys = []string{"sharded_tables.primary", "omnisharded_tables.sticky"}

// Of keeps the rules of one database of a file that holds those of several; byDefault is the database a rule without
// one belongs to. The rules kept name the database.
func (s Spec) Of(database, byDefault string) Spec {
	s.Database = database
	s.Tables = keep(s.Tables, database, byDefault, func(t *ShardedTable) *string { return &t.Database })
	s.Mappings = keep(s.Mappings, database, byDefault, func(m *Mapping) *string { return &m.Database })
	s.Omni = keep(s.Omni, database, byDefault, func(o *OmniTables) *string { return &o.Database })
	s.Schemas = keep(s.Schemas, database, byDefault, func(o *ShardedSchema) *string { return &o.Database })
	return s
}

func keep[T any](rules []T, database, byDefault string, of func(*T) *string) []T {
	var kept []T
	for _, r := range rules {
		name := of(&r)
		if *name == "" {
			*name = byDefault
		}
		if *name == database {
			kept = append(kept, r)
		}
	}
	return kept
}

// Databases lists the databases the rules name, sorted, without those that leave it out.
func (s Spec) Databases() []string {
	var names []string
	for _, t := range s.Tables {
		names = append(names, t.Database)
	}
	for _, m := range s.Mappings {
		names = append(names, m.Database)
	}
	for _, o := range s.Omni {
		names = append(names, o.Database)
	}
	for _, o := range s.Schemas {
		names = append(names, o.Database)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "" })
}

// Untyped returns the rules whose keys are translated to a value of a type the configuration does not give. Whoever can
// ask the server describes LookupQuery and sets DataType to the result's type before Compile.
func (s Spec) Untyped() []*ShardedTable {
	var untyped []*ShardedTable
	for i := range s.Tables {
		if t := &s.Tables[i]; t.LookupQuery != "" && t.LookupResult != ResultShard && t.DataType == "" {
			untyped = append(untyped, t)
		}
	}
	return untyped
}

// Ignored says which accepted keys have no effect here, in words for the operator.
func (s Spec) Ignored() []string {
	var keys []string
	for _, t := range s.Tables {
		if t.Primary != nil {
			keys = append(keys, t.label()+": primary")
		}
	}
	for _, o := range s.Omni {
		if o.Sticky != nil {
			keys = append(keys, "[[omnisharded_tables]]: sticky")
		}
	}
	return keys
}

// normal is the Spec with every value of a mapping as text, so that it reads back from JSON as it was written.
func (s Spec) normal() (Spec, error) {
	var err error
	if s.Mappings, err = normalMappings(s.Mappings); err != nil {
		return s, err
	}
	s.Tables = slices.Clone(s.Tables)
	for i := range s.Tables {
		if s.Tables[i].Mapping, err = normalMappings(s.Tables[i].Mapping); err != nil {
			return s, err
		}
	}
	return s, nil
}

func normalMappings(mappings []Mapping) ([]Mapping, error) {
	mappings = slices.Clone(mappings)
	for i := range mappings {
		m := &mappings[i]
		m.Values = slices.Clone(m.Values)
		for j := range m.Values {
			if err := normalise(&m.Values[j]); err != nil {
				return nil, fmt.Errorf("%s: %w", m.label(), err)
			}
		}
		for _, bound := range []*any{&m.Start, &m.End} {
			if *bound == nil {
				continue
			}
			if err := normalise(bound); err != nil {
				return nil, fmt.Errorf("%s: %w", m.label(), err)
			}
		}
	}
	return mappings, nil
}

// normalise turns what a TOML or JSON decoder made of a literal into its text form.
func normalise(v *any) error {
	switch x := (*v).(type) {
	case string:
	case int64:
		*v = strconv.FormatInt(x, 10)
	case int:
		*v = strconv.Itoa(x)
	case uint64:
		*v = strconv.FormatUint(x, 10)
	case float64:
		*v = strconv.FormatFloat(x, 'f', -1, 64)
	case bool:
		*v = strconv.FormatBool(x)
	case time.Time:
		*v = x.Format("2006-01-02 15:04:05.999999Z07:00")
	case fmt.Stringer: // TOML's local dates and times
		*v = x.String()
	default:
		return fmt.Errorf("%T is no value of a key", x)
	}
	return nil
}

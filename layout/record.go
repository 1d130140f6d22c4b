package layout

import (
	"fmt"
	"strings"
	"time"
)

// Record is a layout as layout --json, /layout and the notice board show it. Describe leaves Node and ServingSince to
// whoever knows them.
type Record struct {
	Version      int           `json:"version"`
	Database     string        `json:"database"`
	Shards       []RecordShard `json:"shards"`
	Rules        []RecordRule  `json:"rules"`
	SlotTables   []SlotTable   `json:"slot_tables,omitempty"` // what "modulo 16384 slots" of a rule looks up
	ServingSince *time.Time    `json:"serving_since"`
}

// RecordShard is one shard and the node (host:port) that leads it.
type RecordShard struct {
	Shard Shard  `json:"shard"`
	Node  string `json:"node,omitempty"`
}

// RecordRule is one table's rule. Kind is "sharded", "omnisharded" or "whole" (one shard has the table); Placement says in
// words how a key comes to its shard.
type RecordRule struct {
	Table        string   `json:"table"`
	Kind         string   `json:"kind"`
	Columns      []string `json:"columns,omitempty"`
	DataType     []string `json:"data_type,omitempty"` // of what is placed, column by column
	Placement    string   `json:"placement"`
	HashQuery    string   `json:"hash_query,omitempty"` // the SQL that hashes a key $1 of a type only servers can hash
	LookupQuery  string   `json:"lookup_query,omitempty"`
	LookupResult string   `json:"lookup_result,omitempty"`
	OnMissing    string   `json:"on_missing,omitempty"`
	List         []Listed `json:"list,omitempty"`
	Ranges       []Span   `json:"ranges,omitempty"`
	Default      *Shard   `json:"default,omitempty"`
}

// Listed is one value of a list mapping.
type Listed struct {
	Value string `json:"value"`
	Shard Shard  `json:"shard"`
}

// Span is one range of a mapping, without From or To where there is no bound.
type Span struct {
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
	Shard Shard  `json:"shard"`
}

// Describe is the layout as data, for the layout and route commands.
func (l *Layout) Describe() Record {
	record := Record{Version: l.Version(), Database: l.Database(), Shards: make([]RecordShard, l.Shards()), Rules: make([]RecordRule, len(l.rules)),
		SlotTables: l.spec.SlotTables}
	for i := range record.Shards {
		record.Shards[i].Shard = Shard(i)
	}
	for i, r := range l.rules {
		record.Rules[i] = r.record()
	}
	return record
}

// String lists the rules, one a line, for people.
func (l *Layout) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "layout %d of %s, %d shards", l.Version(), l.Database(), l.Shards())
	for _, r := range l.rules {
		fmt.Fprintf(&b, "\n  %s: %s", r.Table, r.Describe())
	}
	return b.String()
}

func (r *Rule) record() RecordRule {
	record := RecordRule{Table: r.Table.String(), Kind: r.kind(), Columns: r.Columns, Placement: r.Describe(),
		HashQuery: r.HashQuery, LookupQuery: r.Lookup, LookupResult: r.LookupResult, OnMissing: r.OnMissing}
	switch {
	case r.HashQuery != "":
		record.DataType = []string{r.hashed}
	case r.method != methodNumber:
		for _, t := range r.types {
			record.DataType = append(record.DataType, t.String())
		}
	}
	if m := r.mapping; m != nil {
		for _, v := range m.list {
			record.List = append(record.List, Listed{v.text, v.shard})
		}
		for _, s := range m.ranges {
			record.Ranges = append(record.Ranges, Span{s.lowText, s.highText, s.shard})
		}
		record.Default = m.rest
	}
	return record
}

func (r *Rule) kind() string {
	switch r.method {
	case methodOmni:
		return "omnisharded"
	case methodWhole:
		return "whole"
	}
	return "sharded"
}

// Describe says in words how the rule comes to a shard: "hash(tenant_id) modulo 4".
func (r *Rule) Describe() string {
	key := strings.Join(r.Columns, ", ")
	if r.Lookup != "" {
		key = "lookup of " + key
	}
	switch r.method {
	case methodWhole:
		return "whole table on " + r.whole.String()
	case methodOmni:
		return "omnisharded"
	case methodNumber:
		return "shard named by " + key
	case methodMapping:
		return r.mapping.kinds() + " on " + key
	case methodSHA1:
		return "sha1(" + key + ") " + r.placed.String()
	default:
		return "hash(" + key + ") " + r.placed.String()
	}
}

// kinds names what the mapping is made of, in the order it is searched.
func (m *mapping) kinds() string {
	var kinds []string
	if len(m.list) > 0 {
		kinds = append(kinds, KindList)
	}
	if len(m.ranges) > 0 {
		kinds = append(kinds, KindRange)
	}
	if m.rest != nil {
		kinds = append(kinds, KindDefault)
	}
	return strings.Join(kinds, "/")
}

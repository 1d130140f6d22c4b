package main

import "pgreshard/layout"

// Config is the configuration file, section by section, with its defaults filled in. It stays in this package: the
// others are handed typed arguments.
type Config struct {
	Move        moveSection            `toml:"move"`
	Source      clusterSection         `toml:"source"`
	Destination clusterSection         `toml:"destination"`
	Tables      tablesSection          `toml:"tables"`
	Schema      schemaSection          `toml:"schema"`
	Sharded     []layout.ShardedTable  `toml:"sharded_tables"`
	Mappings    []layout.Mapping       `toml:"sharded_mappings"`
	Omni        []layout.OmniTables    `toml:"omnisharded_tables"`
	Schemas     []layout.ShardedSchema `toml:"sharded_schemas"`
	General     generalSection         `toml:"general"`
	Copy        copySection            `toml:"copy"`
	Stream      streamSection          `toml:"stream"`
	Cutover     cutoverSection         `toml:"cutover"`
	Sequences   sequencesSection       `toml:"sequences"`
	Hooks       hooksSection           `toml:"hooks"`
	HTTP        httpSection            `toml:"http"`
	NATS        natsSection            `toml:"nats"`
	CDC         cdcSection             `toml:"cdc"`
	Checks      []checkSection         `toml:"checks"`

	// Ignored names the PgDog keys that are there, accepted, and do not concern placement.
	Ignored []string `toml:"-"`
}

type moveSection struct {
	Name string `toml:"name"`
}

type clusterSection struct {
	Database string         `toml:"database"` // the name rules refer to
	Layout   int            `toml:"layout"`
	Shards   []shardSection `toml:"shards"`
}

type shardSection struct {
	URL      address   `toml:"url"`
	Replicas []address `toml:"replicas"` // read by check only
	Weight   int       `toml:"weight"`   // its part of the slots beside the others'; 0: 1
}

type tablesSection struct {
	Include         []string `toml:"include"` // empty: all
	Exclude         []string `toml:"exclude"`
	ReplicaIdentity string   `toml:"replica_identity"`
}

type schemaSection struct {
	Create bool     `toml:"create"`
	Owners bool     `toml:"owners"`
	Grants bool     `toml:"grants"`
	Skip   []string `toml:"skip"` // "fk:name" or "unique:name"
}

type generalSection struct {
	LookupCacheSize byteSize `toml:"sharding_lookup_cache_size"`
	LookupTimeout   int      `toml:"sharding_lookup_timeout"` // milliseconds
	LookupAttempts  int      `toml:"sharding_lookup_routing_attempts"`
	ShowKeys        bool     `toml:"show_keys"`
}

type copySection struct {
	Workers int    `toml:"workers"` // per source shard
	Sources int    `toml:"sources"` // at once; 0: all
	Format  string `toml:"format"`
}

type streamSection struct {
	BatchBytes  byteSize `toml:"batch_bytes"`
	BatchDelay  duration `toml:"batch_delay"`
	Confirm     string   `toml:"confirm"`
	OnDDL       string   `toml:"on_ddl"`
	WALBudget   byteSize `toml:"wal_budget"` // 0: worked out from the server
	OnWALBudget string   `toml:"on_wal_budget"`
}

type cutoverSection struct {
	MaxFreeze      duration `toml:"max_freeze"`
	LockTimeout    duration `toml:"lock_timeout"`
	Attempts       int      `toml:"attempts"`
	OnBlockers     string   `toml:"on_blockers"`
	Window         string   `toml:"window"`
	EndOldSessions bool     `toml:"end_old_sessions"`
	MaxLag         byteSize `toml:"max_lag"`
	Verify         bool     `toml:"verify"`
	Reverse        bool     `toml:"reverse"`

	Hours window `toml:"-"` // Window, read
}

// moves says that there is a destination; else changes are published only.
func (c *Config) moves() bool { return len(c.Destination.Shards) > 0 }

type sequencesSection struct {
	Policy string `toml:"policy"`
}

type hooksSection struct {
	Timeout      duration `toml:"timeout"`
	BeforeFreeze []string `toml:"before_freeze"` // an argument list, as the two below
	AfterSwitch  []string `toml:"after_switch"`
	AfterUndo    []string `toml:"after_undo"`
}

type httpSection struct {
	Listen   string `toml:"listen"`
	TLSCert  string `toml:"tls_cert"`
	TLSKey   string `toml:"tls_key"`
	Insecure bool   `toml:"insecure"`
}

type natsSection struct {
	URL      address `toml:"url"`
	Embedded bool    `toml:"embedded"`
	StoreDir string  `toml:"store_dir"` // empty: <state dir>/nats
}

type cdcSection struct {
	Enabled  bool `toml:"enabled"`
	Snapshot bool `toml:"snapshot"`
}

type checkSection struct {
	Table      string   `toml:"table"`
	Aggregates []string `toml:"aggregates"`
	GroupBy    []string `toml:"group_by"`
	Where      string   `toml:"where"`
	Keys       []any    `toml:"keys"` // of the sharding key; a list each where that has several columns
}

// defaults is the configuration of an empty file.
func defaults() *Config {
	return &Config{
		Tables: tablesSection{ReplicaIdentity: "keep"},
		Schema: schemaSection{Create: true, Owners: true, Grants: true},
		General: generalSection{
			LookupCacheSize: 64 << 20, LookupTimeout: 5000, LookupAttempts: 3, ShowKeys: true,
		},
		Copy: copySection{Workers: 4, Format: "auto"},
		Stream: streamSection{
			BatchBytes: 4 << 20, BatchDelay: 50 * millisecond, Confirm: "standby", OnDDL: "stop", OnWALBudget: "stop",
		},
		Cutover: cutoverSection{
			MaxFreeze: 5 * second, LockTimeout: 500 * millisecond, Attempts: 10, OnBlockers: "undo",
			MaxLag: 16 << 20, Verify: true, Reverse: true,
		},
		Sequences: sequencesSection{Policy: "stride"},
		Hooks:     hooksSection{Timeout: 30 * second},
		HTTP:      httpSection{Listen: "127.0.0.1:7432"},
		CDC:       cdcSection{Snapshot: true},
	}
}

const (
	millisecond = duration(1e6)
	second      = duration(1e9)
)

package sink

import (
	"slices"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Table is how the changes of one source table (a root with its leaves) are written. It is made once a run from both
// sides' catalogs; a Stream never changes it.
type Table struct {
	Source  pg.Name     // the source's root table, as messages name it
	Dest    pg.Name     // the destination's table
	Columns []pg.Column // the destination's columns that are written: those the source has too, generated ones left out
	Key     []int       // indexes into Columns that find a row: the destination's key; empty: a table without key
	Logged  []int       // indexes into Columns that an old row carries
	Rule    *layout.Rule
	RuleKey []int // indexes into Columns of the sharding key, in the rule's order; empty for an omnisharded table
	// SourceKey are the columns Stream.Mine takes, in the source layout's order; nil: RuleKey.
	SourceKey []int
	Query     *lookup.Query // translates the key first, or has it hashed (Rule.HashQuery); nil where it is placed as it is
	AskAll    bool          // the lookup's tables are sharded: all shards are asked and exactly one must answer
	Guard     []int         // columns that lookups read: an update that changes one of them changes translations

	// SourceParts and DestParts: the table is partitioned on that side, so that its rows stand in its partitions. Rows of
	// a table that is not are its own alone: those of tables that inherit from it are moved as theirs.
	SourceParts, DestParts bool

	// DestKey is the destination's own key, which an upsert conflicts on, where rows are found by another; nil: Key.
	DestKey []int

	// Renamed finds a column that the source calls by another name already: the source's name to the destination's.
	Renamed map[string]string
	// Gone are columns that are not written though rows may carry them: those the source has no more, and generated ones
	// (logged from 18 on), which the destination computes.
	Gone map[string]bool
	// Before: what a row of a transaction before this position carries under a name nobody knows was added and dropped
	// again since, and is left out too.
	Before pg.LSN

	// Forgive: changes of transactions that end at or before this position may already be in what was copied.
	Forgive pg.LSN
	// StartsAt: changes of transactions that commit before this position are in what was copied, exactly.
	StartsAt pg.LSN
	// Feeds lists the queries whose translations come from this table.
	Feeds []Feed
	// WithMapping says that a row always lives on the shard of the mapping row its key is translated by.
	WithMapping bool
	// Answers lists those of Feeds that a passing row answers by itself.
	Answers []Answer
}

func (t *Table) conflictKey() []int {
	if t.DestKey != nil {
		return t.DestKey
	}
	return t.Key
}

// mineKey are the columns that tell which source a row is of.
func (t *Table) mineKey() []int {
	if t.SourceKey != nil {
		return t.SourceKey
	}
	return t.RuleKey
}

// loose says that an old row does not tell which shard it is on: the identity lacks the sharding key, or the key is
// translated by a mapping that may have changed since.
func (t *Table) loose() bool {
	if t.Rule.Omni {
		return false
	}
	if !t.fixed() {
		return true
	}
	for _, k := range t.RuleKey {
		if !slices.Contains(t.Logged, k) {
			return true
		}
	}
	return false
}

// fixed says that a key has one place for good: no mapping translates it.
func (t *Table) fixed() bool { return t.Query == nil || t.Rule.HashQuery != "" }

// asks says that a server is asked before the key can be placed. Nobody need be for the hash of NULL.
func (t *Table) asks(key []pg.Datum) bool {
	return t.Query != nil && (t.Rule.HashQuery == "" || key[0].Kind != pg.Null)
}

// sourceRows and destRows name the table's rows in SELECT, UPDATE, DELETE and TRUNCATE.
func (t *Table) sourceRows() string { return rowsOf(t.Source, t.SourceParts) }
func (t *Table) destRows() string   { return rowsOf(t.Dest, t.DestParts) }

func rowsOf(table pg.Name, parts bool) string {
	if parts {
		return table.SQL()
	}
	return "only " + table.SQL()
}

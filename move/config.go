package move

import (
	"time"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/pg"
)

// Config is everything a move is told. Names of shards within a Side are their positions.
type Config struct {
	Name        string // ^[a-z][a-z0-9_-]{0,39}$
	Source      Side
	Destination Side

	Include, Exclude []string // "schema.table" patterns with *; Include empty: every table
	SetIdentity      bool     // replica_identity = "full": set it where needed

	CreateSchema   bool // false: the destination's tables exist and must match
	Owners, Grants bool
	SkipConstraint []string // "fk:name", "unique:name"

	LookupBytes    int64
	HideKeys       bool // the keys of rows that stop the move or differ are told by their hash
	LookupTimeout  time.Duration
	LookupAttempts int

	CopyWorkers int           // per source shard
	CopySources int           // at once; 0: all
	CopyFormat  copier.Format // auto, binary or text

	BatchBytes int
	BatchDelay time.Duration
	OnDDL      string // DDLStop (also where it is empty), DDLIgnore or DDLExec
	Confirm    string // ConfirmStandby (also where it is empty) or ConfirmLeader

	WALBudget   int64  // bytes of log a slot may keep; 0: worked out from the server
	OnWALBudget string // BudgetStop (also where it is empty) or BudgetAlarm

	MaxFreeze   time.Duration
	LockTimeout time.Duration
	Attempts    int
	MaxLag      int64 // bytes
	MustVerify  bool  // a clean verification must exist before the switch
	Reverse     bool
	Sequences   string // stride, copy or none
	Hooks       Hooks
	OnBlockers  string // BlockersUndo (also where it is empty) or BlockersTerminate

	Checks []Check // asked of both sides by Check, CheckNow and the verifications

	Publishes      bool // [cdc] is on
	EndOldSessions bool // after the switch those that applications have on the layout that was left

	PgBin    string // where pg_dump and pg_restore are; empty: PATH and the usual places
	StateDir string // for files that may be lost: the schema's archive
	Address  string // where this worker listens, for whoever looks for it
}

// Side is one layout's shards and rules.
type Side struct {
	Database string
	Layout   int
	Shards   []pg.Shard
	Replicas [][]pg.Shard // by shard; Check alone reads there
	Spec     layout.Spec  // its rules; Version, Database and Shards are filled in from the fields above
}

func (s Side) spec() layout.Spec {
	spec := s.Spec.Of(s.Database, s.Database)
	spec.Version, spec.Database, spec.Shards = s.Layout, s.Database, len(s.Shards)
	return spec
}

// States of a move, in order (docs/design.md has the picture). A failure is no state.
const (
	StateCreated     = "created"
	StateSchema      = "schema"
	StateCopying     = "copying"
	StateIndexing    = "indexing"
	StateStreaming   = "streaming"
	StateCuttingOver = "cutting_over"
	StateSwitched    = "switched"
	StateRollingBack = "rolling_back"
	StateRolledBack  = "rolled_back"
	StateCompleted   = "completed"
	StateCancelled   = "cancelled"
)

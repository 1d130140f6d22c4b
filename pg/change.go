package pg

import "time"

// Kind is the state of one column in a row, with the letters of the logical replication protocol
// (PostgreSQL documentation, "Logical Replication Message Formats", TupleData).
type Kind byte

// The states of a column. The zero value is none of them.
const (
	Null      Kind = 'n'
	Unchanged Kind = 'u' // an unchanged TOASTed value that the log does not carry
	Text      Kind = 't'
	Binary    Kind = 'b'
)

// Datum is one column's value. Bytes is meaningful for Text and Binary only and is never nil there (an empty string
// is a non-nil empty slice).
type Datum struct {
	Bytes []byte
	Kind  Kind
}

// Row is a row's columns in the order of the Relation (stream) or of the column list (copy) it came with.
type Row []Datum

// Op says what a Change is.
type Op byte

// The kinds of change a stream delivers, in the order the log has them.
const (
	OpBegin Op = iota + 1
	OpInsert
	OpUpdate
	OpDelete
	OpTruncate
	OpMessage
	OpCommit
)

// Relation is a table as the stream described it last. It is never changed after it was sent: a table described
// again is a new Relation.
type Relation struct {
	OID     uint32
	Name    Name
	Replica ReplicaIdentity
	Columns []RelationColumn
}

// RelationColumn is one published column. Under REPLICA IDENTITY FULL every column carries Key.
type RelationColumn struct {
	Name    string
	TypeOID uint32
	Typmod  int32
	Key     bool
}

// Tx is a source transaction. End is known with its commit and is the only one of these that is a position to
// resume from; Commit decides whether a shard already has it.
type Tx struct {
	Xid    uint32
	Commit LSN // BEGIN's final LSN: where the commit record starts
	End    LSN // where the commit record ends; 0 until OpCommit
	Time   time.Time
}

// Truncate is one TRUNCATE of one or several tables.
type Truncate struct {
	Relations       []*Relation
	Cascade         bool
	RestartIdentity bool
}

// Message is what pg_logical_emit_message wrote.
type Message struct {
	Transactional bool
	Prefix        string
	Content       []byte
	LSN           LSN
}

// Change is one event of the stream. Slices inside it belong to the Block it came in.
type Change struct {
	Op       Op
	OldFull  bool // Old holds every column (an 'O' tuple), not just the identity's (a 'K' tuple)
	Relation *Relation
	Old      Row // nil where the log carries no old row; in a 'K' tuple only identity columns mean anything
	New      Row
	Tx       *Tx // set on every change but non-transactional messages
	Truncate *Truncate
	Message  *Message
}

// Block is a run of changes in log order, handed over whole. Its memory is one allocation per few hundred rows, so a
// consumer that keeps a row keeps its block.
type Block struct {
	Changes []Change
	Bytes   int // what it holds of the queue's byte bound
	// Idle, where not zero, says that after Changes the server had sent everything up to this position and no
	// transaction was open: a position that may become a checkpoint.
	Idle LSN
}

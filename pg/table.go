package pg

import "github.com/jackc/pgx/v5"

// Name is a table's schema and name as the catalog has them, unquoted.
type Name struct{ Schema, Table string }

// String is the plain form for messages; it is not safe inside SQL.
func (n Name) String() string { return n.Schema + "." + n.Table }

// SQL is the quoted form for statements.
func (n Name) SQL() string { return pgx.Identifier{n.Schema, n.Table}.Sanitize() }

// Column is one live column of a table.
type Column struct {
	Num           int16  // pg_attribute.attnum
	Name          string // unquoted
	TypeOID       uint32 // on the server it was read from
	BaseOID       uint32 // the type under every domain; TypeOID where there is none
	Typmod        int32
	Type          string // format_type with modifier under search_path pg_catalog: valid in a cast on that server
	Base          string // the same of the type under every domain, without modifier: a cast to it cuts nothing
	TypeType      byte   // pg_type.typtype of the column's type: b c d e r m
	ElemOID       uint32 // element type where the (base) type is a true array, else 0
	ArrayOID      uint32 // the array type over this type, 0 where there is none
	NotNull       bool
	Identity      byte // 'a' always, 'd' by default, 0 none
	Generated     byte // 's' stored, 'v' virtual (18), 0 none
	HasDefault    bool
	Default       string  // pg_get_expr of the default, under search_path pg_catalog; empty: none
	Missing       *string // text of the value that rows from before the column was added have; nil: NULL, or no such rows
	Collation     string  // quoted, schema-qualified; empty where the type has none or the default is used
	Deterministic bool    // false only for a non-deterministic collation
	Row           string  // hash of the column's row in pg_attribute
	Written       string  // the transaction that wrote it (its xmin)
}

// SQL is the quoted name.
func (c Column) SQL() string { return pgx.Identifier{c.Name}.Sanitize() }

// FirstUserOID is where a server begins to number what users make (FirstNormalObjectId in PostgreSQL): what has a lower OID is the
// server's own, and has the same on every server.
const FirstUserOID = 16384

// ReplicaIdentity is pg_class.relreplident.
type ReplicaIdentity byte

// The four replica identities.
const (
	IdentityDefault ReplicaIdentity = 'd'
	IdentityIndex   ReplicaIdentity = 'i'
	IdentityFull    ReplicaIdentity = 'f'
	IdentityNothing ReplicaIdentity = 'n'
)

// Table is one table as a server's catalog describes it.
type Table struct {
	OID         uint32
	Name        Name
	Kind        byte // pg_class.relkind: 'r' ordinary, 'p' partitioned
	Persistence byte // pg_class.relpersistence: 'p' permanent, 'u' unlogged
	Owner       string
	Columns     []Column // live columns in attnum order
	Replica     ReplicaIdentity
	// ReplicaIndex is the index chosen as replica identity, empty unless Replica is IdentityIndex.
	ReplicaIndex string

	// Key lists the columns (indexes into Columns) that tell one row from another: the primary key, else the index
	// chosen as replica identity; never a deferrable, partial or nullable one. Empty: the table has no such key.
	Key []int
	// Logged lists the columns an UPDATE or DELETE carries of the old row: Key for DEFAULT, the index for INDEX,
	// every column for FULL, none for NOTHING or a DEFAULT without primary key.
	Logged []int

	Filenode uint32 // pg_relation_filenode: changes with every rewrite
	Parent   uint32 // partition parent's OID, 0 where it is no partition
	Root     uint32 // topmost partition parent's OID, its own OID where it is no partition
	Bound    string // partition bound expression
	Pages    int64  // pg_relation_size in blocks of the server's block size, 0 for a partitioned table
	Bytes    int64  // pg_table_size: heap and TOAST, without indexes
	Rows     int64  // reltuples, -1 unknown
}

// Column finds a column by name; ok is false where the table has none of that name.
func (t *Table) Column(name string) (i int, ok bool) {
	for i, c := range t.Columns {
		if c.Name == name {
			return i, true
		}
	}
	return 0, false
}

// IsLeaf says that the table itself holds rows.
func (t *Table) IsLeaf() bool { return t.Kind == 'r' }

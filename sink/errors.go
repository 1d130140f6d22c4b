package sink

import (
	"fmt"

	"pgreshard/layout"
	"pgreshard/pg"
)

// DivergedError means that a shard does not hold what the stream says it must: a row to change or delete is not there,
// or one to insert is. The stream stops before the transaction. Key is for the operator's eyes, never for a log.
type DivergedError struct {
	Table pg.Name
	Shard layout.Shard
	What  string // "update of a row that is not there"
	Key   string // at most 64 bytes, empty where the table has no key
	At    pg.LSN // commit LSN of the transaction
	Err   error  // the server's error, where there is one
}

func (e *DivergedError) Error() string {
	cause := ""
	if e.Err != nil {
		cause = ": " + e.Err.Error()
	}
	return fmt.Sprintf("%s on shard %d at %s: %s%s; hint: something else wrote to the shard, or two sources have a row of one key; `pgreshard verify` lists the rows that differ, `pgreshard verify --repair` mends them",
		e.Table, e.Shard, e.At, e.What, cause)
}

func (e *DivergedError) Unwrap() error { return e.Err }

// RowKey is the key of the row that stopped the move.
func (e *DivergedError) RowKey() string { return e.Key }

// SchemaError means that the source's table changed its columns while the move runs.
type SchemaError struct {
	Source int
	At     pg.LSN // commit of the transaction that shows it
	Table  pg.Name
	What   string
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("%s: %s; hint: run the same ALTER TABLE on every destination shard and start the same command again", e.Table, e.What)
}

// PlaceError means that no shard can be named for a row. The stream stops before its transaction, a copy at its chunk.
type PlaceError struct {
	Table pg.Name
	Key   string // at most 64 bytes
	At    pg.LSN // commit LSN in a stream, 0 in a copy
	Err   error
}

func (e *PlaceError) Error() string {
	where := "in the copy"
	if e.At != 0 {
		where = "at " + e.At.String()
	}
	return fmt.Sprintf("%s %s: a row has no shard: %v", e.Table, where, e.Err)
}

func (e *PlaceError) Unwrap() error { return e.Err }

// RowKey is the key of the row that stopped the move.
func (e *PlaceError) RowKey() string { return e.Key }

// carefulError means that the rows of a table moved between shards, or changed what lookups read, in a way only seen by
// asking: the stream is to be read again from the lowest checkpoint, asking row by row for this table.
type carefulError struct {
	table *Table
	at    pg.LSN // of the transaction that showed it
}

func (e *carefulError) Error() string {
	return fmt.Sprintf("%s: a row moved to another shard", e.table.Source)
}

// keyText shows a row's key in an error meant for the operator, cut at 64 bytes.
func keyText(r pg.Row, columns []int) string {
	s := ""
	for i, c := range columns {
		if i > 0 {
			s += ","
		}
		switch {
		case r == nil || r[c].Kind == pg.Null:
			s += "NULL"
		default:
			s += string(r[c].Bytes)
		}
	}
	return s[:min(len(s), 64)]
}

package layout

import (
	"encoding/hex"
	"fmt"
	"strings"

	"pgreshard/pg"
)

// NoShardError says that no rule names a shard for a row. The move stops there. In a copy the operator mends the row and
// starts the same command again; rules are changed only by starting over.
type NoShardError struct {
	Table   pg.Name
	Columns []string
	Key     string // the key's values as text, | between columns; a row's value: shown only where keys may be
	Reason  string // in words, without the key
}

// Error names table, columns and reason, never the key.
func (e *NoShardError) Error() string {
	return fmt.Sprintf("%s: no shard for the key in %s: %s", e.Table, strings.Join(e.Columns, ", "), e.Reason)
}

const (
	reasonOmni     = "the table is omnisharded: it has no key, every shard holds each row"
	reasonColumns  = "the key does not have the rule's columns"
	reasonUnmapped = "no list or range of its mapping holds it and there is no default"
	reasonNullSHA1 = "NULL has no SHA-1 (hasher = \"postgres\" places it)"
	reasonNumber   = "the lookup did not answer with the number of a shard"
)

func (r *Rule) noShard(key []pg.Datum, reason string) error {
	return &NoShardError{Table: r.Table, Columns: r.Columns, Key: r.keyString(key), Reason: reason}
}

func (r *Rule) unreadable(key []pg.Datum, column int, err error) error {
	return r.noShard(key, fmt.Sprintf("%s as %s: %v", r.Columns[column], r.types[column], err))
}

// keyString shows a key to a person: text where it can, else the bytes in hex.
func (r *Rule) keyString(key []pg.Datum) string {
	parts := make([]string, len(key))
	for i, d := range key {
		switch d.Kind {
		case pg.Null:
			parts[i] = "NULL"
		case pg.Text:
			parts[i] = string(d.Bytes)
		default:
			parts[i] = `\x` + hex.EncodeToString(d.Bytes)
			if i < len(r.types) && r.types[i].hasText() {
				if v, err := r.types[i].read(d, nil); err == nil {
					parts[i] = string(r.types[i].appendText(nil, v))
				}
			}
		}
	}
	return strings.Join(parts, "|")
}

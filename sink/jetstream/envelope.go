package jetstream

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"pgreshard/pg"
)

// Unavailable stands for a value that the log does not carry: a large one that an UPDATE left as it was.
const Unavailable = "__debezium_unavailable_value"

// Table is what an event says of the table it is of.
type Table struct {
	Name      pg.Name  // under which it is published: of a partition, its root's
	Partition pg.Name  // of which the row is; zero where the table is no partition
	Key       []string // the columns that tell its rows apart and that the log always carries; none: all columns together
}

// event is one message but for its last bytes, which say whether it is its transaction's last.
type event struct {
	op      byte
	subject string
	at      Mark
	body    []byte
}

// What ends an event, and one that is its transaction's last.
const (
	eventEnd = "}}"
	lastEnd  = `,"last":true}}`
)

// change is what one event is made of.
type change struct {
	op       byte // c, u, d, r or t
	table    Table
	relation *pg.Relation
	old, new pg.Row
	oldFull  bool
	snapshot bool
	xid      uint32
	time     time.Time // when it was committed
	at       Mark
}

// event writes the envelope: before, after, op, ts_ms, and source, which comes last and stays open.
func (o *Origin) event(c *change) (*event, error) {
	b := []byte(`{"before":`)
	var err error
	if b, err = appendRow(b, c, c.old, true, nil); err != nil {
		return nil, err
	}
	var unavailable []string
	b = append(b, `,"after":`...)
	if b, err = appendRow(b, c, c.new, false, &unavailable); err != nil {
		return nil, err
	}
	millis := c.time.UnixMilli()
	b = fmt.Appendf(b, `,"op":"%c","ts_ms":%d,"source":{"connector":"pgreshard","name":"%s","ts_ms":%d,"snapshot":"%t","db":`, c.op, millis, o.Move, millis, c.snapshot)
	b = appendString(b, o.Database)
	b = appendString(append(b, `,"schema":`...), c.table.Name.Schema)
	b = appendString(append(b, `,"table":`...), c.table.Name.Table)
	if c.table.Partition != (pg.Name{}) {
		b = appendString(append(b, `,"partition":`...), c.table.Partition.String())
	}
	b = appendStrings(append(b, `,"key":`...), c.table.Key)
	if unavailable != nil {
		b = appendStrings(append(b, `,"unavailable":`...), unavailable)
	}
	if !c.snapshot {
		b = fmt.Appendf(b, `,"txId":%d`, c.xid)
	}
	lsn := c.at.Commit
	if c.snapshot {
		lsn = o.Slot
	}
	b = fmt.Appendf(b, `,"lsn":%d,"layout":%d,"shard":%d,"n":%d`, lsn, o.Layout, o.Shard, c.at.N)
	return &event{op: c.op, subject: Subject(o.Move, c.table.Name, o.Shard), at: c.at, body: b}, nil
}

// appendRow writes a row as an object in the order of its columns. Of an old row of which the log has the identity alone
// only that is there. A new row's values that the log does not carry are taken from the old one where that is whole.
func appendRow(b []byte, c *change, row pg.Row, old bool, unavailable *[]string) ([]byte, error) {
	if row == nil {
		return append(b, "null"...), nil
	}
	next := byte('{')
	for i, column := range c.relation.Columns {
		value := row[i]
		switch {
		case old && !c.oldFull && !column.Key:
			continue
		case value.Kind == pg.Unchanged && !old && c.oldFull:
			value = c.old[i]
		}
		b = append(b, next)
		next = ','
		b = append(appendString(b, column.Name), ':')
		switch value.Kind {
		case pg.Null:
			b = append(b, "null"...)
		case pg.Unchanged:
			b = appendString(b, Unavailable)
			if unavailable != nil {
				*unavailable = append(*unavailable, column.Name)
			}
		case pg.Text:
			if !utf8.Valid(value.Bytes) {
				return nil, fmt.Errorf("a value of column %q of %s is not UTF-8, and JSON has no other text; hint: take the table out of [tables], or correct its encoding",
					column.Name, c.relation.Name)
			}
			b = appendValue(b, column.TypeOID, value.Bytes)
		default:
			return nil, fmt.Errorf("column %q of %s comes as %q", column.Name, c.relation.Name, rune(value.Kind))
		}
	}
	if next == '{' { // a table without columns
		b = append(b, '{')
	}
	return append(b, '}'), nil
}

// Types whose values every JSON reader takes exactly (pg_type.oid).
const (
	typeBool = 16
	typeInt2 = 21
	typeInt4 = 23
)

// appendValue writes a boolean as true or false, smallint and integer as numbers, and everything else as the server's text: an
// int8, a numeric or a float as a JSON number would lose digits in most readers.
func appendValue(b []byte, typeOID uint32, text []byte) []byte {
	switch typeOID {
	case typeBool:
		return strconv.AppendBool(b, string(text) == "t")
	case typeInt2, typeInt4:
		return append(b, text...)
	}
	return appendString(b, string(text))
}

func appendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = fmt.Appendf(b, `\u%04x`, c)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

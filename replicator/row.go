package replicator

import (
	"bytes"
	"encoding/binary"

	"pgreshard/pg"
)

// row reads INSERT, UPDATE or DELETE.
func (d *decoder) row(r *reader) {
	if d.tx == nil {
		r.fail("row outside a transaction")
		return
	}
	oid := r.uint32()
	rel := d.last
	if rel == nil || rel.OID != oid {
		if rel = d.relations[oid]; rel == nil {
			r.fail("row of a table no Relation message has described")
			return
		}
		d.last = rel
	}
	c := d.add()
	c.Relation, c.Tx = rel, d.tx
	op, tuple := r.msg[0], r.byte()
	if op != 'I' && (tuple == 'K' || tuple == 'O') {
		c.OldFull = tuple == 'O'
		c.Old = d.tuple(r, rel)
		if op == 'U' {
			tuple = r.byte()
		}
	}
	switch op {
	case 'I':
		c.Op = pg.OpInsert
	case 'U':
		c.Op = pg.OpUpdate
	default:
		c.Op = pg.OpDelete
	}
	switch {
	case op != 'D' && tuple == 'N':
		c.New = d.tuple(r, rel)
	case op != 'D' || c.Old == nil:
		r.fail("unknown tuple type")
	}
	r.end()
}

// tuple cuts the columns out of the message, which is the slab's by now. The row is never nil, also without columns.
func (d *decoder) tuple(r *reader, rel *pg.Relation) pg.Row {
	n := int(r.uint16())
	if r.why != "" {
		return nil
	}
	if n != len(rel.Columns) {
		r.fail("another number of columns than the table was described with")
		return nil
	}
	row, msg, at := d.columns(n), r.msg, r.at
	for i := range row {
		if at >= len(msg) {
			r.short(at)
			return nil
		}
		kind := pg.Kind(msg[at])
		switch kind {
		case pg.Text, pg.Binary:
			if len(msg)-at < 5 {
				r.short(at)
				return nil
			}
			size := uint64(binary.BigEndian.Uint32(msg[at+1:]))
			at += 5
			if size > uint64(len(msg)-at) {
				r.short(at)
				return nil
			}
			end := at + int(size)
			row[i].Bytes = msg[at:end:end]
			at = end
		case pg.Null, pg.Unchanged:
			at++
		default:
			r.at = at
			r.fail("unknown kind of column value")
			return nil
		}
		row[i].Kind = kind
	}
	r.at = at
	return row
}

// reader reads a message and remembers the first thing wrong with it; after that it yields zeros.
type reader struct {
	msg []byte
	at  int
	why string
}

func (r *reader) fail(why string) {
	if r.why == "" {
		r.why = why
	}
}

func (r *reader) short(at int) {
	r.at = at
	r.fail("message ends too early")
}

// end says whether the message was read whole and well.
func (r *reader) end() bool {
	if r.why == "" && r.at != len(r.msg) {
		r.fail("bytes left over")
	}
	return r.why == ""
}

// take is the next n bytes, nil where there are not so many.
func (r *reader) take(n int) []byte {
	if r.why != "" || n > len(r.msg)-r.at {
		r.fail("message ends too early")
		return nil
	}
	b := r.msg[r.at : r.at+n : r.at+n]
	r.at += n
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.msg)-r.at) {
		r.fail("message ends too early")
		return nil
	}
	return r.take(int(n))
}

// string reads up to the next zero byte.
func (r *reader) string() string {
	if r.why != "" {
		return ""
	}
	n := bytes.IndexByte(r.msg[r.at:], 0)
	if n < 0 {
		r.fail("name without an end")
		return ""
	}
	s := string(r.msg[r.at : r.at+n])
	r.at += n + 1
	return s
}

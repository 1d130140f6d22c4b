package copier

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"pgreshard/pg"
)

// framer finds the rows in what COPY TO sends, wherever the messages that carry it end, and the key in each row. It
// allocates nothing per row: rows and keys are slices of what was written, valid until emit returns.
type framer struct {
	binary  bool
	columns int
	slot    []int // by column: its place in the key, -1 where it is none
	last    int   // last column that is part of the key, -1 where there is no key
	emit    func(row []byte, key []pg.Datum) error

	rows, bytes int64
	key         []pg.Datum
	unescaped   []byte
	partial     []byte // the start of a row whose rest has not come yet
	searched    int    // how much of it is known to hold no line end
	begun       bool   // binary: the header was read
	ended       bool   // binary: the trailer was read
}

func newFramer(c *pg.Copy, emit func(row []byte, key []pg.Datum) error) *framer {
	f := &framer{binary: c.Binary, columns: len(c.Columns), slot: make([]int, len(c.Columns)), last: -1, emit: emit}
	for i := range f.slot {
		f.slot[i] = -1
	}
	for n, column := range c.Key {
		f.slot[column] = n
		f.last = max(f.last, column)
	}
	f.key = make([]pg.Datum, len(c.Key))
	return f
}

// write takes the next piece of the stream and emits the rows that are whole with it.
func (f *framer) write(p []byte) error {
	if len(f.partial) == 0 {
		used, err := f.take(p)
		f.partial = append(f.partial, p[used:]...)
		return err
	}
	f.partial = append(f.partial, p...)
	used, err := f.take(f.partial)
	f.partial = f.partial[:copy(f.partial, f.partial[used:])]
	return err
}

// take emits the whole rows at the start of b and says how many bytes they are.
func (f *framer) take(b []byte) (used int, err error) {
	if f.binary && !f.begun {
		if used, err = f.header(b); used == 0 || err != nil {
			return 0, err
		}
		f.begun = true
	}
	for used < len(b) {
		if f.ended {
			return used, errors.New("COPY sent data after its end")
		}
		var n int
		if f.binary {
			n, err = f.binaryRow(b[used:])
		} else {
			n, err = f.textRow(b[used:])
		}
		if n == 0 || err != nil {
			return used, err
		}
		if !f.ended {
			f.rows++
			f.bytes += int64(n)
			if err := f.emit(b[used:used+n], f.key); err != nil {
				return used, err
			}
		}
		used += n
	}
	return used, nil
}

// finish says whether the stream ended where a row ends and had as many rows as the server says.
func (f *framer) finish(rows int64) error {
	switch {
	case len(f.partial) > 0, f.binary && !f.ended:
		return errors.New("COPY ended inside a row")
	case rows != f.rows:
		return fmt.Errorf("COPY sent %d rows and says they are %d", f.rows, rows)
	}
	return nil
}

const signature = "PGCOPY\n\xff\r\n\x00"

// header reads the signature, the flags (of which none is known that matters) and an extension, which is skipped.
func (f *framer) header(b []byte) (int, error) {
	const fixed = len(signature) + 8
	if len(b) < fixed {
		return 0, nil
	}
	flags, extension := binary.BigEndian.Uint32(b[len(signature):]), binary.BigEndian.Uint32(b[len(signature)+4:])
	if string(b[:len(signature)]) != signature || flags != 0 || extension > 1<<20 {
		return 0, errors.New("COPY began with a header of an unknown kind")
	}
	if len(b)-fixed < int(extension) {
		return 0, nil
	}
	return fixed + int(extension), nil
}

// binaryRow walks the lengths of one row; 0 means that b does not hold all of it.
func (f *framer) binaryRow(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, nil
	}
	count := int(int16(binary.BigEndian.Uint16(b)))
	if count == -1 {
		f.ended = true
		return 2, nil
	}
	if count != f.columns {
		return 0, fmt.Errorf("COPY sent a row of %d columns, not %d", count, f.columns)
	}
	at := 2
	for _, slot := range f.slot {
		if len(b)-at < 4 {
			return 0, nil
		}
		size := int(int32(binary.BigEndian.Uint32(b[at:])))
		at += 4
		value := pg.Datum{Kind: pg.Null}
		if size != -1 {
			if size < 0 {
				return 0, fmt.Errorf("COPY sent a value of %d bytes", size)
			}
			if len(b)-at < size {
				return 0, nil
			}
			value = pg.Datum{Kind: pg.Binary, Bytes: b[at : at+size : at+size]}
			at += size
		}
		if slot >= 0 {
			f.key[slot] = value
		}
	}
	return at, nil
}

// textRow finds the line's end and the key's fields; 0 means that b does not hold all of it. Line ends and tabs inside
// values are escaped, so the bytes themselves are always borders.
func (f *framer) textRow(b []byte) (int, error) {
	end := bytes.IndexByte(b[f.searched:], '\n')
	if end < 0 {
		f.searched = len(b)
		return 0, nil
	}
	end += f.searched
	f.searched = 0
	f.unescaped = f.unescaped[:0]
	rest := b[:end]
	for i, slot := range f.slot[:f.last+1] {
		field := rest
		tab := bytes.IndexByte(rest, '\t')
		switch {
		case tab >= 0:
			field, rest = rest[:tab], rest[tab+1:]
		case i < f.columns-1:
			return 0, fmt.Errorf("COPY sent a row of %d columns, not %d", i+1, f.columns)
		}
		if slot < 0 {
			continue
		}
		var err error
		if f.key[slot], err = f.textValue(field); err != nil {
			return 0, err
		}
	}
	return end + 1, nil
}

// textValue undoes the escapes COPY TO makes.
func (f *framer) textValue(field []byte) (pg.Datum, error) {
	at := bytes.IndexByte(field, '\\')
	if at < 0 {
		return pg.Datum{Kind: pg.Text, Bytes: field[:len(field):len(field)]}, nil
	}
	if len(field) == 2 && field[1] == 'N' {
		return pg.Datum{Kind: pg.Null}, nil
	}
	start := len(f.unescaped)
	for ; at >= 0; at = bytes.IndexByte(field, '\\') {
		if at+1 == len(field) {
			return pg.Datum{}, errors.New("COPY sent a value that ends inside an escape")
		}
		c := unescape(field[at+1])
		if c == 0 {
			return pg.Datum{}, fmt.Errorf("COPY sent the unknown escape \\%c", field[at+1])
		}
		f.unescaped = append(append(f.unescaped, field[:at]...), c)
		field = field[at+2:]
	}
	f.unescaped = append(f.unescaped, field...)
	return pg.Datum{Kind: pg.Text, Bytes: f.unescaped[start:len(f.unescaped):len(f.unescaped)]}, nil
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'v':
		return '\v'
	case '\\':
		return '\\'
	}
	return 0
}

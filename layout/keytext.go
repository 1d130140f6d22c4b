package layout

import (
	"encoding/hex"
	"errors"
	"strconv"

	"pgreshard/pg"
)

// KeyText appends the text form of the column's value, as the server prints it, which is what a lookup is asked for:
// Text as it is, Binary where BinaryKey says so. A NULL has none and is an error. Under on_missing = "identity" the same
// text is what Place takes.
func (r *Rule) KeyText(dst []byte, key pg.Datum) ([]byte, error) {
	if key.Kind == pg.Text {
		return append(dst, key.Bytes...), nil
	}
	t := r.source
	if r.Lookup == "" && r.HashQuery == "" && len(r.types) == 1 {
		t = r.types[0]
	}
	if key.Kind != pg.Binary || !t.hasText() {
		return dst, errNoText
	}
	if t == typeBPChar { // blanks are part of what the server prints
		return append(dst, key.Bytes...), nil
	}
	var scratch [scratchSize]byte
	v, err := t.read(key, scratch[:0])
	if err != nil {
		return dst, err
	}
	return t.appendText(dst, v), nil
}

var errNoText = errors.New("a key without a text form")

// hasText says that appendText knows the one text form every value of the type has.
func (t keyType) hasText() bool {
	switch t {
	case typeBool, typeInt2, typeInt4, typeInt8, typeOID, typeText, typeVarchar, typeName, typeBPChar, typeUUID, typeBytea:
		return true
	}
	return false
}

// appendText appends the text form of a value of a type that hasText: char(n) without its trailing blanks, as a cast to
// text gives it, bytea in hex.
func (t keyType) appendText(dst []byte, v value) []byte {
	switch t {
	case typeBool:
		return append(dst, "ft"[v.n])
	case typeInt2, typeInt4, typeInt8, typeOID:
		return strconv.AppendInt(dst, v.n, 10)
	case typeBytea:
		return hex.AppendEncode(append(dst, `\x`...), v.b)
	case typeUUID:
		for i, b := range v.b {
			if i == 4 || i == 6 || i == 8 || i == 10 {
				dst = append(dst, '-')
			}
			dst = append(dst, hexDigits[b>>4], hexDigits[b&15])
		}
		return dst
	}
	return append(dst, v.b...)
}

const hexDigits = "0123456789abcdef"

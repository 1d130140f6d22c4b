package layout

import (
	"bytes"
	"cmp"
	"errors"
	"math"

	"pgreshard/pg"
)

// value is one key column as it is hashed and compared, the same for both wire forms.
//
//	integers, date, time, timestamps, "char", bool   n
//	timetz                                           n microseconds of the day, x seconds west of UTC
//	interval                                         x high and n low half of its 128-bit length in microseconds
//	floats                                           n the bits of a float64
//	numeric                                          x its kind, n weight, b base-10000 digits, low byte first, no zeros around
//	text, bytea, uuid, macaddr                       b; char(n) without trailing blanks
//	inet, cidr                                       b family, bits, address
type value struct {
	n, x int64
	b    []byte
}

// scratchSize fits every fixed-size type and numerics of up to 128 digits.
const scratchSize = 64

var (
	errForm      = errors.New("not a value of the type")
	errUnchanged = errors.New("the log does not carry the value")
)

// read decodes either wire form. The value may point into d.Bytes or scratch, which is used up to its capacity.
func (t keyType) read(d pg.Datum, scratch []byte) (value, error) {
	switch d.Kind {
	case pg.Text:
		return t.readText(d.Bytes, scratch)
	case pg.Binary:
		return t.readBinary(d.Bytes, scratch)
	default:
		return value{}, errUnchanged
	}
}

// readable is read for whoever only wants to know whether there is a value.
func (t keyType) readable(d pg.Datum) (v value, ok bool) {
	if d.Kind == pg.Null {
		return v, false
	}
	v, err := t.read(d, nil)
	return v, err == nil
}

func (t keyType) readText(s, scratch []byte) (v value, err error) {
	switch t {
	case typeInt8, typeServer:
		v.n, err = parseInt(s, math.MinInt64, math.MaxInt64)
	case typeInt4:
		v.n, err = parseInt(s, math.MinInt32, math.MaxInt32)
	case typeInt2:
		v.n, err = parseInt(s, math.MinInt16, math.MaxInt16)
	case typeOID:
		v.n, err = parseInt(s, 0, math.MaxUint32)
	case typeText, typeVarchar, typeName:
		v.b = s
	case typeBPChar:
		v.b = bytes.TrimRight(s, " ")
	case typeUUID:
		v.b, err = parseUUID(s, scratch)
	case typeBool:
		v.n, err = parseBool(s)
	case typeChar:
		v.n, err = parseChar(s)
	case typeBytea:
		v.b, err = parseBytea(s, scratch)
	case typeMAC:
		v.b, err = parseMAC(s, 6, scratch)
	case typeMAC8:
		v.b, err = parseMAC(s, 8, scratch)
	case typeInet, typeCIDR:
		v.b, err = parseNet(s, scratch)
	case typeFloat4:
		return parseFloat(s, 32)
	case typeFloat8:
		return parseFloat(s, 64)
	case typeNumeric:
		return parseNumeric(s, scratch)
	case typeLSN:
		v.n, err = parseLSN(s)
	case typeDate:
		v.n, err = parseDate(s)
	case typeTime:
		v.n, err = parseTime(s)
	case typeTimeTZ:
		return parseTimeTZ(s)
	case typeTimestamp:
		v.n, err = parseTimestamp(s, false)
	case typeTimestampTZ:
		v.n, err = parseTimestamp(s, true)
	case typeInterval:
		return parseInterval(s)
	default:
		err = errForm
	}
	return v, err
}

// compare orders two values of one family as the type does; text by bytes, whatever its collation.
func (t keyType) compare(v, w value) int {
	switch t.class() {
	case classBytes:
		return bytes.Compare(v.b, w.b)
	case classNet:
		return compareNet(v.b, w.b)
	case classFloat:
		return compareFloat(math.Float64frombits(uint64(v.n)), math.Float64frombits(uint64(w.n)))
	case classNumeric:
		return compareNumeric(v, w)
	case classInterval:
		return cmp.Or(cmp.Compare(v.x, w.x), cmp.Compare(uint64(v.n), uint64(w.n)))
	case classTimeTZ:
		return cmp.Or(cmp.Compare(v.n+v.x*1e6, w.n+w.x*1e6), cmp.Compare(v.x, w.x))
	}
	if t == typeLSN {
		return cmp.Compare(uint64(v.n), uint64(w.n))
	}
	return cmp.Compare(v.n, w.n)
}

// compareFloat puts NaN above everything, as PostgreSQL does.
func compareFloat(f, g float64) int {
	if f != f || g != g {
		return cmp.Compare(nanRank(f), nanRank(g))
	}
	return cmp.Compare(f, g)
}

func nanRank(f float64) int {
	if f != f {
		return 1
	}
	return 0
}

// compareNet is network_cmp: the family, the bits both networks have, the width of the networks, the whole address.
func compareNet(v, w []byte) int {
	if v[0] != w[0] {
		return cmp.Compare(v[0], w[0])
	}
	common := int(min(v[1], w[1]))
	whole := 2 + common/8
	if c := bytes.Compare(v[2:whole], w[2:whole]); c != 0 {
		return c
	}
	if rest := common % 8; rest != 0 {
		shift := 8 - rest
		if c := cmp.Compare(v[whole]>>shift, w[whole]>>shift); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(v[1], w[1]), bytes.Compare(v[2:], w[2:]))
}

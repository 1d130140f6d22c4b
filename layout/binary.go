package layout

import (
	"bytes"
	"encoding/binary"
	"math"
)

// readBinary decodes the binary wire form (the type's send function). Lengths that cannot be are refused.
func (t keyType) readBinary(s, scratch []byte) (v value, err error) {
	if size := t.size(); size >= 0 && len(s) != size {
		return v, errForm
	}
	switch t {
	case typeInt8, typeTime, typeTimestamp, typeTimestampTZ, typeLSN:
		v.n = int64(binary.BigEndian.Uint64(s))
	case typeInt4, typeDate:
		v.n = int64(int32(binary.BigEndian.Uint32(s)))
	case typeInt2:
		v.n = int64(int16(binary.BigEndian.Uint16(s)))
	case typeOID:
		v.n = int64(binary.BigEndian.Uint32(s))
	case typeBool:
		if v.n = int64(s[0]); v.n > 1 {
			return v, errForm
		}
	case typeChar:
		v.n = int64(int8(s[0]))
	case typeText, typeVarchar, typeName, typeBytea, typeUUID, typeMAC, typeMAC8:
		v.b = s
	case typeBPChar:
		v.b = bytes.TrimRight(s, " ")
	case typeFloat4:
		v.n = int64(math.Float64bits(float64(math.Float32frombits(binary.BigEndian.Uint32(s)))))
	case typeFloat8:
		v.n = int64(binary.BigEndian.Uint64(s))
	case typeTimeTZ:
		v.n = int64(binary.BigEndian.Uint64(s))
		v.x = int64(int32(binary.BigEndian.Uint32(s[8:])))
	case typeInterval:
		v = interval(int64(binary.BigEndian.Uint64(s)), int32(binary.BigEndian.Uint32(s[8:])), int32(binary.BigEndian.Uint32(s[12:])))
	case typeNumeric:
		return binaryNumeric(s, scratch)
	case typeInet, typeCIDR:
		v.b, err = binaryNet(s, scratch)
	default:
		err = errForm
	}
	return v, err
}

// size is the length of the binary form, -1 where it varies.
func (t keyType) size() int {
	switch t {
	case typeBool, typeChar:
		return 1
	case typeInt2:
		return 2
	case typeInt4, typeOID, typeDate, typeFloat4:
		return 4
	case typeInt8, typeTime, typeTimestamp, typeTimestampTZ, typeLSN, typeFloat8, typeMAC8:
		return 8
	case typeMAC:
		return 6
	case typeTimeTZ:
		return 12
	case typeInterval, typeUUID:
		return 16
	}
	return -1
}

// The wire's address families.
const (
	wireIPv4 = 2
	wireIPv6 = 3
)

// binaryNet reads family, bits, is_cidr, length, address. Whether it is a cidr is no part of the value.
func binaryNet(s, scratch []byte) ([]byte, error) {
	if len(s) < 4 || int(s[3]) != len(s)-4 {
		return nil, errForm
	}
	if v4, v6 := s[0] == wireIPv4 && s[3] == 4, s[0] == wireIPv6 && s[3] == 16; !v4 && !v6 || int(s[1]) > 8*int(s[3]) {
		return nil, errForm
	}
	return append(append(scratch[:0], s[0], s[1]), s[4:]...), nil
}

// The kinds of numeric, in their order.
const (
	numericMinusInfinity = -2
	numericMinus         = -1
	numericZero          = 0
	numericPlus          = 1
	numericInfinity      = 2
	numericNaN           = 3
)

// binaryNumeric reads count of digits, weight, sign, scale, and the digits in base 10000.
func binaryNumeric(s, scratch []byte) (value, error) {
	if len(s) < 8 {
		return value{}, errForm
	}
	v := value{n: int64(int16(binary.BigEndian.Uint16(s[2:])))}
	switch binary.BigEndian.Uint16(s[4:]) {
	case 0x0000:
		v.x = numericPlus
	case 0x4000:
		v.x = numericMinus
	case 0xC000:
		return value{x: numericNaN}, nil
	case 0xD000:
		return value{x: numericInfinity}, nil
	case 0xF000:
		return value{x: numericMinusInfinity}, nil
	default:
		return value{}, errForm
	}
	digits := s[8:]
	if len(digits) != 2*int(binary.BigEndian.Uint16(s)) {
		return value{}, errForm
	}
	for len(digits) > 0 && digits[0] == 0 && digits[1] == 0 {
		digits, v.n = digits[2:], v.n-1
	}
	for n := len(digits); n > 0 && digits[n-1] == 0 && digits[n-2] == 0; n = len(digits) {
		digits = digits[:n-2]
	}
	if len(digits) == 0 {
		return value{x: numericZero}, nil
	}
	v.b = scratch[:0]
	for ; len(digits) > 0; digits = digits[2:] {
		if binary.BigEndian.Uint16(digits) > 9999 {
			return value{}, errForm
		}
		v.b = append(v.b, digits[1], digits[0])
	}
	return v, nil
}

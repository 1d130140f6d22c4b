package layout

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"strings"
)

// maxExponent is far beyond what numeric can hold (131072 digits before the point, 16383 behind it) and small enough
// to calculate with.
const maxExponent = 200_000

// parseNumeric reads digits with an optional point and exponent, or NaN, Infinity, -Infinity.
func parseNumeric(s, scratch []byte) (value, error) {
	if kind, ok := specialNumeric(s); ok {
		return value{x: kind}, nil
	}
	kind := int64(numericPlus)
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		if s[0] == '-' {
			kind = numericMinus
		}
		s = s[1:]
	}
	var exponent int64
	if i := bytes.IndexAny(s, "eE"); i >= 0 {
		var err error
		if exponent, err = parseInt(s[i+1:], -maxExponent, maxExponent); err != nil {
			return value{}, errForm
		}
		s = s[:i]
	}
	digits, point, err := significant(s)
	if err != nil {
		return value{}, err
	}
	if len(digits) == 0 {
		return value{x: numericZero}, nil
	}
	v := value{x: kind}
	v.n, v.b = group(digits, point+exponent, scratch[:0])
	return v, nil
}

func specialNumeric(s []byte) (kind int64, ok bool) {
	switch strings.ToLower(string(s)) {
	case "nan":
		return numericNaN, true
	case "infinity", "inf", "+infinity", "+inf":
		return numericInfinity, true
	case "-infinity", "-inf":
		return numericMinusInfinity, true
	}
	return 0, false
}

// significant cuts zeros at both ends; what is left may still hold the point. point counts the digits before it,
// negative where zeros follow it: the number is 0.digits times 10 to the power of point.
func significant(s []byte) (digits []byte, point int64, err error) {
	seen, dot := 0, -1
	for i, c := range s {
		switch {
		case c == '.' && dot < 0:
			dot = i
		case c >= '0' && c <= '9':
			seen++
		default:
			return nil, 0, errForm
		}
	}
	if seen == 0 {
		return nil, 0, errForm
	}
	if dot < 0 {
		dot = len(s)
	}
	point = int64(dot)
	whole := len(s)
	s = bytes.TrimLeft(s, "0")
	if cut := whole - len(s); cut == dot {
		s = bytes.TrimPrefix(s, []byte("."))
		fraction := len(s)
		s = bytes.TrimLeft(s, "0")
		point = -int64(fraction - len(s))
	} else {
		point -= int64(cut)
	}
	if bytes.IndexByte(s, '.') >= 0 {
		s = bytes.TrimRight(bytes.TrimRight(s, "0"), ".")
	}
	return bytes.TrimRight(s, "0"), point, nil
}

// group packs decimal digits four by four, aligned at the point, low byte first, and gives the weight of the first group:
// the power of 10000 it counts.
func group(digits []byte, point int64, dst []byte) (weight int64, groups []byte) {
	weight = (point - 1) >> 2
	filled := (weight+1)*4 - point // zeros in front of the first group
	var n uint16
	for _, c := range digits {
		if c == '.' {
			continue
		}
		n = n*10 + uint16(c-'0')
		if filled++; filled == 4 {
			dst, n, filled = binary.LittleEndian.AppendUint16(dst, n), 0, 0
		}
	}
	if filled > 0 {
		for ; filled < 4; filled++ {
			n *= 10
		}
		dst = binary.LittleEndian.AppendUint16(dst, n)
	}
	return weight, dst
}

func compareNumeric(v, w value) int {
	if v.x != w.x || v.x != numericPlus && v.x != numericMinus {
		return cmp.Compare(v.x, w.x)
	}
	c := cmp.Compare(v.n, w.n)
	for i := 0; c == 0 && i < min(len(v.b), len(w.b)); i += 2 {
		c = cmp.Compare(binary.LittleEndian.Uint16(v.b[i:]), binary.LittleEndian.Uint16(w.b[i:]))
	}
	return int(v.x) * cmp.Or(c, cmp.Compare(len(v.b), len(w.b)))
}

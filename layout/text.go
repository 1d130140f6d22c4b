package layout

import (
	"bytes"
	"encoding/hex"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"pgreshard/pg"
)

// parseInt reads a decimal integer from lowest to highest, without space around it.
func parseInt(s []byte, lowest, highest int64) (int64, error) {
	negative := len(s) > 0 && s[0] == '-'
	if negative || len(s) > 0 && s[0] == '+' {
		s = s[1:]
	}
	if len(s) == 0 {
		return 0, errForm
	}
	var n uint64
	for _, c := range s {
		c -= '0'
		if c > 9 || n > (math.MaxUint64-9)/10 {
			return 0, errForm
		}
		n = n*10 + uint64(c)
	}
	if negative {
		if n > 1<<63 || -int64(n) < lowest {
			return 0, errForm
		}
		return -int64(n), nil
	}
	if n > uint64(highest) {
		return 0, errForm
	}
	return int64(n), nil
}

func parseBool(s []byte) (int64, error) {
	switch string(s) {
	case "t", "true", "yes", "on", "1":
		return 1, nil
	case "f", "false", "no", "off", "0":
		return 0, nil
	}
	return 0, errForm
}

// parseChar reads "char": one byte, nothing for zero, and from PostgreSQL 16 on \ooo above 127.
func parseChar(s []byte) (int64, error) {
	switch {
	case len(s) == 0:
		return 0, nil
	case len(s) == 1:
		return int64(int8(s[0])), nil
	case len(s) == 4 && s[0] == '\\':
		n, err := strconv.ParseUint(string(s[1:]), 8, 8)
		if err != nil {
			return 0, errForm
		}
		return int64(int8(n)), nil
	}
	return 0, errForm
}

// parseUUID takes hexadecimal digits of either case, a hyphen after any fourth digit, braces around.
func parseUUID(s, scratch []byte) ([]byte, error) {
	if len(s) > 1 && s[0] == '{' && s[len(s)-1] == '}' {
		s = s[1 : len(s)-1]
	}
	id := scratch[:0]
	for len(s) >= 2 && len(id) < 16 {
		high, low := unhex[s[0]], unhex[s[1]]
		if high|low > 15 {
			return nil, errForm
		}
		id = append(id, high<<4|low)
		s = s[2:]
		if len(s) > 0 && s[0] == '-' && len(id)%2 == 0 && len(id) < 16 {
			s = s[1:]
		}
	}
	if len(id) != 16 || len(s) != 0 {
		return nil, errForm
	}
	return id, nil
}

// unhex is the value of a hexadecimal digit, 255 for every other byte.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		t[c] = byte(i)
	}
	for i, c := range "ABCDEF" {
		t[c] = byte(10 + i)
	}
	return t
}()

// parseBytea reads the hex format, the only one a session of package pg prints.
func parseBytea(s, scratch []byte) ([]byte, error) {
	digits, ok := bytes.CutPrefix(s, []byte(`\x`))
	if !ok {
		return nil, errForm
	}
	b, err := hex.AppendDecode(scratch[:0], digits)
	if err != nil {
		return nil, errForm
	}
	return b, nil
}

func parseMAC(s []byte, size int, scratch []byte) ([]byte, error) {
	if len(s) != 3*size-1 {
		return nil, errForm
	}
	mac := scratch[:0]
	for i := range size {
		high, low := unhex[s[3*i]], unhex[s[3*i+1]]
		if high|low > 15 || i > 0 && s[3*i-1] != ':' {
			return nil, errForm
		}
		mac = append(mac, high<<4|low)
	}
	return mac, nil
}

func parseNet(s, scratch []byte) ([]byte, error) {
	address, width, masked := strings.Cut(string(s), "/")
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" {
		return nil, errForm
	}
	bits := int64(a.BitLen())
	if masked {
		if bits, err = parseInt([]byte(width), 0, bits); err != nil {
			return nil, errForm
		}
	}
	if a.Is4() {
		four := a.As4()
		return append(append(scratch[:0], wireIPv4, byte(bits)), four[:]...), nil
	}
	sixteen := a.As16()
	return append(append(scratch[:0], wireIPv6, byte(bits)), sixteen[:]...), nil
}

func parseFloat(s []byte, size int) (value, error) {
	for _, c := range s { // strconv also takes hexadecimal and underscores
		if c == 'x' || c == 'X' || c == '_' || c == 'p' || c == 'P' {
			return value{}, errForm
		}
	}
	f, err := strconv.ParseFloat(string(s), size)
	if err != nil {
		return value{}, errForm
	}
	return value{n: int64(math.Float64bits(f))}, nil
}

func parseLSN(s []byte) (int64, error) {
	l, err := pg.ParseLSN(string(s))
	if err != nil {
		return 0, errForm
	}
	return int64(l), nil
}

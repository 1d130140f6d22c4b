package layout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

type generator struct {
	awkward []string
	random  func(*rand.Rand) string
}

// keysOf makes keys of every supported type, in forms the server's input functions read.
var keysOf = map[string]generator{
	"boolean":  {[]string{"t", "f"}, func(r *rand.Rand) string { return strconv.FormatBool(r.IntN(2) == 0) }},
	`"char"`:   {[]string{"", "a", " ", "é", "\x7f"}, func(r *rand.Rand) string { return string(rune(1 + r.IntN(127))) }},
	"smallint": {[]string{"0", "-1", "32767", "-32768"}, func(r *rand.Rand) string { return fmt.Sprint(int16(r.Uint32())) }},
	"integer":  {[]string{"0", "-1", "2147483647", "-2147483648"}, func(r *rand.Rand) string { return fmt.Sprint(int32(r.Uint32())) }},
	"bigint": {[]string{"0", "-1", "9223372036854775807", "-9223372036854775808", "4294967296", "-4294967297"},
		func(r *rand.Rand) string { return fmt.Sprint(int64(r.Uint64()) >> r.IntN(64)) }},
	"oid":    {[]string{"0", "4294967295"}, func(r *rand.Rand) string { return fmt.Sprint(r.Uint32()) }},
	"pg_lsn": {[]string{"0/0", "FFFFFFFF/FFFFFFFF"}, func(r *rand.Rand) string { return fmt.Sprintf("%X/%X", r.Uint32(), r.Uint32()) }},
	"date": {[]string{"infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "5874897-12-31", "2000-02-29", "1900-03-01", "1582-10-10"},
		func(r *rand.Rand) string { return day(r, 5_000_000) }},
	"time":   {[]string{"00:00", "24:00:00", "23:59:59.999999"}, clock},
	"timetz": {[]string{"00:00+00", "24:00:00-15:59:59", "12:00:00.5+05:45"}, func(r *rand.Rand) string { return clock(r) + offset(r) }},
	"timestamp": {[]string{"infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999", "2000-01-01", "1999-12-31 23:59:59.999999"},
		func(r *rand.Rand) string { return stamp(r, "") }},
	"timestamptz": {[]string{"infinity", "-infinity", "4712-01-01 00:00:00+00 BC", "0044-03-15 12:00:00+00 BC", "2000-01-01 00:00:00+00"},
		func(r *rand.Rand) string { return stamp(r, offset(r)) }},
	"interval": {[]string{"0", "1 mon", "30 days", "720:00:00", "-1 days +24:00:00", "178956970 years 7 mons", "-178956970 years -8 mons", "2147483647 days", "-2562047788:00:54.775807",
		"178956970 years 7 mons 2147483647 days 2562047788:00:54.775807", "-1 years -2 mons +3 days -04:05:06.7"},
		func(r *rand.Rand) string {
			return fmt.Sprintf("%d mons %d days %d us", int32(r.Uint32())>>r.IntN(32), int32(r.Uint32())>>r.IntN(32), int64(r.Uint64())>>r.IntN(64))
		}},
	"real": {[]string{"0", "-0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1"},
		func(r *rand.Rand) string {
			return finite(float64(math.Float32frombits(r.Uint32())), r.Float64(), 32)
		}},
	"double precision": {[]string{"0", "-0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1"},
		func(r *rand.Rand) string { return finite(math.Float64frombits(r.Uint64()), r.Float64(), 64) }},
	"numeric": {[]string{"0", "-0", "0.00", "NaN", "Infinity", "-Infinity", "1", "1.0", "1.000000", "-1", "10000", "9999", "10001", "0.0001", "0.00001", "1e1000", "1e-1000",
		strings.Repeat("9", 1000) + "." + strings.Repeat("0", 50) + "1"}, decimal},
	"text":                 {[]string{"", " ", "a", "abcdefgh", "abcdefghijkl", "ключ", `\N`, "NULL"}, word},
	"varchar(40)":          {[]string{"", "x "}, word},
	"name":                 {[]string{"", "a"}, word},
	"char(8)":              {[]string{"", " a", "a ", "12345678", "ключ"}, func(r *rand.Rand) string { return cut(word(r), 8) }},
	"bytea":                {[]string{`\x`, `\x00`, `\x000102`}, func(r *rand.Rand) string { return fmt.Sprintf(`\x%x`, word(r)) }},
	"uuid":                 {[]string{"00000000-0000-0000-0000-000000000000"}, func(r *rand.Rand) string { return fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64()) }},
	"macaddr":              {nil, func(r *rand.Rand) string { return fmt.Sprintf("%012x", r.Uint64()>>16) }},
	"macaddr8":             {nil, func(r *rand.Rand) string { return fmt.Sprintf("%016x", r.Uint64()) }},
	"inet":                 {[]string{"0.0.0.0", "::", "::ffff:1.2.3.4", "10.1.2.3/8", "0.0.0.0/0", "::1/128", "1.2.3.4/32"}, address},
	"cidr":                 {[]string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "2001:db8::/33"}, func(r *rand.Rand) string { return strings.Split(address(r), "/")[0] }},
	"character varying(5)": {[]string{""}, func(r *rand.Rand) string { return cut(word(r), 5) }},
	"char(5)":              {[]string{"", " ", "ab   "}, func(r *rand.Rand) string { return cut(word(r), 5) }},
}

func day(r *rand.Rand, years int) string {
	s := fmt.Sprintf("%04d-%02d-%02d", 1+r.IntN(years)>>r.IntN(12), 1+r.IntN(12), 1+r.IntN(28))
	if len(s) == 10 && s < "4700" && r.IntN(4) == 0 {
		s += " BC"
	}
	return s
}

func clock(r *rand.Rand) string {
	return fmt.Sprintf("%02d:%02d:%02d", r.IntN(24), r.IntN(60), r.IntN(60)) + []string{"", ".5", ".123456", ".000001"}[r.IntN(4)]
}

func offset(r *rand.Rand) string {
	return fmt.Sprintf("%c%02d", "+-"[r.IntN(2)], r.IntN(16)) + []string{"", ":30", ":45", ":10:11"}[r.IntN(4)]
}

func stamp(r *rand.Rand, zone string) string {
	date, bc := strings.CutSuffix(day(r, 290_000), " BC")
	s := date + " " + clock(r) + zone
	if bc {
		s += " BC"
	}
	return s
}

func finite(f, otherwise float64, size int) string {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = otherwise
	}
	return strconv.FormatFloat(f, 'g', -1, size)
}

func decimal(r *rand.Rand) string {
	digits := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "00123456789"[r.IntN(11)]
		}
		return string(b)
	}
	return []string{"", "-"}[r.IntN(2)] + digits(1+r.IntN(20)) + "." + digits(1+r.IntN(20))
}

func word(r *rand.Rand) string {
	const letters = "abc XYZ09-_\n\t'\"\\éжλ日"
	runes := []rune(letters)
	var b strings.Builder
	for range r.IntN(20) {
		b.WriteRune(runes[r.IntN(len(runes))])
	}
	return b.String()
}

func cut(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n])
	}
	return s
}

func address(r *rand.Rand) string {
	if r.IntN(2) == 0 {
		return fmt.Sprintf("%d.%d.%d.%d/%d", r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(256), r.IntN(33))
	}
	groups := make([]string, 8)
	for i := range groups {
		groups[i] = fmt.Sprintf("%x", r.IntN(65536)>>(16*r.IntN(2)))
	}
	return fmt.Sprintf("%s/%d", strings.Join(groups, ":"), r.IntN(129))
}

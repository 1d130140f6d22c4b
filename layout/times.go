package layout

import (
	"bytes"
	"math"
)

const (
	microsPerSecond = 1_000_000
	microsPerMinute = 60 * microsPerSecond
	microsPerHour   = 60 * microsPerMinute
	microsPerDay    = 24 * microsPerHour

	maxHours = 2_562_047_788 // what fits an interval
)

// Years outside of which PostgreSQL holds no date and no timestamp.
const (
	minYear          = -4713
	maxDateYear      = 5_874_897
	maxTimestampYear = 294_276
)

// scanner reads the text forms of dates and times under DateStyle ISO and IntervalStyle postgres.
type scanner struct{ rest []byte }

// number reads decimal digits, at least one and at most nine; n is 0 and ok false where there are none.
func (s *scanner) number() (n int64, digits int, ok bool) {
	for digits < len(s.rest) && s.rest[digits]-'0' <= 9 {
		n = n*10 + int64(s.rest[digits]-'0')
		digits++
	}
	if digits == 0 || digits > 10 {
		return 0, 0, false
	}
	s.rest = s.rest[digits:]
	return n, digits, true
}

// skip takes c where it comes next.
func (s *scanner) skip(c byte) bool {
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// fraction reads up to six digits as microseconds.
func (s *scanner) fraction() (micros int64, ok bool) {
	n, digits, ok := s.number()
	if !ok || digits > 6 {
		return 0, false
	}
	for ; digits < 6; digits++ {
		n *= 10
	}
	return n, true
}

// date reads YYYY-MM-DD as days since 2000-01-01, before Christ where bc.
func (s *scanner) date(bc bool, maxYear int64) (days int64, ok bool) {
	year, _, okYear := s.number()
	dash1 := s.skip('-')
	month, _, okMonth := s.number()
	dash2 := s.skip('-')
	day, _, okDay := s.number()
	if !okYear || !dash1 || !okMonth || !dash2 || !okDay || year == 0 {
		return 0, false
	}
	if bc {
		year = 1 - year
	}
	if year < minYear || year > maxYear || month < 1 || month > 12 || day < 1 || day > monthDays(year, month) {
		return 0, false
	}
	return daysSince2000(year, month, day), true
}

func monthDays(year, month int64) int64 {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysSince2000 counts in the proleptic Gregorian calendar, with years that begin in March so that the leap day is last.
func daysSince2000(year, month, day int64) int64 {
	const march2000 = 60 // from 2000-01-01 to 2000-03-01
	y := year - 2000
	m := month - 3
	if m < 0 {
		m, y = m+12, y-1
	}
	leaps := floorDiv(y, 4) - floorDiv(y, 100) + floorDiv(y, 400)
	return 365*y + leaps + (153*m+2)/5 + day - 1 + march2000
}

func floorDiv(n, d int64) int64 {
	q := n / d
	if n%d < 0 {
		q--
	}
	return q
}

// clock reads HH:MM[:SS[.ffffff]] with any number of hours.
func (s *scanner) clock() (micros int64, ok bool) {
	hours, _, okHours := s.number()
	colon := s.skip(':')
	minutes, _, okMinutes := s.number()
	if !okHours || !colon || !okMinutes || hours > maxHours || minutes > 59 {
		return 0, false
	}
	micros = hours*microsPerHour + minutes*microsPerMinute
	if !s.skip(':') {
		return micros, true
	}
	seconds, _, ok := s.number()
	if !ok || seconds > 60 {
		return 0, false
	}
	micros += seconds * microsPerSecond
	if s.skip('.') {
		fraction, ok := s.fraction()
		return micros + fraction, ok
	}
	return micros, true
}

// zone reads an offset from UTC, Z or ±HH[:MM[:SS]], in seconds east.
func (s *scanner) zone() (east int64, ok bool) {
	if s.skip('Z') {
		return 0, true
	}
	minus := s.skip('-')
	if !minus && !s.skip('+') {
		return 0, false
	}
	for scale := int64(3600); ; scale /= 60 {
		n, _, ok := s.number()
		if !ok || n > 59 {
			return 0, false
		}
		east += n * scale
		if scale == 1 || !s.skip(':') {
			break
		}
	}
	if minus {
		east = -east
	}
	return east, true
}

// infinite reads the two infinities.
func infinite(s []byte) (sign int, ok bool) {
	switch string(s) {
	case "infinity":
		return 1, true
	case "-infinity":
		return -1, true
	}
	return 0, false
}

func parseDate(text []byte) (int64, error) {
	if sign, ok := infinite(text); ok {
		if sign < 0 {
			return math.MinInt32, nil
		}
		return math.MaxInt32, nil
	}
	text, bc := bytes.CutSuffix(text, []byte(" BC"))
	s := scanner{text}
	days, ok := s.date(bc, maxDateYear)
	if !ok || len(s.rest) > 0 {
		return 0, errForm
	}
	return days, nil
}

// parseTimestamp reads microseconds since 2000-01-01 00:00, in UTC where zoned; a zoned one without an offset is in UTC,
// the time zone of every session of ours.
func parseTimestamp(text []byte, zoned bool) (int64, error) {
	if sign, ok := infinite(text); ok {
		if sign < 0 {
			return math.MinInt64, nil
		}
		return math.MaxInt64, nil
	}
	text, bc := bytes.CutSuffix(text, []byte(" BC"))
	s := scanner{text}
	days, ok := s.date(bc, maxTimestampYear)
	if !ok {
		return 0, errForm
	}
	var micros, east int64
	if s.skip(' ') || s.skip('T') {
		if micros, ok = s.clock(); !ok || micros > microsPerDay {
			return 0, errForm
		}
	}
	if zoned && len(s.rest) > 0 {
		if east, ok = s.zone(); !ok {
			return 0, errForm
		}
	}
	if len(s.rest) > 0 {
		return 0, errForm
	}
	return days*microsPerDay + micros - east*microsPerSecond, nil
}

func parseTime(text []byte) (int64, error) {
	s := scanner{text}
	micros, ok := s.clock()
	if !ok || micros > microsPerDay || len(s.rest) > 0 {
		return 0, errForm
	}
	return micros, nil
}

func parseTimeTZ(text []byte) (value, error) {
	s := scanner{text}
	micros, ok := s.clock()
	east, okZone := s.zone()
	if !ok || !okZone || micros > microsPerDay || len(s.rest) > 0 {
		return value{}, errForm
	}
	return value{n: micros, x: -east}, nil
}

package layout

import (
	"bytes"
	"math"
	"math/bits"
)

// parseInterval reads IntervalStyle postgres: 1 year 2 mons -3 days +04:05:06.7, each part with its own sign.
func parseInterval(text []byte) (value, error) {
	if sign, ok := infinite(text); ok {
		if sign < 0 {
			return interval(math.MinInt64, math.MinInt32, math.MinInt32), nil
		}
		return interval(math.MaxInt64, math.MaxInt32, math.MaxInt32), nil
	}
	var micros, days, months int64
	s := scanner{text}
	for first := true; first || len(s.rest) > 0; first = false {
		if !first && !s.skip(' ') {
			return value{}, errForm
		}
		sign := int64(1)
		if s.skip('-') {
			sign = -1
		} else {
			s.skip('+')
		}
		ahead := s
		n, _, ok := s.number()
		if !ok {
			return value{}, errForm
		}
		if !s.skip(' ') {
			s = ahead
			if micros, ok = s.clock(); !ok || len(s.rest) > 0 {
				return value{}, errForm
			}
			micros *= sign
			break
		}
		unit, _, _ := bytes.Cut(s.rest, []byte(" "))
		s.rest = s.rest[len(unit):]
		switch string(unit) {
		case "year", "years":
			months += sign * n * 12
		case "mon", "mons", "month", "months":
			months += sign * n
		case "day", "days":
			days += sign * n
		default:
			return value{}, errForm
		}
	}
	if int64(int32(days)) != days || int64(int32(months)) != months {
		return value{}, errForm
	}
	return interval(micros, int32(days), int32(months)), nil
}

// interval is an interval's length as interval_cmp_value has it: a month is 30 days, a day 24 hours.
func interval(micros int64, days, months int32) value {
	d := int64(months)*30 + int64(days)
	hi, lo := bits.Mul64(uint64(d), microsPerDay)
	if d < 0 { // the unsigned product counts d as 2^64 + d
		hi -= microsPerDay
	}
	lo, carry := bits.Add64(lo, uint64(micros), 0)
	hi += uint64(micros>>63) + carry
	return value{n: int64(lo), x: int64(hi)}
}

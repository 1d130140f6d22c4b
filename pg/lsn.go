package pg

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a position in the write-ahead log, in bytes since the log began. Zero means "no position".
type LSN uint64

// ParseLSN reads PostgreSQL's text form of pg_lsn, two hexadecimal halves: "16/B374D848".
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	h, errHi := strconv.ParseUint(hi, 16, 32)
	l, errLo := strconv.ParseUint(lo, 16, 32)
	if !ok || errHi != nil || errLo != nil {
		return 0, fmt.Errorf("%q is not a log position", s)
	}
	return LSN(h<<32 | l), nil
}

// String is the form PostgreSQL prints.
func (l LSN) String() string {
	return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l))
}

// Scan reads a pg_lsn selected as text, for database drivers.
func (l *LSN) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("a log position is read as text, not %T", src)
	}
	v, err := ParseLSN(s)
	*l = v
	return err
}

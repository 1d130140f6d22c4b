package jetstream

import (
	"fmt"
	"strconv"
	"strings"

	"pgreshard/pg"
)

// StreamName is the name of a move's stream.
func StreamName(move string) string { return "PGRESHARD_" + strings.ToUpper(move) }

// Subjects are all that a move's changes have.
func Subjects(move string) string { return "pgreshard." + move + ".cdc.>" }

// Subject is that of the changes of one table on one shard: pgreshard.<move>.cdc.<schema>.<table>.<shard>.
func Subject(move string, table pg.Name, shard int) string {
	return fmt.Sprintf("pgreshard.%s.cdc.%s.%s.%d", move, token(table.Schema), token(table.Table), shard)
}

// ParseSubject says of which table and shard a message is.
func ParseSubject(subject string) (table pg.Name, shard int, err error) {
	parts := strings.Split(subject, ".")
	if len(parts) != 6 || parts[0] != "pgreshard" || parts[2] != "cdc" {
		return pg.Name{}, 0, fmt.Errorf("%q is no subject of changes", subject)
	}
	for i, name := range []*string{&table.Schema, &table.Table} {
		if *name, err = untoken(parts[3+i]); err != nil {
			return pg.Name{}, 0, fmt.Errorf("subject %q: %w", subject, err)
		}
	}
	if shard, err = strconv.Atoi(parts[5]); err != nil {
		return pg.Name{}, 0, fmt.Errorf("subject %q: %w", subject, err)
	}
	return table, shard, nil
}

// token writes a name in the letters that a subject's part may have; every other byte as = and two hexadecimal digits.
func token(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}

func untoken(text string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '=' {
			b.WriteByte(text[i])
			continue
		}
		if len(text)-i < 3 {
			return "", fmt.Errorf("%q ends within a byte", text)
		}
		c, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
		if err != nil {
			return "", err
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), nil
}

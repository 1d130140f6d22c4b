package pgtest

import (
	"regexp"
	"strings"
)

// literal finds what may be a value in SQL: numbers, quoted and dollar-quoted strings. A word with digits in it, a
// parameter and a quoted identifier are matched first, so that they stay.
var literal = regexp.MustCompile(`(?s)"(?:[^"]|"")*"|\$\d+|[A-Za-z_][A-Za-z0-9_$]*'(?:[^'\\]|\\.|'')*'|[A-Za-z_][A-Za-z0-9_$]*|'(?:[^']|'')*'|\$[A-Za-z_0-9]*\$.*|\d[\d.]*`)

const maskedMost = 300

// masked is SQL without literals, in one line.
func masked(sql string) string {
	sql = literal.ReplaceAllStringFunc(sql, func(s string) string {
		if strings.HasSuffix(s, "'") || s[0] >= '0' && s[0] <= '9' || s[0] == '$' && strings.Count(s, "$") > 1 {
			return "?"
		}
		return s
	})
	sql = strings.Join(strings.Fields(sql), " ")
	if len(sql) > maskedMost {
		sql = sql[:maskedMost] + "…"
	}
	return sql
}

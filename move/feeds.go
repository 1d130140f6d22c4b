package move

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"pgreshard/lookup"
	"pgreshard/pg"
)

// feed is what a mapping table is to a lookup_query, told by the query's words where they are so few that nothing else
// can be meant; what is not told is found by asking for every key, and is no less right (sink.Feed).
type feed struct {
	query  *lookup.Query
	key    string // the column that is asked for $1; empty where that is not known
	adds   bool   // a row that comes moves nothing but rows whose key had no translation
	unique bool   // no two of its rows answer one key
	// by is the table's key, and reach a query of $1 for the keys that the row with this key answers, as a JSON array of their
	// texts: where the table is joined to the one that is asked for $1. Both empty: not known.
	by, reach string
}

// noteFeeds says, for each table a lookup reads, which of its rows answer which keys.
func (inv *inventory) noteFeeds(t *moved) {
	shape := readQuery(t.query.SQL)
	shape.simple = shape.simple && len(shape.tables) == len(t.reads)
	for _, name := range t.reads {
		from := inv.byName[name]
		if from == nil {
			continue
		}
		f := feed{query: t.query, adds: shape.simple, unique: shape.simple}
		if shape.simple && inv.asksBy(shape, t, name) {
			f.key = shape.column
			f.unique = keyed(inv.sources[0].Table(name), f.key)
		} else if root := inv.sources[0].Table(name); shape.simple && len(root.Key) == 1 && slices.ContainsFunc(t.reads, func(n pg.Name) bool { return inv.asksBy(shape, t, n) }) {
			f.by = root.Columns[root.Key[0]].Name
			f.reach = reachQuery(t.query.SQL, name.Table, f.by)
		}
		if f.key != "" {
			t.query.Many = manyQuery(t.query.SQL)
		}
		from.feeds = append(from.feeds, f)
	}
}

// asksBy says that a query asks a table for $1, by a column of the very type of t's key, whose texts are the keys' then.
func (inv *inventory) asksBy(shape queryShape, t *moved, name pg.Name) bool {
	if shape.column == "" || shape.table == "" && !inv.alone(shape, t, name) || shape.table != "" && shape.table != name.Table {
		return false
	}
	from, own := inv.sources[0].Table(name), inv.sources[0].Table(t.name)
	k, ok := from.Column(shape.column)
	o, there := own.Column(t.rule.Columns[0])
	return ok && there && sameTexts(from.Columns[k], own.Columns[o])
}

// sameTexts says that two columns are of one type, of which values are equal where their texts are, and only there.
func sameTexts(a, b pg.Column) bool {
	switch a.TypeOID {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.OIDOID, pgtype.DateOID, pgtype.ByteaOID:
		return a.TypeOID == b.TypeOID
	case pgtype.TextOID, pgtype.VarcharOID:
		return a.TypeOID == b.TypeOID && a.Deterministic && b.Deterministic
	}
	return false
}

// alone says that of the tables a query reads just this one has the column it asks by.
func (inv *inventory) alone(shape queryShape, t *moved, name pg.Name) bool {
	var have []pg.Name
	for _, other := range t.reads {
		table := inv.sources[0].Table(other)
		if table == nil {
			return false
		}
		if _, ok := table.Column(shape.column); ok {
			have = append(have, other)
		}
	}
	return slices.Equal(have, []pg.Name{name})
}

func keyed(t *pg.Table, column string) bool {
	return len(t.Key) == 1 && t.Columns[t.Key[0]].Name == column
}

// queryShape is what a query's words tell.
type queryShape struct {
	simple bool     // one SELECT over tables joined by inner joins, without aggregates: its rows are those of the tables that fit
	tables []string // as they are named in it, without schema
	table  string   // the one asked for $1, where the query names it
	column string   // by this column; empty where that cannot be told
}

var (
	// notSimple are words that make a row answer for others, and marks behind which words may hide.
	notSimple = regexp.MustCompile(`(?i)['"]|--|/\*|\b(union|intersect|except|left|right|full|outer|lateral|natural|group|having|limit|offset|fetch|distinct|order|with|window|over|or|exists|tablesample)\b`)
	// Every other name before a parenthesis may be an aggregate's.
	called   = regexp.MustCompile(`(?i)\b([a-z_]\w*)\s*\(`)
	harmless = regexp.MustCompile(`(?i)^(coalesce|nullif|greatest|least|lower|upper|abs|mod|cast|and|on|where|in|using|select|from|join|when|then|else|not)$`)
	selects  = regexp.MustCompile(`(?i)\bselect\b`)
	fromList = regexp.MustCompile(`(?i)(?:\bfrom|\bjoin|,)\s+(?:[a-z_]\w*\.)?([a-z_]\w*)(?:\s+(?:as\s+)?([a-z_]\w*))?`)
	noAlias  = regexp.MustCompile(`(?i)\b(where|on|join|inner|cross|using)\b`)
	fromOn   = regexp.MustCompile(`(?is)\bfrom\b.*$`)
	askedBy  = regexp.MustCompile(`(?i)\b(?:where|and|on)\s+((?:([a-z_]\w*)\.)?([a-z_]\w*))\s*=\s*\$1(\s*::\s*[a-z_ ]+?)?\s*(?:$|;|\band\b|\bwhere\b)`)
)

// readQuery is deliberately narrow: what it is not sure of it does not say.
func readQuery(sql string) (q queryShape) {
	if notSimple.MatchString(sql) || len(selects.FindAllString(sql, -1)) != 1 {
		return q
	}
	for _, f := range called.FindAllStringSubmatch(sql, -1) {
		if !harmless.MatchString(f[1]) {
			return q
		}
	}
	q.simple = true
	var aliases map[string]string
	q.tables, aliases = namesIn(sql)
	if by := askedBy.FindAllStringSubmatch(sql, -1); len(by) == 1 && strings.Count(sql, "$1") == 1 {
		q.table, q.column = aliases[strings.ToLower(by[0][2])], strings.ToLower(by[0][3])
		if by[0][2] != "" && q.table == "" {
			q.column = ""
		}
	}
	return q
}

// namesIn gives the tables of a simple query's FROM, and which of them its names stand for.
func namesIn(sql string) (tables []string, names map[string]string) {
	names = map[string]string{}
	for _, n := range fromList.FindAllStringSubmatch(noAlias.ReplaceAllString(fromOn.FindString(sql), "; $1"), -1) {
		table := strings.ToLower(n[1])
		tables = append(tables, table)
		names[table] = table
		if n[2] != "" {
			names[strings.ToLower(n[2])] = table
		}
	}
	return tables, names
}

// reachQuery turns a simple query round: asked for a table's row by its key column, it gives the keys of which that row is
// part of the answer. Empty where it does not know how.
func reachQuery(sql, table, key string) string {
	tables, names := namesIn(sql)
	from := strings.TrimRight(fromOn.FindString(sql), "; \t\r\n")
	asked := askedBy.FindStringSubmatchIndex(from)
	if asked == nil || len(tables) != len(slices.Compact(slices.Sorted(slices.Values(tables)))) {
		return ""
	}
	called := table
	for name, of := range names {
		if of == table && name != table {
			called = name
		}
	}
	column, rest := from[asked[2]:asked[3]], behindAsked(from, asked)
	return fmt.Sprintf("select json_agg(distinct format('%%s', %s)) %s%s.%s = $1%s", column, from[:asked[2]], called, columnSQL(key), rest)
}

// behindAsked is what follows the condition that asked found, with the cast, which is of the key that is asked for.
func behindAsked(from string, asked []int) string {
	if asked[9] > 0 {
		return from[asked[9]:]
	}
	return from[asked[3]+strings.Index(from[asked[3]:], "$1")+len("$1"):]
}

var selectList = regexp.MustCompile(`(?is)^\s*select\s(.*?)\sfrom\b`)

// manyQuery makes of a simple query one that takes an array of keys and gives each key it answers, with its answer. Empty
// where it does not know how.
func manyQuery(sql string) string {
	from := strings.TrimRight(fromOn.FindString(sql), "; \t\r\n")
	asked, list := askedBy.FindStringSubmatchIndex(from), selectList.FindStringSubmatch(sql)
	if asked == nil || list == nil {
		return ""
	}
	column := from[asked[2]:asked[3]]
	return fmt.Sprintf("select format('%%s', %s), %s %s%s = any($1)%s", column, list[1], from[:asked[2]], column, behindAsked(from, asked))
}

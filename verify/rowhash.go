package verify

import (
	"fmt"
	"slices"
	"strings"

	"pgreshard/pg"
)

// buckets is the number of buckets a table's rows are summed in: few enough that a shard's answer is small, many
// enough that one wrong row among 100 million makes 24,000 rows to fetch.
const buckets = 4096

// Seeds of the two hashes of a row and of the hash its key gets its bucket by.
const (
	seedA      = "7046029254386353131"
	seedB      = "1181783497276652981"
	seedBucket = "3935559000370003845"
)

// Types whose value goes into the row hash as it is, or in its binary send form. Everything else goes as the text its
// output function gives: the record hash calls 1.0 and 1.00, -0 and 0, '1 month' and '30 days' equal, and hashes enums
// by an OID that differs between clusters. bigint, time and timestamps are sent because their hash folds 64 bits
// into 32: 1 and 4294967296 are equal under every seed.
var raw = map[uint32]struct{ class, form string }{
	16:   {"bool", "%s"},
	17:   {"bytea", "%s"},
	20:   {"int8", "int8send(%s)"},
	21:   {"int2", "%s"},
	23:   {"int4", "%s"},
	25:   {"text", "%s"},
	1043: {"text", "%s"}, // varchar hashes as text
	1082: {"date", "%s"},
	1083: {"time", "time_send(%s)"},
	1114: {"timestamp", "timestamp_send(%s)"},
	1184: {"timestamptz", "timestamptz_send(%s)"},
	2950: {"uuid", "%s"},
}

// expressions writes the SQL of one table on one side. Both sides treat a column alike: as it is only where its type
// is the same raw one on both.
type expressions struct {
	own, other *pg.Table
	utf8       bool // the nodes' encodings differ: text is hashed as UTF-8
}

// record is a row value over columns in the form they are hashed in. All columns that go as text are one nested row,
// cast to text: its output quotes, so that no two rows have the same text, and tells NULL from empty.
func (e expressions) record(columns []string) string {
	parts := []string{"0"} // a row of no columns has a hash too
	var texts []string
	for _, name := range columns {
		if form := e.raw(name); form != "" {
			parts = append(parts, fmt.Sprintf(form, e.column(name).SQL()))
		} else if form := e.ordered(name); form != "" {
			parts = append(parts, form)
		} else {
			texts = append(texts, e.column(name).SQL())
		}
	}
	if texts != nil {
		text := "row(" + strings.Join(texts, ", ") + ")::text"
		if e.utf8 {
			text = "convert_to(" + text + ", 'UTF8')"
		}
		parts = append(parts, text)
	}
	return "row(" + strings.Join(parts, ", ") + ")"
}

// raw is the format of the expression a column is hashed by, empty where it goes as text.
func (e expressions) raw(name string) string {
	own, other := e.column(name), e.other.Columns[index(e.other, name)]
	how, ok := raw[own.TypeOID]
	if !ok || how.class != raw[other.TypeOID].class {
		return ""
	}
	if how.class == "text" && (e.utf8 || !own.Deterministic || !other.Deterministic) {
		return ""
	}
	return how.form
}

// bucket is the bucket of a row of a table with key.
func (e expressions) bucket(key []string) string {
	return fmt.Sprintf("(hash_record_extended(%s, %s) & %d)", e.record(key), seedBucket, buckets-1)
}

func (e expressions) column(name string) pg.Column { return e.own.Columns[index(e.own, name)] }

// index finds a column that Request.check has seen.
func index(t *pg.Table, name string) int {
	i, _ := t.Column(name)
	return i
}

// from reads a partitioned table through its root and an ordinary one without its inheritance children.
func from(t *pg.Table) string {
	if t.Kind == 'p' {
		return t.Name.SQL()
	}
	return "only " + t.Name.SQL()
}

// sums is the statement that sums a table: bucket, rows, Σa, Σ(a # b). where narrows the scan.
//
// hash_record_extended is linear in the hashes of the columns (31 h + h'), so Σa alone does not see two rows that
// swap a value; a # b is not linear. "offset 0" keeps a row from being built, and read out of line, twice.
func (e expressions) sums(t *Table, where string) string {
	if len(t.Key) > 0 {
		return fmt.Sprintf(`select k, count(*), sum(a), sum(a # b) from (
 select k, hash_record_extended(r, %s) a, hash_record_extended(r, %s) b from (
  select %s k, %s r from %s %s offset 0) s offset 0) h group by k`,
			seedA, seedB, e.bucket(t.Key), e.record(t.Columns), from(e.own), where)
	}
	return fmt.Sprintf(`select a & %d, count(*), sum(a), sum(a # b) from (%s offset 0) h group by 1`,
		buckets-1, e.hashes(t, where))
}

// hashes are the two hashes of every row, a and b.
func (e expressions) hashes(t *Table, where string) string {
	return fmt.Sprintf(`select hash_record_extended(r, %s) a, hash_record_extended(r, %s) b from (
  select %s r from %s %s offset 0) s`, seedA, seedB, e.record(t.Columns), from(e.own), where)
}

// bucketOf is the bucket of a row, of a table without key by its first hash.
func (e expressions) bucketOf(t *Table) string {
	if len(t.Key) == 0 {
		return fmt.Sprintf("a & %d", buckets-1)
	}
	return e.bucket(t.Key)
}

// rows is the statement that fetches chosen rows: a, b, the bucket, then the key's columns.
func (e expressions) rows(t *Table, where string) string {
	if len(t.Key) == 0 {
		return fmt.Sprintf(`select a, b, %s from (%s offset 0) h where %s`, e.bucketOf(t), e.hashes(t, ""), where)
	}
	var inner, outer strings.Builder
	for i, name := range t.Key {
		fmt.Fprintf(&inner, ", %s k%d", e.column(name).SQL(), i)
		fmt.Fprintf(&outer, ", k%d", i)
	}
	return fmt.Sprintf(`select hash_record_extended(r, %s), hash_record_extended(r, %s), k%s from (
 select %s r, %s k%s from %s where %s offset 0) s`,
		seedA, seedB, outer.String(), e.record(t.Columns), e.bucketOf(t), inner.String(), from(e.own), where)
}

// values is the statement that fetches the key's and then all compared columns of chosen rows.
func (e expressions) values(t *Table, where string) string {
	return fmt.Sprintf("select %s from %s where %s",
		e.list(append(append([]string{}, t.Key...), t.Columns...)), from(e.own), where)
}

// places is the statement that lists the sharding keys on a shard, each with its number of rows. Keys are grouped only
// where that makes them fewer, and where equal keys look alike in every form: 1.0 and 1.00 may be placed apart. where
// narrows the rows.
func (e expressions) places(t *Table, where string) string {
	columns := e.list(t.PlaceColumns)
	if e.worthGrouping(t) {
		return fmt.Sprintf("select %s, count(*) from %s %s group by %[1]s", columns, from(e.own), where)
	}
	return fmt.Sprintf("select %s, 1 from %s %s", columns, from(e.own), where)
}

func (e expressions) worthGrouping(t *Table) bool {
	for _, name := range t.PlaceColumns {
		c := e.column(name)
		if _, ok := raw[c.TypeOID]; !ok || !c.Deterministic {
			return false
		}
	}
	unique := len(t.Key) > 0
	for _, name := range t.Key {
		unique = unique && slices.Contains(t.PlaceColumns, name)
	}
	return !unique
}

func (e expressions) list(columns []string) string {
	quoted := make([]string, len(columns))
	for i, name := range columns {
		quoted[i] = e.column(name).SQL()
	}
	return strings.Join(quoted, ", ")
}

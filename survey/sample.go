package survey

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// Limits bound what is read of one table on one source.
type Limits struct {
	Rows      int   // wanted; how many a block holds decides how many blocks that takes
	MinBlocks int64 // at least, since neighbours in a block are often alike
	MaxBlocks int64 // at most
	Time      time.Duration
}

// Usual is what plan takes: about 30,000 rows, never more than 16 MB of a table, ten seconds a statement.
var Usual = Limits{Rows: 30_000, MinBlocks: 300, MaxBlocks: 2000, Time: 10 * time.Second}

// Mark stands in every statement of a survey, so that whoever reads pg_stat_statements knows them.
const Mark = "/* pgreshard */"

// Table is what is looked at: one table as it stands on each source, and the rule that is to place its rows.
type Table struct {
	Name  pg.Name
	Rule  *layout.Rule
	Query *lookup.Query // of the rule's lookup or hash; nil where the key is placed as it is
}

// Sample is rows of a table from one or several sources, each with its key, the block it stands in and its age.
type Sample struct {
	table  Table
	keys   []sampledKey
	byText map[string]int
	strata []stratum

	sources int           // whose rows it has
	counts  map[int]count // of the heaviest keys, by index
	counted int           // sources whose counts are in it
}

// sampledKey is one key as it is placed: translated where the rule has a lookup.
type sampledKey struct {
	datums []pg.Datum // nil: no mapping row translates it
	text   string     // columns with | between them
	shard  layout.Shard
	placed bool
	hash   uint64
	hashed bool
	rows   float64 // that stand for all of the table
	bytes  float64
}

// stratum is what was read of one file: every block with the same chance.
type stratum struct {
	source int
	blocks int64   // of the file
	each   float64 // how many blocks one that was read stands for
	rows   []sampledRow
}

type sampledRow struct {
	key   int32
	block int64
	bytes int64
	age   int64 // transactions since it was written
}

// NewSample begins with no row.
func NewSample(t Table) *Sample {
	return &Sample{table: t, byText: map[string]int{}, counts: map[int]count{}}
}

// Read adds rows of the table's leaves on one source, in a transaction that is read-only and ended with an error where
// it takes too long. Blocks are chosen by TABLESAMPLE with a fixed seed: two runs on the same data read the same.
func (s *Sample) Read(ctx context.Context, conn *pgx.Conn, source int, leaves []*pg.Table, limits Limits) error {
	s.sources++
	return bounded(ctx, conn, limits.Time, func() error {
		var pages int64
		for _, leaf := range leaves {
			pages += leaf.Pages
		}
		for _, leaf := range leaves {
			if leaf.Pages == 0 {
				continue
			}
			if err := s.readLeaf(ctx, conn, source, leaf, limits.part(leaf, pages)); err != nil {
				return fmt.Errorf("read a sample of %s: %w", leaf.Name, err)
			}
		}
		return nil
	})
}

// bounded runs do in a read-only transaction whose statements end after a time, and rolls it back.
func bounded(ctx context.Context, conn *pgx.Conn, most time.Duration, do func() error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if _, err := tx.Exec(ctx, fmt.Sprintf("set local statement_timeout = %d", most.Milliseconds())); err != nil {
		return err
	}
	return do()
}

// part is the part of a leaf's blocks that is read, of one: its part of what the whole table is worth.
func (l Limits) part(leaf *pg.Table, pages int64) float64 {
	rowsPerBlock := 100.0
	if leaf.Rows > 0 {
		rowsPerBlock = max(1, float64(leaf.Rows)/float64(leaf.Pages))
	}
	blocks := min(max(float64(l.Rows)/rowsPerBlock, float64(l.MinBlocks)), float64(l.MaxBlocks))
	part := blocks / float64(pages)
	if part*float64(leaf.Pages) < 2 { // one block alone tells nothing of how blocks differ
		part = 2 / float64(leaf.Pages)
	}
	return min(part, 1)
}

func (s *Sample) readLeaf(ctx context.Context, conn *pgx.Conn, source int, leaf *pg.Table, part float64) error {
	from := "only " + leaf.Name.SQL()
	if part < 1 {
		from += fmt.Sprintf(" tablesample system (%g) repeatable (1)", 100*part)
	}
	columns := make([]string, len(s.table.Rule.Columns))
	for i, name := range s.table.Rule.Columns {
		columns[i] = pgx.Identifier{name}.Sanitize()
	}
	sql := fmt.Sprintf("select %s ctid, age(xmin), %s, %s from %s", Mark, rowBytes(leaf), strings.Join(columns, ", "), from)
	result := conn.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil)
	into := stratum{source: source, blocks: leaf.Pages, each: 1 / part}
	var text strings.Builder
	for result.NextRow() {
		values := result.Values()
		var row sampledRow
		block, _, _ := strings.Cut(strings.TrimPrefix(string(values[0]), "("), ",")
		row.block, _ = strconv.ParseInt(block, 10, 64)
		row.age, _ = strconv.ParseInt(string(values[1]), 10, 64)
		row.bytes, _ = strconv.ParseInt(string(values[2]), 10, 64)
		row.key = s.keyOf(values[3:], &text)
		into.rows = append(into.rows, row)
	}
	_, err := result.Close()
	if seen := into.seen(); part < 1 && float64(seen) > mostlyFull*part*float64(leaf.Pages) {
		into.each = float64(leaf.Pages) / float64(seen)
	}
	s.strata = append(s.strata, into)
	return err
}

// mostlyFull is the part of the blocks chosen that must have had rows for those to stand for all: nearer than the part
// asked for, of which the server makes what chance gives. Where more were empty, blocks without rows are part of the table.
const mostlyFull = 0.7

// seen counts the blocks that had rows.
func (s stratum) seen() int {
	blocks := map[int64]bool{}
	for _, row := range s.rows {
		blocks[row.block] = true
	}
	return len(blocks)
}

// rowBytes is what a row takes, the stored size of what is out of line included.
func rowBytes(t *pg.Table) string {
	const header = 28 // of the row, and its place in the block
	sum := strconv.Itoa(header)
	for _, c := range t.Columns {
		if c.Generated != 'v' {
			sum += fmt.Sprintf(" + coalesce(pg_column_size(%s), 0)", c.SQL())
		}
	}
	return sum
}

// keyOf is the index of a row's key, which is added where it is new.
func (s *Sample) keyOf(values [][]byte, text *strings.Builder) int32 {
	text.Reset()
	for i, v := range values {
		if i > 0 {
			text.WriteByte('|')
		}
		if v == nil {
			text.WriteString("NULL")
		}
		text.Write(v)
	}
	id := text.String()
	if len(values) == 1 && values[0] == nil { // another than the text NULL
		id = "\x00NULL"
	}
	at, known := s.byText[id]
	if !known {
		at = len(s.keys)
		s.byText[strings.Clone(id)] = at
		key := sampledKey{text: strings.TrimPrefix(strings.Clone(id), "\x00")}
		for _, v := range values {
			if v == nil {
				key.datums = append(key.datums, pg.Datum{Kind: pg.Null})
			} else {
				key.datums = append(key.datums, pg.Datum{Kind: pg.Text, Bytes: append([]byte{}, v...)})
			}
		}
		s.keys = append(s.keys, key)
	}
	return int32(at)
}

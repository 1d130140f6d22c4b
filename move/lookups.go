package move

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
)

// What a lookup reads is asked of the server, not of a parser of ours: made the body of a SQL function, the query's
// tables and columns stand in pg_depend. The function lives in this session's temporary schema, in a transaction that
// is rolled back.
const selectReads = `
select n.nspname, c.relname, coalesce(a.attname, '')
  from pg_proc p
  join pg_depend d on d.classid = 'pg_proc'::regclass and d.objid = p.oid and d.refclassid = 'pg_class'::regclass
  join pg_class c on c.oid = d.refobjid join pg_namespace n on n.oid = c.relnamespace
  left join pg_attribute a on a.attrelid = c.oid and a.attnum = d.refobjsubid and d.refobjsubid > 0
 where p.proname = 'pgreshard_lookup' and p.pronamespace = pg_my_temp_schema()`

// selectUnsteady names what in the body may answer otherwise with no change to a table in sight: functions that are volatile, those of
// users that are not immutable, which may read any table, and of PostgreSQL's stable ones those that tell of the time, the session or the
// catalog (a conversion or a format is stable too, for a session's settings, which are ours); what stands behind an operator or an
// aggregate is a function too. System catalogs, of which pg_depend says nothing since they are pinned. Names such as current_date.
const selectUnsteady = `
with body as (select prosqlbody::text as text from pg_proc where proname = 'pgreshard_lookup' and pronamespace = pg_my_temp_schema())
select distinct 'calls ' || f.oid::regprocedure::text
  from body, regexp_matches(text, ':(?:funcid|opfuncid|aggfnoid|winfnoid) ([1-9][0-9]*)', 'g') m, pg_proc f
 where f.oid = m[1]::oid and (f.provolatile = 'v' or f.provolatile = 's' and (f.oid >= 16384 or f.proname in ('now', 'transaction_timestamp',
       'statement_timestamp', 'age', 'current_setting', 'current_schema', 'current_schemas', 'current_database', 'version', 'getdatabaseencoding')
       or f.proname ~ '^(pg|inet|txid|has|to_reg|row_security|obj_|col_|shobj_|table_to|query_to|schema_to|database_to|cursor_to)'))
union
select 'reads ' || r.oid::regclass::text from body, regexp_matches(text, ':relid ([1-9][0-9]*)', 'g') m, pg_class r where r.oid = m[1]::oid and r.oid < 16384
union
select 'uses current_date, current_user or another such name' from body where text like '%SQLVALUEFUNCTION%'
 order by 1`

// readLookups finds the tables and columns each lookup reads, so that it is asked where they are and a change to them
// is noticed.
func (inv *inventory) readLookups(ctx context.Context, m *Move) error {
	for _, t := range inv.tables {
		if t.rule.Lookup == "" {
			continue
		}
		err := m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error { return inv.readLookup(ctx, conn, t) })
		if pg.Code(err) != "" && !pg.Transient(err) {
			return &PlanError{layout.Problems{{Table: t.name.String(), What: "lookup_query: " + err.Error(), Hint: "correct the SQL, or grant the role what it reads"}}}
		}
		if err != nil {
			return fmt.Errorf("lookup_query of %s: %w", t.name, err)
		}
	}
	return nil
}

func (inv *inventory) readLookup(ctx context.Context, conn *pgx.Conn, t *moved) error {
	root := inv.sources[0].Table(t.name)
	i, _ := root.Column(t.rule.Columns[0])
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	path := `set local search_path = "$user", public, pg_catalog`
	if _, err := tx.Exec(ctx, path); err != nil {
		return err
	}
	make := fmt.Sprintf("create function pg_temp.pgreshard_lookup(%s) returns setof record language sql begin atomic %s\n; end",
		root.Columns[i].Type, t.query.SQL)
	if _, err := conn.PgConn().Exec(ctx, make).ReadAll(); err != nil {
		return fmt.Errorf("the server does not take it: %w", err)
	}
	rows, err := tx.Query(ctx, selectReads)
	if err != nil {
		return err
	}
	var name pg.Name
	var column string
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &column}, func() error {
		inv.reads(t, name, column)
		return nil
	})
	if err == nil {
		t.unsteady, err = collectStrings(ctx, tx, selectUnsteady)
	}
	if err == nil {
		inv.noteFeeds(t)
		inv.notePlain(t)
		err = inv.tryMade(ctx, conn, t)
	}
	return err
}

// tryMade has the server read the queries that were made of t's lookup; one that it does not take is done without.
func (inv *inventory) tryMade(ctx context.Context, conn *pgx.Conn, t *moved) error {
	made := []*string{&t.query.Many}
	for _, name := range t.reads {
		if from := inv.byName[name]; from != nil {
			made = append(made, &from.feeds[len(from.feeds)-1].reach)
		}
	}
	for _, sql := range made {
		if *sql == "" {
			continue
		}
		if _, err := conn.PgConn().Prepare(ctx, "", *sql, nil); err != nil {
			if pg.Code(err) == "" {
				return err
			}
			*sql = ""
		}
	}
	return nil
}

// reads notes that t's lookup reads a column of a table.
func (inv *inventory) reads(t *moved, name pg.Name, column string) {
	if !slices.Contains(t.reads, name) {
		t.reads = append(t.reads, name)
	}
	from := inv.byName[name]
	if from == nil {
		return
	}
	t.asked = t.asked || !from.rule.Omni
	if column != "" && !slices.Contains(from.guard, column) {
		from.guard = append(from.guard, column)
	}
}

// typedSpec is a side's rules with the type of every lookup's result, which the server tells where the
// configuration does not, and with its slots as its record has them, else as they were before. A query that the server
// refuses is a problem; it counts as one of text then, so that the other problems can be found beside it.
func (m *Move) typedSpec(ctx context.Context, side Side, before []layout.SlotTable) (spec layout.Spec, problems layout.Problems, err error) {
	spec = side.spec()
	if spec.SlotTables, err = m.recordedSlots(ctx, side, spec); err != nil {
		return spec, nil, err
	}
	if spec.SlotTables == nil {
		spec.SlotTables = before
	}
	for _, t := range spec.Untyped() {
		err := m.on(ctx, m.Source.Shards[0], pg.Reader, func(conn *pgx.Conn) error {
			d, err := lookup.Validate(ctx, conn.PgConn(), t.LookupQuery)
			if err != nil {
				return err
			}
			if t.DataType = d.ResultType; len(d.Problems) > 0 {
				t.DataType = "text"
				problems = append(problems, lookupProblem(t.Name, d.Problems[0]))
			}
			return nil
		})
		if err != nil {
			return spec, problems, err
		}
	}
	return spec, problems, nil
}

// lookupProblem is what lookup.Validate found, with its hint apart.
func lookupProblem(table, what string) layout.Problem {
	what, hint, _ := strings.Cut(what, "; hint: ")
	return layout.Problem{Table: table, What: "lookup_query: " + what, Hint: hint}
}

// plainLookup is a query of the form "select value from table where key = $1": a row of that table that passes in the
// stream answers it without anybody being asked, where key tells its rows apart.
type plainLookup struct {
	query      *lookup.Query
	key, value string
}

// plainQuery is deliberately narrow: what it does not match is asked of a server, and is no less right.
var plainQuery = regexp.MustCompile(`(?is)^\s*select\s+([a-z_][a-z0-9_]*)\s+from\s+[a-z_][a-z0-9_.]*\s+where\s+([a-z_][a-z0-9_]*)\s*=\s*\$1\s*;?\s*$`)

// notePlain recognises a query whose one table's rows are its answers. The keys on both sides must be of one type, so
// that their text is the same.
func (inv *inventory) notePlain(t *moved) {
	if len(t.reads) != 1 || inv.byName[t.reads[0]] == nil {
		return
	}
	m := plainQuery.FindStringSubmatch(t.query.SQL)
	if m == nil {
		return
	}
	value, key := strings.ToLower(m[1]), strings.ToLower(m[2])
	from, own := inv.sources[0].Table(t.reads[0]), inv.sources[0].Table(t.name)
	k, ok := from.Column(key)
	o, there := own.Column(t.rule.Columns[0])
	if ok && there && sameTexts(from.Columns[k], own.Columns[o]) {
		into := inv.byName[t.reads[0]]
		into.plain = append(into.plain, plainLookup{query: t.query, key: key, value: value})
		t.withMapping = placedAlike(t, into, value)
	}
}

// placedAlike says that a table whose key is translated into value by a row of from lives where that row lives: from is
// sharded by value itself, and both hash it alike.
func placedAlike(t, from *moved, value string) bool {
	_, how, hashed := strings.Cut(t.rule.Describe(), ")")
	_, asWell, fromHashed := strings.Cut(from.rule.Describe(), ")")
	return from.rule.Lookup == "" && slices.Equal(from.rule.Columns, []string{value}) && t.rule.Hashes() == from.rule.Hashes() &&
		hashed && fromHashed && how == asWell &&
		strings.HasPrefix(t.rule.Describe(), "hash(") && strings.HasPrefix(from.rule.Describe(), "hash(")
}

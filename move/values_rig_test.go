package move_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// smallMove is a move of tables a test makes, by their column id (or key), with what the test writes meanwhile.
type smallMove struct {
	*rig
	// recast names the types of columns whose parts stand in another order on the source, because its encoding is
	// another: what is expected is the source's text read and written by a shard.
	recast map[string]string
}

// newSmallMove makes a source with the schema given and n empty shards. Nothing is in the source but what the schema
// puts there.
func newSmallMove(t *testing.T, n int, key, schema string) *smallMove {
	t.Helper()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, schema)
	var shards []*pgtest.DB
	for range n {
		shards = append(shards, pgtest.SharedDestination(t).Database(t))
	}
	return smallMoveOf(t, source, shards, key)
}

// moveNumber makes names of moves that differ within this process: slots are named by them and belong to the server.
var moveNumber atomic.Int64

func smallMoveOf(t *testing.T, source *pgtest.DB, shards []*pgtest.DB, key string) *smallMove {
	r := &rig{t: t, sources: []*pgtest.DB{source}, shards: shards}
	small := func(database string, version int, dbs []*pgtest.DB) move.Side {
		s := move.Side{Database: database, Layout: version}
		for n, db := range dbs {
			s.Shards = append(s.Shards, db.Shard(n))
		}
		s.Spec = layout.Spec{Tables: []layout.ShardedTable{{Database: database, Columns: []string{key}}}}
		return s
	}
	r.config = move.Config{
		Name: fmt.Sprintf("small%d", moveNumber.Add(1)), Source: small("app", 1, r.sources), Destination: small("app_sharded", 2, r.shards),
		CreateSchema: true, Owners: true, Grants: true, LookupBytes: 1 << 20, LookupTimeout: 5 * time.Second, LookupAttempts: 3,
		CopyWorkers: 2, CopyFormat: copier.Auto, MaxFreeze: 60 * time.Second, LockTimeout: 5 * time.Second, Attempts: 10,
		MaxLag: 64 << 20, MustVerify: true, Sequences: "stride", StateDir: t.TempDir(), Address: "127.0.0.1:1",
	}
	return &smallMove{rig: r}
}

// run moves: what stands in the source is copied, write is done while it streams, then the move cuts over.
func (s *smallMove) run(write func()) {
	s.t.Helper()
	err := s.move().Migrate(s.t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		write()
		return true, nil
	}})
	if err != nil {
		s.t.Fatal(err)
	}
}

// runOn runs statements in a session that is kept: several are one transaction.
func runOn(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%v\nin: %.300s", err, sql)
	}
}

// everyText pins whatever changes the text of a value.
const everyText = `set datestyle = 'ISO, MDY'; set intervalstyle = 'postgres'; set timezone = 'UTC'; set extra_float_digits = 3; set bytea_output = 'hex';
	set client_encoding = 'UTF8'; set lc_monetary = 'C'; set xmloption = 'content'; set search_path = 'pg_catalog'; set quote_all_identifiers = off`

// rowTexts reads a table as text, by its key's text: column name to value, NULL as <null>.
func (s *smallMove) rowTexts(table, key string, dbs ...*pgtest.DB) map[string]map[string]string {
	s.t.Helper()
	out := map[string]map[string]string{}
	for _, db := range dbs {
		conn := db.Conn(s.t)
		if _, err := conn.Exec(s.t.Context(), everyText, pgx.QueryExecModeSimpleProtocol); err != nil {
			s.t.Fatal(err)
		}
		result := conn.PgConn().ExecParams(s.t.Context(), "select "+key+"::text, * from "+table, nil, nil, nil, nil).Read()
		if result.Err != nil {
			s.t.Fatal(result.Err)
		}
		for _, values := range result.Rows {
			id := string(values[0])
			if out[id] != nil {
				s.t.Errorf("%s: row %s is there twice", table, id)
			}
			out[id] = map[string]string{}
			for i, v := range values[1:] {
				text := string(v)
				if v == nil {
					text = "<null>"
				}
				out[id][result.FieldDescriptions[i+1].Name] = text
			}
		}
	}
	return out
}

// same compares a table's text byte for byte and says in which columns which rows differ.
func (s *smallMove) same(table, key string) {
	s.t.Helper()
	if !strings.Contains(table, ".") {
		table = "public." + table
	}
	want, got := s.rowTexts(table, key, s.sources...), s.rowTexts(table, key, s.shards...)
	if len(want) == 0 {
		s.t.Errorf("%s is empty", table)
	}
	for id, row := range want {
		if got[id] == nil {
			s.t.Errorf("%s: row %s is missing", table, id)
			continue
		}
		if len(row) != len(got[id]) {
			s.t.Errorf("%s: %d columns became %d", table, len(row), len(got[id]))
		}
		for column, text := range row {
			if typ := s.recast[column]; typ != "" && text != "<null>" {
				text = s.shards[0].Query(s.t, "select $1::text::"+typ+"::text", text)[0][0]
			}
			if got[id][column] != text {
				s.t.Errorf("%s: row %s: column %s: %s became %s", table, id, column, short(text), short(got[id][column]))
			}
		}
	}
	for id := range got {
		if want[id] == nil {
			s.t.Errorf("%s: row %s is there and should not be", table, id)
		}
	}
}

func short(s string) string {
	if len(s) > 120 {
		return fmt.Sprintf("%q… (%d bytes)", s[:120], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// onItsShard checks by PostgreSQL's own hash partitioning that rows stand where their key puts them, and that they are
// not all on one shard.
func (s *smallMove) onItsShard(table, key, typ string) {
	s.t.Helper()
	used := 0
	for n, db := range s.shards {
		db.Exec(s.t, "create table public.placed (k "+typ+") partition by hash (k)")
		count := db.Query(s.t, fmt.Sprintf(`select count(*), count(*) filter (where not satisfies_hash_partition('public.placed'::regclass, %d, %d, %s)) from %s`, len(s.shards), n, key, table))
		if count[0][1] != "0" {
			s.t.Errorf("shard %d holds %s rows of %s that are not its own", n, count[0][1], table)
		}
		if count[0][0] != "0" {
			used++
		}
		db.Exec(s.t, "drop table public.placed")
	}
	if used < 2 {
		s.t.Errorf("rows of %s are on %d shards", table, used)
	}
}

// has says whether both servers have an extension.
func has(t *testing.T, extension string) bool {
	for _, c := range []*pgtest.Cluster{pgtest.Shared(t), pgtest.SharedDestination(t)} {
		db := c.Database(t)
		if len(db.Query(t, `select 1 from pg_available_extensions where name = $1`, extension)) == 0 {
			t.Logf("PostgreSQL %d has no %s here", c.Version, extension)
			return false
		}
	}
	return true
}

// oldestServer is the lower of both sides' versions: values must be known to both.
func oldestServer(t *testing.T) int {
	return slices.Min([]int{pgtest.Shared(t).Version, pgtest.SharedDestination(t).Version})
}

package move_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// zoos are the tables of a value test: with a key, with a key under REPLICA IDENTITY FULL, and without any key, where a
// row is found by all its values.
func zoos(t *testing.T) (schema string, tables []*zoo) {
	t.Helper()
	major := oldestServer(t)
	text := slices.Clone(textZoo)
	schema = zooDDL
	for _, name := range slices.Sorted(maps.Keys(extensionZoo)) {
		if has(t, name) {
			schema += "create extension " + name + ";"
			text = append(text, extensionZoo[name]...)
		}
	}
	for _, kind := range []struct {
		name    string
		columns []zooColumn
	}{{"plain", plainZoo}, {"other", text}} {
		if len(kind.columns) < 40 {
			t.Errorf("%s has only %d columns", kind.name, len(kind.columns))
		}
		for _, how := range []struct{ name, options, after string }{
			{"keyed", "primary key", ""},
			{"full", "primary key", "alter table %s replica identity full;"},
			{"keyless", "not null", "alter table %s replica identity full;"},
		} {
			z := newZoo(kind.name+"_"+how.name, major, kind.columns...)
			schema += z.ddl(how.options)
			if how.after != "" {
				schema += fmt.Sprintf(how.after, z.name)
			}
			tables = append(tables, z)
		}
	}
	return schema, tables
}

// fill writes what the copy finds: every value of every type, and rows of nothing but NULLs.
func (z *zoo) fill(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	var b strings.Builder
	for n := range z.rows() {
		b.WriteString(z.insert(n, n, 0))
		b.WriteString(z.insert(1000+n, n, 1))
	}
	b.WriteString(z.insertNull(900) + z.insertNull(901) + z.insertNull(902))
	runOn(t, conn, b.String())
}

// stream writes what the stream carries: every value inserted, every value laid over another and over NULL, NULLs over
// values, updates that leave long values alone, deletes, and all of that to one row in one transaction.
func (z *zoo) stream(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for n := range z.rows() {
		runOn(t, conn, z.insert(2000+n, n, 0))
		runOn(t, conn, z.update(n, n+1, 0))
		runOn(t, conn, z.update(1000+n, n+1, 1)+fmt.Sprintf("update %s set pad = pad + 1 where id = %d;", z.name, 1000+n)+z.update(1000+n, n, 2))
		runOn(t, conn, z.insert(3000+n, n, 1)+fmt.Sprintf("update %s set pad = 7 where id = %d;", z.name, 3000+n)+z.update(3000+n, n+2, 1))
		runOn(t, conn, fmt.Sprintf("update %s set pad = pad + 1 where id = %d;", z.name, 2000+n))
	}
	var null []string
	for i, c := range z.columns {
		if c.typ != "short" { // a domain that is not null
			null = append(null, fmt.Sprintf("c%d = null", i))
		}
	}
	runOn(t, conn, z.insertNull(4000)+z.update(900, 3, 0)+z.update(901, 5, 1)+fmt.Sprintf("update %s set pad = 1 where id = 902;", z.name)+
		fmt.Sprintf("update %s set %s where id in (3, 1001);", z.name, strings.Join(null, ", ")))
	runOn(t, conn, fmt.Sprintf("delete from %s where id in (0, 2, 2001, 3002, 901, 902, 1000);", z.name))
}

func TestValues2EveryTypeAtItsExtremesThroughCopyAndStream(t *testing.T) {
	for _, format := range []copier.Format{copier.Auto, copier.Text} {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()
			schema, tables := zoos(t)
			s := newSmallMove(t, 3, "id", schema)
			s.config.CopyFormat = format
			for i, db := range s.shards { // the same types get other numbers there
				db.Exec(t, zooTypes(10+3*i))
			}
			application := s.sources[0].Conn(t)
			for _, z := range tables {
				z.fill(t, application)
			}
			s.run(func() {
				for _, z := range tables {
					z.stream(t, application)
				}
			})
			for _, z := range tables {
				s.same(z.name, "id")
				s.onItsShard(z.name, "id", "bigint")
			}
			const oids = `select t::regtype::oid from unnest(array['mood', 'mood[]', 'pair', 'positive', 'floats', 'odd."Odd ""T"']) t`
			for _, db := range s.shards {
				if fmt.Sprint(db.Query(t, oids)) == fmt.Sprint(s.sources[0].Query(t, oids)) {
					t.Error("the user's types have the same numbers on both sides")
				}
			}
		})
	}
}

func TestBuiltInTypesAreCopiedInBinaryAndOthersAsText(t *testing.T) {
	t.Parallel()
	schema, tables := zoos(t)
	from, into := pgtest.Shared(t).Database(t), pgtest.SharedDestination(t).Database(t)
	from.Exec(t, schema)
	into.Exec(t, zooTypes(5)+schema)
	catalog := func(db *pgtest.DB) *pg.Catalog {
		c, err := pg.ReadCatalog(t.Context(), db.Conn(t))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := catalog(from), catalog(into)
	for _, z := range tables {
		name := pg.Name{Schema: "public", Table: z.name}
		plan, err := copier.Plan(a.Table(name), b.Table(name), []string{"id"}, true, copier.Auto)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.HasPrefix(z.name, "plain"); plan.Binary != want {
			t.Errorf("%s is copied in binary: %v", z.name, plan.Binary)
		}
	}
}

// otherSettings are what roles and databases carry; none may change a value or end a session.
var otherSettings = []string{"datestyle = 'SQL, DMY'", "datestyle = 'German'", "datestyle = 'Postgres, MDY'", "intervalstyle = 'iso_8601'", "intervalstyle = 'sql_standard'",
	"intervalstyle = 'postgres_verbose'", "timezone = 'Asia/Kathmandu'", "timezone = 'America/New_York'", "bytea_output = 'escape'", "extra_float_digits = -15",
	"client_encoding = 'LATIN1'", "xmloption = 'document'", "standard_conforming_strings = off", "array_nulls = off", "transform_null_equals = on", "quote_all_identifiers = on",
	"default_text_search_config = 'german'", "search_path = odd, public", "row_security = on", "backslash_quote = on", "lc_monetary = 'C.UTF-8'",
	"default_transaction_isolation = 'serializable'", "default_transaction_read_only = on", "default_transaction_deferrable = on", "statement_timeout = '5s'",
	"lock_timeout = '1s'", "idle_in_transaction_session_timeout = '1s'", "idle_session_timeout = '1s'", "synchronous_commit = off"}

func TestValues2SettingsOfDatabasesAndRolesChangeNoValue(t *testing.T) {
	t.Parallel()
	schema, tables := zoos(t)
	s := newSmallMove(t, 3, "id", schema)
	application := s.sources[0].Conn(t)
	for _, z := range tables {
		z.fill(t, application)
	}
	for i, db := range append(slices.Clone(s.shards), s.sources...) {
		before := db.Conn(t) // settings are for sessions that begin after them
		settings := otherSettings
		if db.Cluster.Version >= 17 {
			settings = append(slices.Clone(settings), "transaction_timeout = '5s'")
		}
		for n, setting := range settings {
			whose := "database " + db.Name
			if (n+i)%2 == 0 {
				whose = "role postgres in database " + db.Name
			}
			if (n+i)%4 > 0 { // each has others
				runOn(t, before, "alter "+whose+" set "+setting)
			}
		}
		defer func() {
			runOn(t, before, "alter database "+db.Name+" reset all; alter role postgres in database "+db.Name+" reset all")
		}()
	}
	s.run(func() {
		for _, z := range tables {
			z.stream(t, application)
		}
	})
	for _, z := range tables {
		s.same(z.name, "id")
	}
}

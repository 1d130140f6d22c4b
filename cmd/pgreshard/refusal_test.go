package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// wrongRig is a source with a database of each kind of trouble and two empty destinations.
type wrongRig struct {
	source *pgtest.DB
	shards []*pgtest.DB
	file   string // of the last call of refused
}

const wrongTables = `create table tenants (id bigint primary key, parent bigint, name text);
	create table orders (id bigint primary key, tenant_id bigint not null);
	create table countries (code text primary key)`

const wrongRules = `[cutover]
reverse = false
[[sharded_tables]]
name = "orders"
column = "tenant_id"
lookup_query = "select coalesce(parent, id) from tenants where id = $1"
[[omnisharded_tables]]
tables = ["countries", "tenants"]
`

func newWrongRig(t *testing.T, source *pgtest.Cluster) *wrongRig {
	t.Helper()
	r := &wrongRig{source: source.Database(t), shards: []*pgtest.DB{pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)}}
	r.source.Exec(t, wrongTables)
	return r
}

// refused runs plan and migrate: both must end with the code and say every one of the parts, and leave nothing.
func (r *wrongRig) refused(t *testing.T, code int, sources, shards []string, text string, parts ...string) {
	t.Helper()
	r.file = filepath.Join(t.TempDir(), "pgreshard.toml")
	writeConfig(t, r.file, nameOf(r.source), freePort(t), sources, shards, text)
	env := []string{stateVariable + "=" + t.TempDir()}
	for _, args := range [][]string{{"plan"}, {"migrate", "--yes"}} {
		command := args[0]
		p := start(t, env, append([]string{"-c", r.file}, args...)...)
		got, said := p.wait(t)
		if got != code {
			t.Errorf("%s ended with %d, want %d:\n%s", command, got, code, said)
		}
		for _, part := range parts {
			if !regexp.MustCompile(part).MatchString(said) {
				t.Errorf("%s does not say %q:\n%s", command, part, said)
			}
		}
		if testing.Verbose() && command == "migrate" {
			t.Logf("%s: %d\n%s", command, got, said)
		}
	}
	untouched(t, append(r.shards, r.source)...)
}

func TestAWrongConfigurationIsRefusedBeforeAnythingIsMade(t *testing.T) {
	t.Parallel()
	r := newWrongRig(t, pgtest.Shared(t))
	r.source.Exec(t, `create function landlord_share(int) returns float language sql stable as 'select 0.5'`)
	source, shards := []string{r.source.URL()}, urls(r.shards)
	for name, c := range map[string]struct {
		code    int
		sources []string
		shards  []string
		text    string
		parts   []string
	}{
		"an unknown key": {2, source, shards, wrongRules + "[copy]\nworker = 4\n",
			[]string{`pgreshard\.toml:\d+: copy\.worker: unknown key \(hint: known here: workers`}},
		"a missing variable": {2, source, []string{shards[0], "postgres://postgres:${PGRESHARD_TEST_NOWHERE}@127.0.0.1/x"}, wrongRules,
			[]string{`destination\.shards\[1\]\.url: .*PGRESHARD_TEST_NOWHERE`, `hint: `}},
		"a shard out of range": {2, source, shards, wrongRules + "[[sharded_mappings]]\ncolumn = \"tenant_id\"\nkind = \"list\"\nvalues = [1]\nshard = 2\n",
			[]string{`sharded_mappings\[0\]\.shard: there is no shard 2 \(hint: 2 shards are numbered 0 to 1\)`}},
		"all three at once": {2, source, []string{shards[0], "postgres://postgres:${PGRESHARD_TEST_NOWHERE}@127.0.0.1/x"},
			wrongRules + "[[sharded_mappings]]\ncolumn = \"tenant_id\"\nkind = \"list\"\nvalues = [1]\nshard = 2\n[copy]\nworker = 4\nworkers = \"four\"\n",
			[]string{`copy\.worker: unknown key`, `copy\.workers: takes a whole number`, `PGRESHARD_TEST_NOWHERE`, `there is no shard 2`}},
		"a table without a rule": {3, source, shards, strings.Replace(wrongRules, `"countries", `, "", 1),
			[]string{`public\.countries: no rule covers the table.*hint: `}},
		"an unreachable shard": {3, source, []string{shards[0], "postgres://postgres@127.0.0.1:1/x"}, wrongRules,
			[]string{`destination shard 1: cannot be read: .*hint: `}},
		"an unreachable source": {3, []string{"postgres://postgres@127.0.0.1:1/x"}, shards, wrongRules,
			[]string{`source shard 0: cannot be read: .*hint: `}},
		"a shard named twice by different addresses": {3, source, []string{shards[0], strings.Replace(shards[0], "127.0.0.1", "localhost", 1)}, wrongRules,
			[]string{`destination shard 1: is the same database as destination shard 0.*hint: `}},
		"a table without a rule and an unreachable shard": {3, source, []string{shards[0], "postgres://postgres@127.0.0.1:1/x"}, strings.Replace(wrongRules, `"countries", `, "", 1),
			[]string{`public\.countries: no rule covers the table`, `destination shard 1: cannot be read`}},
		"a table without a rule and a key column that is not there": {3, source, shards,
			strings.NewReplacer(`"countries", `, "", `column = "tenant_id"`, `column = "no_such"`).Replace(wrongRules),
			[]string{`public\.countries: no rule covers the table`, `no_such`}},
		"a lookup that the server does not take": {3, source, shards, strings.Replace(wrongRules, "from tenants", "from landlords", 1),
			[]string{`orders: lookup_query: .*landlords.*hint: `}},
		"a lookup that the server does not take and a table without a rule": {3, source, shards,
			strings.NewReplacer("from tenants", "from landlords", `"countries", `, "").Replace(wrongRules),
			[]string{`orders: lookup_query: .*landlords.*hint: `, `public\.countries: no rule covers the table`}},
		"a lookup of a declared type that the server does not take": {3, source, shards,
			strings.Replace(wrongRules, "from tenants where id = $1\"", "from landlords where id = $1\"\ndata_type = \"bigint\"", 1),
			[]string{`public\.orders: lookup_query: .*landlords.*hint: `}},
		"lookups that are no translation": {3, source, shards, strings.Replace(wrongRules, "where id = $1\"", "where id = $1 and random() < landlord_share(1)\"", 1),
			[]string{`public\.orders: its lookup_query calls random\(\), whose answer may change.*hint: `, `public\.orders: its lookup_query calls landlord_share\(integer\), whose`}},
		"a lookup of two statements": {3, source, shards, strings.Replace(wrongRules, "where id = $1\"", "where id = $1; select 1\"", 1),
			[]string{`orders: lookup_query: .*multiple commands.*hint: `}},
		"a lookup by a column of another type": {3, source, shards, strings.Replace(wrongRules, "where id = $1\"", "where name = $1\"", 1),
			[]string{`orders: lookup_query: .*operator does not exist: text = bigint.*hint: `}},
		"a mapping for a column no rule names": {3, source, shards, wrongRules + "[[sharded_mappings]]\ncolumn = \"no_such\"\nkind = \"list\"\nvalues = [1]\nshard = 1\n",
			[]string{`no_such.*hint: `}},
	} {
		t.Run(name, func(t *testing.T) { r.refused(t, c.code, c.sources, c.shards, c.text, c.parts...) })
	}
}

func TestANameThatIsTakenIsRefused(t *testing.T) {
	t.Parallel()
	r, other := newWrongRig(t, pgtest.Shared(t)), pgtest.Shared(t).Database(t)
	slot := "pgreshard_" + strings.ReplaceAll(nameOf(r.source), "-", "_") + "_0"
	other.Exec(t, `select pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	r.refused(t, 3, []string{r.source.URL()}, urls(r.shards), wrongRules,
		`source shard 0: a replication slot of database `+other.Name+` is called `+slot+`.*hint: .*select pg_drop_replication_slot\('`+slot+`'\)`)
	other.Exec(t, `select pg_drop_replication_slot($1)`, slot)
	r.source.Exec(t, `create publication `+slot)
	p := start(t, nil, "-c", r.file, "plan")
	if code, said := p.wait(t); code != exitCheck || !strings.Contains(said, "drop publication "+slot) {
		t.Errorf("plan: %d\n%s", code, said)
	}
}

func TestAnErrorOfAnySortNamesNoPassword(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pgreshard.toml")
	writeConfig(t, file, "m", freePort(t), []string{"postgres://postgres:hunter2@127.0.0.1:1/a"}, []string{"host=127.0.0.1 port=1 password=hunter2 dbname=b"}, wrongRules)
	for _, args := range [][]string{{"plan"}, {"migrate", "--yes"}, {"status"}, {"route", "orders", "1"}, {"layout"}, {"verify"}, {"plan", "--log-format", "json"}} {
		p := start(t, append(os.Environ(), stateVariable+"="+t.TempDir()), append([]string{"-c", file}, args...)...)
		code, said := p.wait(t)
		if code == 0 || strings.Contains(said, "hunter2") || !strings.Contains(said, "hint") {
			t.Errorf("%v: %d\n%s", args, code, said)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
)

// small is the least a configuration needs; tests add to it. Its shards are 1 and 2.
const small = `[move]
name = "m"
[source]
database = "prod"
layout = 1
[[source.shards]]
url = "postgres://u@a/prod"
[destination]
database = "next"
layout = 2
[[destination.shards]]
url = "postgres://u@b/next"
[[destination.shards]]
url = "postgres://u@c/next"
`

func TestTheReadmesExampleIsAConfiguration(t *testing.T) {
	t.Parallel()
	c, err := loadConfig("testdata/full.toml")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Cutover.MaxFreeze; got != 5*second {
		t.Errorf("max_freeze = %v", time.Duration(got))
	}
	if got := c.General.LookupCacheSize; got != 64<<20 {
		t.Errorf("cache size = %v", got)
	}
	if !c.Schema.Create || !c.Cutover.Reverse || c.HTTP.Listen != "127.0.0.1:7432" || len(c.Source.Shards[0].Replicas) != 1 {
		t.Errorf("read wrongly: %+v", c)
	}
	source, destination := c.spec(c.Source), c.spec(c.Destination)
	if len(source.Tables) != 0 || source.Shards != 1 || source.Version != 1 {
		t.Errorf("source layout: %+v", source)
	}
	if len(destination.Tables) != 1 || len(destination.Mappings) != 1 || destination.Shards != 2 || destination.Database != "prod_sharded" {
		t.Errorf("destination layout: %+v", destination)
	}
}

func TestAnEmptyFileHasTheExamplesDefaults(t *testing.T) {
	t.Parallel()
	example, err := loadConfig("testdata/full.toml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig("x", []byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if c.General != example.General || c.Copy != example.Copy || c.Stream != example.Stream || c.Cutover != example.Cutover ||
		c.Sequences != example.Sequences || c.HTTP != example.HTTP || c.NATS != example.NATS {
		t.Errorf("defaults differ from the example:\n%+v\n%+v", c, example)
	}
	if c.CDC.Enabled || !c.CDC.Snapshot || c.Hooks.Timeout != example.Hooks.Timeout || c.Tables.ReplicaIdentity != "keep" {
		t.Errorf("defaults differ from the example: %+v", c)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	t.Setenv("PGRESHARD_TEST_SET", "secret")
	url := `url = "postgres://u@b/next"`
	for name, test := range map[string]struct {
		add     string // after small
		replace [2]string
		want    []string // parts of the message
	}{
		"an unknown key with its line": {add: "[copy]\nworkrs = 3\n", want: []string{"x.toml:16: copy.workrs: unknown key", "known here: workers, sources, format"}},
		"an unknown section":           {add: "[copies]\nworkers = 3\n", want: []string{"x.toml:15: copies: unknown key", "hint: known here: move, source"}},
		"an unknown key of a rule":     {add: "[[sharded_tables]]\ncolumn = \"a\"\nkolumn = \"a\"\n", want: []string{":17: sharded_tables.kolumn: unknown key"}},
		"no TOML":                      {add: "[copy\n", want: []string{"x.toml:15", "hint: the file is TOML"}},
		"a key given twice":            {add: "[copy]\nworkers = 1\nworkers = 2\n", want: []string{"x.toml:17", "already defined"}},
		"a string for a number":        {add: "[copy]\nworkers = \"3\"\n", want: []string{"x.toml:16: copy.workers: takes a whole number, not string"}},
		"a number for a string":        {add: "[copy]\nformat = 3\n", want: []string{"x.toml:16: copy.format: takes a string, not integer"}},
		"a bad size":                   {add: "[stream]\nbatch_bytes = \"4 megs\"\n", want: []string{`:16: stream.batch_bytes: "4 megs" is not a size (hint: write it like 64MB`}},
		"a bad duration":               {add: "[cutover]\nmax_freeze = \"5\"\n", want: []string{`:16: cutover.max_freeze: "5" is not a duration`}},
		"a list of a single section":   {add: "[[copy]]\nworkers = 3\n", want: []string{"copy: is one section, not a list of them (hint: write [copy])"}},
		"several at once": {
			add:  "[copy]\nworkers = \"3\"\nformat = 1\nzork = 1\n[stream]\non_ddl = \"run\"\nbatch_delay = \"x\"\n",
			want: []string{":16: copy.workers", ":17: copy.format", ":18: copy.zork", ":21: stream.batch_delay", "stream.on_ddl"},
		},
		"a name that names no slot":      {replace: [2]string{`name = "m"`, `name = "Move 1"`}, want: []string{`move.name: "Move 1" cannot name slots`}},
		"no name":                        {replace: [2]string{`name = "m"`, ``}, want: []string{`move.name: ""`}},
		"layouts that do not follow":     {replace: [2]string{"layout = 2", "layout = 3"}, want: []string{"destination.layout: is 3, the source's is 1", "one more: 2"}},
		"the same layout":                {replace: [2]string{"layout = 2", "layout = 1"}, want: []string{"destination.layout: is 1"}},
		"no layout":                      {replace: [2]string{"layout = 2", ""}, want: []string{"destination.layout: is missing"}},
		"a layout without shards":        {replace: [2]string{"[[source.shards]]\nurl = \"postgres://u@a/prod\"", ""}, want: []string{"source.shards: there is no shard"}},
		"a shard without address":        {replace: [2]string{url, ""}, want: []string{"destination.shards[0].url: is missing"}},
		"an address nobody understands":  {replace: [2]string{url, `url = "postgres://u:hunter2@b:port/next"`}, want: []string{"destination.shards[0].url"}},
		"a missing variable":             {replace: [2]string{url, `url = "postgres://u:${PGRESHARD_TEST_UNSET}@b/${PGRESHARD_TEST_SET}"`}, want: []string{"the environment variable PGRESHARD_TEST_UNSET is not set"}},
		"a missing secret":               {replace: [2]string{url, `url = "postgres://u:${file:/no/such/file}@b/next"`}, want: []string{"${file:/no/such/file} cannot be read"}},
		"the same database twice":        {replace: [2]string{url, `url = "postgres://other@c/next"`}, want: []string{"destination.shards[1].url: is the same database as destination.shards[0].url"}},
		"a choice there is not":          {add: "[sequences]\npolicy = \"random\"\n", want: []string{`sequences.policy: "random" is not a choice (hint: stride, copy, none)`}},
		"a window without zone":          {add: "[cutover]\nwindow = \"02:00-04:00\"\n", want: []string{"cutover.window", "Europe/Berlin"}},
		"a window in no zone":            {add: "[cutover]\nwindow = \"02:00-04:00 Mars/Base\"\n", want: []string{`"Mars/Base" is not a time zone`}},
		"a window that never opens":      {add: "[cutover]\nwindow = \"02:00-02:00 UTC\"\n", want: []string{"cutover.window", "starts and ends at the same time"}},
		"a lock wait above the freeze":   {add: "[cutover]\nlock_timeout = \"6s\"\n", want: []string{"cutover.lock_timeout: is not below max_freeze"}},
		"a hook as one line":             {add: "[hooks]\nbefore_freeze = [\"pause pool\"]\n", want: []string{"hooks.before_freeze: no shell splits a line"}},
		"a hook without program":         {add: "[hooks]\nafter_undo = [\"\"]\n", want: []string{"hooks.after_undo: names no program"}},
		"a pattern without schema":       {add: "[tables]\ninclude = [\"orders\"]\n", want: []string{`tables.include[0]: "orders" is not schema.table`}},
		"a constraint of unknown kind":   {add: "[schema]\nskip = [\"orders_fk\"]\n", want: []string{`schema.skip[0]: "orders_fk" names no constraint`}},
		"listening to all without TLS":   {add: "[http]\nlisten = \"0.0.0.0:7432\"\n", want: []string{"http.listen: is reachable from other machines without TLS"}},
		"half of a certificate":          {add: "[http]\ntls_cert = \"x\"\n", want: []string{"http.tls_key: tls_cert and tls_key go together"}},
		"an aggregate that cannot merge": {add: "[[checks]]\ntable = \"o\"\naggregates = [\"median(x)\"]\n", want: []string{`checks[0].aggregates: "median(x)" cannot be merged over shards`}},
		"a check's key of no kind":       {add: "[[checks]]\ntable = \"o\"\naggregates = [\"count\"]\nkeys = [1.5]\n", want: []string{`checks[0].keys: 1.5 is neither a string nor a whole number`}},
		"a replica of two nodes":         {replace: [2]string{url, url + "\nreplicas = [\"postgres://u@d,e/next\"]"}, want: []string{"destination.shards[0].replicas[0]: names several nodes"}},
		"a rule without column":          {add: "[[sharded_tables]]\nname = \"o\"\n", want: []string{"sharded_tables[0].column: is missing"}},
		"a rule of another database":     {add: "[[sharded_tables]]\ncolumn = \"o\"\ndatabase = \"q\"\n", want: []string{`sharded_tables[0].database: "q" is neither`, "prod or next"}},
		"vector sharding":                {add: "[[sharded_tables]]\ncolumn = \"o\"\ndata_type = \"vector\"\n", want: []string{"sharded_tables[0]: vector sharding is not supported"}},
		"centroids":                      {add: "[[sharded_tables]]\ncolumn = \"o\"\ncentroids = [[1.0, 2.0]]\n", want: []string{"sharded_tables[0]: vector sharding is not supported"}},
		"a shard out of range":           {add: "[[sharded_mappings]]\ncolumn = \"o\"\nvalues = [1]\nshard = 2\n", want: []string{"sharded_mappings[0].shard: there is no shard 2 (hint: 2 shards are numbered 0 to 1)"}},
		"a mapping to nowhere":           {add: "[[sharded_mappings]]\ncolumn = \"o\"\nvalues = [1]\n", want: []string{"sharded_mappings[0].shard: is missing"}},
		"a range without bounds":         {add: "[[sharded_mappings]]\ncolumn = \"o\"\nkind = \"range\"\nshard = 1\n", want: []string{"sharded_mappings[0].start: is missing"}},
		"a nested list without values": {
			add:  "[[sharded_tables]]\ncolumn = \"o\"\n[[sharded_tables.mapping]]\nkind = \"list\"\nshard = 1\n",
			want: []string{"sharded_tables[0].mapping[0].values: is empty"},
		},
		"a reference list of nothing": {add: "[[omnisharded_tables]]\n", want: []string{"omnisharded_tables[0].tables: is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := small + test.add
			if test.replace[0] != "" {
				text = strings.Replace(text, test.replace[0], test.replace[1], 1)
			}
			_, err := parseConfig("x.toml", []byte(text))
			if err == nil {
				t.Fatal("accepted")
			}
			if code := exitCode(err); code != exitUsage {
				t.Errorf("exit code %d", code)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got:\n%v\nwant: %s", err, part)
				}
			}
			for line := range strings.Lines(err.Error()) {
				if !strings.Contains(line, "hint: ") {
					t.Errorf("no hint: %s", line)
				}
			}
			if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "secret") {
				t.Errorf("a password is shown: %v", err)
			}
		})
	}
}

func TestPgDogsSectionsMayBePastedOver(t *testing.T) {
	t.Parallel()
	c, err := parseConfig("x.toml", []byte(small+`
[[sharded_tables]]
database = "next"
name = "users"
column = "id"
data_type = "bigint"
primary = true
[[sharded_tables.mapping]]
values = [1, 2]
shard = 0
[[sharded_tables.mapping]]
start = 100
shard = 1
[[sharded_tables.mapping]]
shard = 1
[[omnisharded_tables]]
database = "next"
sticky = true
tables = ["countries"]
[[sharded_schemas]]
database = "next"
name = "eu"
shard = 1
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Ignored) != 2 {
		t.Errorf("ignored: %q", c.Ignored)
	}
	var kinds []string
	for _, m := range c.Sharded[0].Mapping {
		kinds = append(kinds, m.Kind)
	}
	if want := []string{"list", "range", "default"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %q, want %q", kinds, want)
	}
}

func TestASecretFileIsReadAnewAtEachConnect(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	cluster := clusterSection{Shards: []shardSection{{URL: address("postgres://u:${file:" + file + "}@h/d")}}}
	shard := cluster.shards()[0]
	for _, password := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		url, err := shard.URL()
		if want := "postgres://u:" + password + "@h/d"; err != nil || url != want {
			t.Errorf("got %q, %v, want %q", url, err, want)
		}
	}
}

func TestSizesAreReadAsPostgresWritesThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]byteSize{
		"": 0, "0": 0, "512": 512, "64MB": 64 << 20, "8kB": 8192, "8KB": 8192, "1GB": 1 << 30, "2TB": 2 << 40, "7 MB": 7 << 20, "9B": 9,
	} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
		var again byteSize
		if err := again.UnmarshalText([]byte(got.String())); err != nil || again != got {
			t.Errorf("%q: %s reads back as %d", text, got, again)
		}
	}
	for _, text := range []string{"MB", "-1MB", "1.5GB", "64 megabytes", "9999999999TB", "0x10"} {
		var got byteSize
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: read as %d", text, got)
		}
	}
}

func TestAWindowIsOpenInItsOwnZone(t *testing.T) {
	t.Parallel()
	at := func(text string) time.Time {
		v, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, test := range []struct {
		window, at string
		want       bool
	}{
		{"", "2026-01-01T12:00:00Z", true},
		{"02:00-04:00 Europe/Berlin", "2026-01-01T01:00:00Z", true},
		{"02:00-04:00 Europe/Berlin", "2026-01-01T00:59:59Z", false},
		{"02:00-04:00 Europe/Berlin", "2026-01-01T03:00:00Z", false},
		{"02:00-04:00 Europe/Berlin", "2026-07-01T00:30:00Z", true}, // summer time
		{"23:00-01:00 UTC", "2026-01-01T23:30:00Z", true},
		{"23:00-01:00 UTC", "2026-01-01T00:59:00Z", true},
		{"23:00-01:00 UTC", "2026-01-01T01:00:00Z", false},
	} {
		w, err := parseWindow(test.window)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.open(at(test.at)); got != test.want {
			t.Errorf("%q at %s: open %v, want %v", test.window, test.at, got, test.want)
		}
	}
}

func TestAStatusNamesAWindowThatIsClosedAndWhenItOpens(t *testing.T) {
	t.Parallel()
	w, err := parseWindow("02:30-04:00 Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	safe := move.Status{State: "streaming", SafeToCutOver: move.SafeToCutOver{OK: true}}
	for at, want := range map[string]string{
		"2026-01-01T00:29:00Z": "the cutover window is closed, it opens at 2026-01-01 02:30 CET",
		"2026-01-01T03:00:00Z": "the cutover window is closed, it opens at 2026-01-02 02:30 CET",
		"2026-07-31T12:00:00Z": "the cutover window is closed, it opens at 2026-08-01 02:30 CEST",
		"2026-01-01T01:30:00Z": "",
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		got := w.tell(safe, now)
		if because := strings.Join(got.SafeToCutOver.Because, "; "); because != want || got.SafeToCutOver.OK != (want == "") || len(got.Waiting) > 0 {
			t.Errorf("%s: %+v", at, got.SafeToCutOver)
		}
		if got := w.tell(move.Status{State: "copying"}, now); len(got.SafeToCutOver.Because) > 0 {
			t.Errorf("a move that copies: %+v", got.SafeToCutOver)
		}
		if got := (window{}).tell(safe, now); !got.SafeToCutOver.OK {
			t.Errorf("without a window: %+v", got.SafeToCutOver)
		}
	}
}

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgreshard/layout"
)

const configurationPage = "../../docs/configuration.md"

// setting is one row of the page's tables.
type setting struct {
	kind, byDefault string
}

var (
	headedSections = regexp.MustCompile(`\[+([a-z_.]+)\]+`)
	settingRow     = regexp.MustCompile("^\\| `([a-z_.]+)` \\| (.+?) \\| (.+?) \\| (.*)\\|$")
)

// readSettings reads the page: what it says of each key, by its dotted path.
func readSettings(t *testing.T, page string) map[string]setting {
	t.Helper()
	found := map[string]setting{}
	var sections []string
	for line := range strings.Lines(page) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "#") {
			sections = nil
			for _, m := range headedSections.FindAllStringSubmatch(line, -1) {
				sections = append(sections, m[1])
			}
		}
		m := settingRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		s := setting{m[2], m[3]}
		paths := []string{m[1]}
		if !strings.Contains(m[1], ".") {
			paths = nil
			for _, section := range sections {
				paths = append(paths, section+"."+m[1])
			}
		}
		for _, path := range paths {
			if _, twice := found[path]; twice {
				t.Errorf("%s stands there twice", path)
			}
			found[path] = s
		}
	}
	return found
}

// settingTypes are the keys the program knows, by their dotted path.
func settingTypes(t reflect.Type, path string, into map[string]reflect.Type) {
	for f := range t.Fields() {
		name, of := f.Tag.Get("toml"), f.Type
		if name == "-" || path == "sharded_tables" && name == "mapping" { // these are [[sharded_mappings]], nested
			continue
		}
		if of.Kind() == reflect.Slice && of.Elem().Kind() == reflect.Struct {
			of = of.Elem()
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		if of.Kind() == reflect.Struct {
			settingTypes(of, at, into)
			continue
		}
		into[at] = of
	}
}

// fileHeads are the sections in an order in which each may stand; least are the keys that a file with all lists must have.
var (
	fileHeads = []string{"[move]", "[source]", "[[source.shards]]", "[destination]", "[[destination.shards]]", "[tables]", "[schema]", "[[sharded_tables]]",
		"[[sharded_mappings]]", "[[omnisharded_tables]]", "[[sharded_schemas]]", "[general]", "[copy]", "[stream]", "[cutover]", "[sequences]", "[hooks]",
		"[http]", "[nats]", "[cdc]", "[[checks]]"}
	least = map[string]string{
		"move.name": `"m"`, "source.database": `"a"`, "source.layout": "1", "source.shards.url": `"postgres://u@a/a"`,
		"destination.database": `"b"`, "destination.layout": "2", "destination.shards.url": `"postgres://u@b/b"`,
		"sharded_tables.column": `"id"`, "sharded_mappings.column": `"id"`, "sharded_mappings.shard": "0",
		"omnisharded_tables.tables": `["t"]`, "sharded_schemas.shard": "0",
	}
	leastOfChecks = map[string]string{"checks.table": `"t"`, "checks.aggregates": `["count"]`}
)

// fileWith is the least file with one key set, or with an empty value left out.
func fileWith(path, value string) []byte {
	keys := maps.Clone(least)
	if strings.HasPrefix(path, "checks.") {
		maps.Copy(keys, leastOfChecks)
	}
	keys[path] = value
	var b strings.Builder
	for _, head := range fileHeads {
		fmt.Fprintln(&b, head)
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			section, name := key[:strings.LastIndexByte(key, '.')], key[strings.LastIndexByte(key, '.')+1:]
			if section == strings.Trim(head, "[]") && keys[key] != "" {
				fmt.Fprintf(&b, "%s = %s\n", name, keys[key])
			}
		}
	}
	text := b.String()
	if !strings.HasPrefix(path, "checks.") {
		text = strings.TrimSuffix(text, "[[checks]]\n")
	}
	return []byte(text)
}

// decoded is a file as it is read, before what follows from other keys is filled in.
func decoded(t *testing.T, text []byte) *Config {
	t.Helper()
	c, problems := decode(text)
	if len(problems) > 0 {
		t.Fatalf("%v\n%s", problems, text)
	}
	return c
}

// at is the value of a key, in a list of sections that of the first.
func at(c *Config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Slice {
			v = v.Index(0)
		}
		for f, value := range v.Fields() {
			if f.Tag.Get("toml") == name {
				v = value
				break
			}
		}
	}
	return v
}

// complaints is what the program says of a file, the numbers of list entries left out.
func complaints(text []byte) string {
	if _, err := parseConfig("x", text); err != nil {
		return strings.ReplaceAll(err.Error(), "[0]", "")
	}
	return ""
}

// typeWords is how the page names a Go type, and a value of it that is no default.
func typeWords(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[address]():
		return "address"
	case reflect.TypeFor[[]address]():
		return "list of addresses"
	case reflect.TypeFor[byteSize]():
		return "size"
	case reflect.TypeFor[duration]():
		return "duration"
	case reflect.TypeFor[[]string]():
		return "list of strings"
	case reflect.TypeFor[[]any]():
		return "list of values"
	case reflect.TypeFor[any]():
		return "value"
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Int:
		return "number"
	case reflect.Bool:
		return "true or false"
	default:
		return "?" + t.String()
	}
}

// derived are defaults that are worked out where the key is used.
func derived() map[string]string {
	const placed = "sharded_tables."
	weights := (&Config{}).spec(clusterSection{Shards: []shardSection{{Weight: 7}, {}}}).Weights
	weight := fmt.Sprint(weights[1])
	return map[string]string{
		"source.shards.weight": weight, "destination.shards.weight": weight, placed + "slots": fmt.Sprint(layout.DefaultSlots),
		placed + "hasher": fmt.Sprintf("%q", layout.HasherPostgres), placed + "lookup_result": fmt.Sprintf("%q", layout.ResultValue),
		placed + "on_missing": fmt.Sprintf("%q", layout.MissingStop), placed + "placement": fmt.Sprintf("%q", layout.PlacementModulo),
	}
}

func TestThePageOfTheConfigurationIsTheProgramsOwn(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	told, known := readSettings(t, string(text)), map[string]reflect.Type{}
	settingTypes(reflect.TypeFor[Config](), "", known)
	for path := range told {
		if known[path] == nil {
			t.Errorf("the page tells of %s, which there is not", path)
		}
	}
	for path, of := range known {
		s, ok := told[path]
		if !ok {
			t.Errorf("the page does not tell of %s", path)
			continue
		}
		t.Run(path, func(t *testing.T) { s.compare(t, path, of) })
	}
	example := regexp.MustCompile("(?s)```toml\n(.*?)```").FindSubmatch(text)
	if _, err := parseConfig("example", example[1]); err != nil {
		t.Errorf("the page's example: %v", err)
	}
}

func (s setting) compare(t *testing.T, path string, of reflect.Type) {
	kind := typeWords(of)
	refused := regexp.MustCompile(regexp.QuoteMeta(path) + `: "no such word" is not a (?:choice|kind) \(hint: (.*)\)`)
	if m := refused.FindStringSubmatch(complaints(fileWith(path, `"no such word"`))); kind == "string" && m != nil {
		kind = "`\"" + strings.Join(strings.Split(m[1], ", "), "\"`, `\"") + "\"`"
	}
	if s.kind != kind {
		t.Errorf("is of type %s, the page says %s", kind, s.kind)
	}

	byDefault, isCode := strings.Trim(s.byDefault, "`"), strings.HasPrefix(s.byDefault, "`")
	unset := decoded(t, fileWith(path, ""))
	switch want, worked := derived()[path]; {
	case worked:
		if byDefault != want {
			t.Errorf("the default is %s, the page says %s", want, s.byDefault)
		}
	case s.byDefault == "required":
		if said := complaints(fileWith(path, "")); !strings.Contains(said, path+": ") {
			t.Errorf("the page calls it required, without it the program says %q", said)
		}
	case isCode:
		if set := decoded(t, fileWith(path, byDefault)); !reflect.DeepEqual(at(set, path).Interface(), at(unset, path).Interface()) {
			t.Errorf("the default is %v, the page says %s", at(unset, path), s.byDefault)
		}
	default:
		if !at(unset, path).IsZero() {
			t.Errorf("the default is %v, the page says %s", at(unset, path), s.byDefault)
		}
	}
}

// Every variable that the program reads has its row.
func TestThePageOfTheConfigurationNamesTheEnvironment(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	variable := regexp.MustCompile(`(?:env\(|= )"((?:PGRESHARD_|GO)[A-Z_]+)"`)
	seen := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range variable.FindAllStringSubmatch(string(text), -1) {
			seen++
			if !strings.Contains(string(page), "`"+m[1]+"`") {
				t.Errorf("%s reads %s, the page does not name it", file, m[1])
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d variables were found", seen)
	}
}

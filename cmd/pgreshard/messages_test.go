package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const runbook = "../../docs/operations.md"

// unseen are errors that no operator meets as such, and why.
var unseen = map[string]string{
	"layout.Problems":           "plan's problems: the table under Before",
	"move.PlanError":            "likewise",
	"main.configError":          "names key, line and what is right",
	"main.exitError":            "wraps others",
	"main.stopped":              "the operator's own signal",
	"move.stepError":            "wraps others",
	"pg.openError":              "wraps others",
	"fanout.behindError":        "check prints it as the reason behind",
	"sink.carefulError":         "wraps others",
	"sink.ErrReread":            "the worker reads again",
	"sink.ErrRemapped":          "the worker moves the rows",
	"sink.ErrEnded":             "another error is why the run ended",
	"checkpoints.ErrNotServing": "the worker reads what was decided",
	"jetstream.ErrDisturbed":    "the worker asks the stream where it is",
	"jetstream.ErrReached":      "the next layout's changes follow",
	"move.lostError":            "wraps others: why publishing begins anew",
	"replicator.AheadError":     "goes on after the text of ErrConfirmedAhead",
}

// wordless are errors without three words of their own, and how the table has them.
var wordless = map[string]string{
	"move.HookError":         "`hook before_freeze: …`",
	"move.ToolError":         "`pg_dump: …`, `pg_restore: …",
	"move.PublicationError":  "`publication pgreshard_… of source … was changed: …`",
	"replicator.DecodeError": "`replication message … at …, byte …`",
	"sink.SchemaError":       "`column \"…\" is on the source and not on the destination`",
	"verify.Failure":         "`verify: source 0: …`",
}

// theirs are messages of PostgreSQL and Go.
var theirs = []string{"permission denied for schema public", "must be member of role", "No space left on device", "context deadline exceeded"}

// theProgram parses what is not test, demo or rig.
func theProgram(t *testing.T) (files []*ast.File) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "pgtest" || name == "testdata" || name != ".." && len(name) > 2 && name[0] == '.'):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		files = append(files, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// texts are the string literals below a node, what is before a hint and the hint apart.
func texts(n ast.Node) (out []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text, err := strconv.Unquote(lit.Value)
			if err == nil {
				out = append(out, strings.Split(text, "; hint: ")...)
			}
		}
		return true
	})
	return out
}

// sentinels are the errors the program has a name or a type for, with the texts they are made of.
func sentinels(files []*ast.File) map[string][]string {
	found := map[string][]string{}
	for _, f := range files {
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.VAR && len(v.Values) == 1 && strings.HasPrefix(v.Names[0].Name, "Err") {
						found[f.Name.Name+"."+v.Names[0].Name] = texts(v.Values[0])
					}
				}
			case *ast.FuncDecl:
				if d.Name.Name != "Error" || d.Recv == nil {
					continue
				}
				of := d.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				found[f.Name.Name+"."+of.(*ast.Ident).Name] = texts(d.Body)
			}
		}
	}
	return found
}

var (
	gap       = regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]|…|[0-9]+|\b(?:source|destination)(?: shard)?\b|step [a-z]+|hint: `)
	quoted    = regexp.MustCompile("`([^`]+)`")
	tableHead = "| message | meaning | what to do |"
)

// pieces are the parts of a message that are always the same, of three words at least.
func pieces(message string) (out []string) {
	for _, piece := range gap.Split(message, -1) {
		piece = strings.Trim(piece, " :;,.()\"`")
		if strings.Count(piece, " ") >= 2 {
			out = append(out, piece)
		}
	}
	return out
}

func has(list []string, piece string) bool {
	return slices.ContainsFunc(list, func(p string) bool { return strings.Contains(p, piece) || strings.Contains(piece, p) })
}

// The runbook's table of messages has every error the program has a name for, and no message that the program does not have.
func TestTheRunbookHasTheProgramsMessages(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(runbook)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	_, table, ok := strings.Cut(string(page), tableHead)
	if !ok {
		t.Fatal("the table is not there")
	}
	for line := range strings.Lines(table) {
		if line == "\n" && len(told) > 0 {
			break
		}
		cells := strings.Split(line, " | ")
		for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
			told = append(told, pieces(m[1])...)
		}
	}
	for name, message := range wordless {
		if !strings.Contains(table, message) {
			t.Errorf("%s: %s is not in the table", name, message)
		}
	}
	files := theProgram(t)
	known := sentinels(files)
	for _, name := range slices.Sorted(maps.Keys(known)) {
		var parts []string
		for _, text := range known[name] {
			parts = append(parts, pieces(text)...)
		}
		if _, is := wordless[name]; is {
			continue
		}
		covered := slices.ContainsFunc(parts, func(p string) bool { return has(told, p) })
		if _, is := unseen[name]; is == covered {
			t.Errorf("%s: in the table: %t, among those nobody sees: %t: %q", name, covered, is, known[name])
		}
	}
	for name := range unseen {
		if _, is := known[name]; !is {
			t.Errorf("there is no %s", name)
		}
	}
	var all []string
	for _, f := range files {
		for _, text := range texts(f) {
			all = append(all, pieces(text)...)
		}
	}
	for _, piece := range told {
		if !has(all, piece) && !slices.Contains(theirs, piece) {
			t.Errorf("no message of the program has %q", piece)
		}
	}
}

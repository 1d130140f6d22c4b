package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// floors is the table of docs/design.md: a package imports only packages of a floor below its own. What is not listed
// here does not exist.
var floors = map[string]int{
	"pg":     1,
	"layout": 2, "lookup": 2, "checkpoints": 2,
	"copier": 3, "replicator": 3, "sink": 3, "sink/jetstream": 3, "verify": 3, "verify/fanout": 3, "survey": 3, "forecast": 3, "notice": 3,
	"move":   4,
	"status": 5, "cmd/pgreshard": 5,
}

// arrows are allowed although they do not lead down a floor.
var arrows = map[string]string{
	"cmd/pgreshard": "status",         // wiring
	"sink":          "sink/jetstream", // a part of it
	"verify":        "verify/fanout",  // likewise
}

// aside stands beside the floors: tests, the demo and the benchmarks use it, and it knows pg only.
const aside = "pgtest"

// folders are the top-level folders that hold no package of the table.
var folders = []string{"cmd", "deploy", "docs", "bin", aside}

const module = "pgreshard"

// goPackage is what go list says about one package.
type goPackage struct {
	ImportPath string
	Dir        string
	Doc        string
	GoFiles    []string
	Imports    []string
}

// name is the package's path within the module.
func (p goPackage) name() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// violations lists what is not as the table has it. byFile says which files of a package import a path.
func violations(packages []goPackage, topLevel []string, byFile func(p goPackage, path string) []string) []string {
	var found []string
	for _, p := range packages {
		if _, listed := floors[p.name()]; !listed && p.name() != aside && !strings.HasPrefix(p.name(), aside+"/") {
			found = append(found, fmt.Sprintf("package %s is not in the table", p.ImportPath))
		}
		if p.Doc == "" {
			found = append(found, fmt.Sprintf("package %s has no doc comment", p.ImportPath))
		}
		for _, path := range p.Imports {
			if to, ours := strings.CutPrefix(path, module+"/"); ours && !allowed(p, to, byFile) {
				found = append(found, fmt.Sprintf("%s imports %s", p.name(), to))
			}
		}
	}
	for _, folder := range topLevel {
		if !slices.Contains(folders, folder) && floors[folder] == 0 {
			found = append(found, fmt.Sprintf("folder %s is not in the table", folder))
		}
	}
	return found
}

func allowed(from goPackage, to string, byFile func(goPackage, string) []string) bool {
	name := from.name()
	inside := func(n string) bool { return n == aside || strings.HasPrefix(n, aside+"/") }
	switch {
	case inside(name):
		return inside(to) || to == "pg"
	case inside(to):
		return name == "cmd/pgreshard" && !slices.ContainsFunc(byFile(from, module+"/"+to), func(file string) bool {
			return !strings.HasPrefix(file, "demo") && !strings.HasPrefix(file, "bench")
		})
	case arrows[name] == to:
		return true
	}
	return floors[to] > 0 && floors[to] < floors[name]
}

// filesImporting reads which files of a package import a path.
func filesImporting(p goPackage, path string) []string {
	var files []string
	for _, file := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil || strings.Contains(string(text), `"`+path+`"`) {
			files = append(files, file)
		}
	}
	return files
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	packages := listPackages(t, root)
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var topLevel []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			topLevel = append(topLevel, e.Name())
		}
	}
	for _, v := range violations(packages, topLevel, filesImporting) {
		t.Error(v)
	}
}

func listPackages(t *testing.T, root string) []goPackage {
	t.Helper()
	var trouble strings.Builder
	list := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,Doc,GoFiles,Imports", "./...")
	list.Dir, list.Stderr = root, &trouble
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, trouble.String())
	}
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

func TestAnArrowThatIsNotInTheTableIsFound(t *testing.T) {
	t.Parallel()
	pkg := func(name string, imports ...string) goPackage {
		return goPackage{ImportPath: module + "/" + name, Doc: "Package x is.", Imports: imports}
	}
	undocumented := pkg("pg")
	undocumented.Doc = ""
	for name, test := range map[string]struct {
		pkg     goPackage
		folders []string
		files   []string // that import pgtest
		want    string
	}{
		"down a floor":                      {pkg: pkg("move", "pgreshard/sink", "pgreshard/pg", "context")},
		"the wiring":                        {pkg: pkg("cmd/pgreshard", "pgreshard/status", "pgreshard/move")},
		"up a floor":                        {pkg: pkg("pg", "pgreshard/layout"), want: "pg imports layout"},
		"along a floor":                     {pkg: pkg("copier", "pgreshard/sink"), want: "copier imports sink"},
		"along a floor to a part":           {pkg: pkg("verify", "pgreshard/sink/jetstream"), want: "verify imports sink/jetstream"},
		"status to the command":             {pkg: pkg("status", "pgreshard/cmd/pgreshard"), want: "status imports cmd/pgreshard"},
		"to what is not listed":             {pkg: pkg("move", "pgreshard/util"), want: "move imports util"},
		"a package that is not listed":      {pkg: pkg("util"), want: "package pgreshard/util is not in the table"},
		"a package at the root":             {pkg: goPackage{ImportPath: module, Doc: "x"}, want: "package pgreshard is not in the table"},
		"a package without a doc comment":   {pkg: undocumented, want: "package pgreshard/pg has no doc comment"},
		"a folder that is not listed":       {pkg: pkg("pg"), folders: []string{"pg", "deploy", "scripts"}, want: "folder scripts is not in the table"},
		"pgtest to pg":                      {pkg: pkg("pgtest", "pgreshard/pg")},
		"pgtest to another":                 {pkg: pkg("pgtest", "pgreshard/layout"), want: "pgtest imports layout"},
		"the product to pgtest":             {pkg: pkg("sink", "pgreshard/pgtest"), want: "sink imports pgtest"},
		"the demo to pgtest":                {pkg: pkg("cmd/pgreshard", "pgreshard/pgtest"), files: []string{"demo.go", "demo_writers.go"}},
		"another file of it to pgtest":      {pkg: pkg("cmd/pgreshard", "pgreshard/pgtest"), files: []string{"demo.go", "root.go"}, want: "cmd/pgreshard imports pgtest"},
		"a part of pgtest that is pgtest's": {pkg: pkg("pgtest/workload", "pgreshard/pgtest")},
	} {
		got := violations([]goPackage{test.pkg}, test.folders, func(goPackage, string) []string { return test.files })
		if strings.Join(got, "\n") != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

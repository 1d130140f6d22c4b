package pgtest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrNoServer says that no PostgreSQL server of the wanted version is on this machine.
var ErrNoServer = errors.New("no PostgreSQL server binaries found; hint: run deploy/setup.sh, or name their directory in PGRESHARD_PG_BIN (one) or PGRESHARD_PG_DIRS (several, colon separated)")

// installation is one set of server binaries.
type installation struct {
	Major int
	Bin   string // directory that holds postgres and initdb
}

// usualPlaces are where distributions put server binaries, which they keep out of PATH.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin",
}

// Versions lists the major versions whose servers are on this machine, oldest first.
func Versions() []int {
	var majors []int
	for _, in := range installations() {
		majors = append(majors, in.Major)
	}
	slices.Sort(majors)
	return slices.Compact(majors)
}

// findInstallation picks the server of one major version; 0 means the one PGRESHARD_TEST_SOURCE or PGRESHARD_PG_BIN
// names, else the newest.
func findInstallation(major int) (installation, error) {
	all := installations()
	if len(all) == 0 {
		return installation{}, ErrNoServer
	}
	if named, err := versionNamed("PGRESHARD_TEST_SOURCE"); err != nil {
		return installation{}, err
	} else if major == 0 {
		major = named
	}
	if major == 0 {
		if in, ok := inspect(os.Getenv("PGRESHARD_PG_BIN")); ok {
			return in, nil
		}
		return slices.MaxFunc(all, func(a, b installation) int { return cmp.Compare(a.Major, b.Major) }), nil
	}
	for _, in := range all {
		if in.Major == major {
			return in, nil
		}
	}
	return installation{}, fmt.Errorf("version %d: %w (found versions: %v)", major, ErrNoServer, Versions())
}

// versionNamed is the major version an environment variable asks for, 0 where it is empty.
func versionNamed(variable string) (int, error) {
	value := os.Getenv(variable)
	if value == "" {
		return 0, nil
	}
	major, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no major version of PostgreSQL", variable, value)
	}
	return major, nil
}

// program is where one of PostgreSQL's own programs is: beside the server, else, because a package of the server may
// leave client programs out and a newer one serves an older server, with the oldest version that has it and will do.
func (in installation) program(name string) string {
	beside := filepath.Join(in.Bin, name)
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	best := installation{}
	for _, other := range installations() {
		if _, err := os.Stat(filepath.Join(other.Bin, name)); err == nil && other.Major >= in.Major && (best.Major == 0 || other.Major < best.Major) {
			best = other
		}
	}
	if best.Major == 0 {
		return beside
	}
	return filepath.Join(best.Bin, name)
}

// installations lists every server found; of several with one version the one named most explicitly comes first.
func installations() []installation {
	var found []installation
	for _, dir := range candidates() {
		in, ok := inspect(dir)
		if ok && !slices.Contains(found, in) {
			found = append(found, in)
		}
	}
	return found
}

func candidates() []string {
	dirs := []string{os.Getenv("PGRESHARD_PG_BIN")}
	for _, dir := range filepath.SplitList(os.Getenv("PGRESHARD_PG_DIRS")) {
		dirs = append(dirs, filepath.Join(dir, "bin"), dir)
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range usualPlaces {
		matches, _ := filepath.Glob(pattern)
		dirs = append(dirs, matches...)
	}
	return dirs
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect says whether a directory holds a server, and of which version it is.
func inspect(dir string) (installation, bool) {
	if dir == "" {
		return installation{}, false
	}
	for _, tool := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(dir, tool)); err != nil {
			return installation{}, false
		}
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	match := versionPattern.FindSubmatch(out)
	if err != nil || match == nil {
		return installation{}, false
	}
	major, _ := strconv.Atoi(string(match[1]))
	return installation{Major: major, Bin: dir}, true
}

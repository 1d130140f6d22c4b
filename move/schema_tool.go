package move

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pgreshard/pg"
)

// tools are the two programs of PostgreSQL that carry a schema.
type tools struct{ dump, restore string }

// usualPlaces are where distributions put the programs of a version.
var usualPlaces = []string{
	"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/lib/postgresql*/bin", "/usr/libexec/postgresql*", "/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin", "/opt/homebrew/opt/libpq/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// findTools finds pg_dump and pg_restore of at least the major version given; of several the oldest that will do,
// because a newer one may write settings that an older server does not know.
func findTools(ctx context.Context, bin string, major int) (tools, error) {
	var found tools
	best, newest := 0, 0
	for _, dir := range toolDirs(bin) {
		t := tools{filepath.Join(dir, "pg_dump"), filepath.Join(dir, "pg_restore")}
		v := min(toolMajor(ctx, t.dump), toolMajor(ctx, t.restore))
		newest = max(newest, v)
		if v >= major && v > 0 && (best == 0 || v < best) {
			found, best = t, v
		}
	}
	switch {
	case best > 0:
		return found, nil
	case newest > 0:
		return tools{}, fmt.Errorf("pg_dump and pg_restore are of version %d and the newest server is %d; hint: install postgresql-client-%d, or name its directory in PGRESHARD_PG_BIN", newest, major, major)
	}
	return tools{}, fmt.Errorf("pg_dump and pg_restore are not found; hint: install postgresql-client-%d, or name their directory in PGRESHARD_PG_BIN", cmp.Or(major, 17))
}

// toolDirs lists where to look, first the best. A directory named by the operator is the only one.
func toolDirs(bin string) []string {
	if bin != "" {
		return []string{bin}
	}
	var dirs []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		// Debian's pg_wrapper picks a version by rules of its own; what it picks from is among the usual places.
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "pg_dump")); err == nil && filepath.Base(real) != "pg_wrapper" {
			dirs = append(dirs, dir)
		}
	}
	for _, place := range usualPlaces {
		match, _ := filepath.Glob(place)
		dirs = append(dirs, match...)
	}
	return dirs
}

// toolMajor is a program's major version, 0 where it cannot be run.
func toolMajor(ctx context.Context, path string) int {
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = toolEnv()
	out, err := cmd.Output()
	if err != nil {
		return 0
	}
	for field := range strings.FieldsSeq(string(out)) {
		var major int
		if n, _ := fmt.Sscanf(field, "%d", &major); n == 1 {
			return major
		}
	}
	return 0
}

// tool runs one of the programs against a shard.
type tool struct {
	path string
	dir  string // for the connection file
	app  string // application_name
}

const (
	stopWait    = 5 * time.Second // from asking a program to end to ending it
	keepOfError = 8 << 10         // bytes kept of what a program says
)

// run starts the program and waits for it. The server's address reaches it in a file of mode 0600 that is removed
// afterwards, never on its command line. When ctx ends the program is asked to end, which makes it cancel what it runs
// in the server; its children end with it, and on Linux it also ends with this process.
func (t tool) run(ctx context.Context, shard pg.Shard, args []string) error {
	url, err := shard.URL()
	if err != nil {
		return err
	}
	host, port, err := pg.FindLeader(ctx, shard, t.app)
	if err != nil {
		return err
	}
	service, env, err := writeService(t.dir, t.app, url, host, port)
	if err != nil {
		return err
	}
	defer os.Remove(service)

	said := &tail{limit: keepOfError}
	cmd := exec.CommandContext(ctx, t.path, append([]string{"--no-password", "--dbname=service=" + serviceName}, args...)...)
	cmd.Env = env
	cmd.Stderr = said
	cmd.SysProcAttr = childAttr()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopWait

	// A child that is to end with its parent ends with the thread that started it, so the thread must stay.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // workers it left behind, if any
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	return &ToolError{Program: filepath.Base(t.path), Said: said.String(), Err: err}
}

// ToolError is a program that failed; Said is the end of what it printed.
type ToolError struct {
	Program string
	Said    string
	Err     error
}

// Error shows what the program said.
func (e *ToolError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.Program, e.Err, cmp.Or(strings.TrimSpace(e.Said), "it said nothing"))
}

// Unwrap is how it exited.
func (e *ToolError) Unwrap() error { return e.Err }

// lost says that the program's connection broke. The words are libpq's own, which LC_ALL=C leaves untranslated.
func (e *ToolError) lost() bool {
	return slices.ContainsFunc([]string{"server closed the connection unexpectedly", "could not receive data from server", "could not send data to server",
		"no connection to the server"}, func(words string) bool { return strings.Contains(e.Said, words) })
}

// tail keeps the end of what is written to it.
type tail struct {
	limit int
	buf   bytes.Buffer
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if extra := t.buf.Len() - t.limit; extra > 0 {
		t.buf.Next(extra)
	}
	return len(p), nil
}

// String is what was kept, from the start of a line where something was dropped.
func (t *tail) String() string {
	s := strings.ToValidUTF8(t.buf.String(), "?")
	if t.buf.Len() < t.limit {
		return s
	}
	_, after, _ := strings.Cut(s, "\n")
	return "…\n" + after
}

// toolSettings outdo what a role or database may carry (ALTER ROLE … SET) that would end a program or change what a
// literal means. An archive is written with its session's standard_conforming_strings, and a script (runWritten) is
// parsed as a whole before it could set another.
const toolSettings = " -c default_transaction_read_only=off -c synchronous_commit=on -c idle_session_timeout=0" +
	" -c standard_conforming_strings=on -c array_nulls=on"

// writeService writes a service file that holds the whole connection string, and returns its path and the environment
// to go with it. Of several hosts it names the one that leads, if one is given. What the string leaves open libpq takes
// from the environment, as everywhere.
func writeService(dir, app, url, host string, port uint16) (path string, env []string, err error) {
	params, err := parseConninfo(url)
	if err != nil {
		return "", nil, err
	}
	if app != "" {
		params["application_name"] = app
	}
	if host != "" {
		params["host"], params["port"], params["target_session_attrs"] = host, strconv.Itoa(int(port)), "read-write"
		delete(params, "hostaddr")
	}
	params["options"] = strings.TrimSpace(params["options"] + toolSettings)
	env = toolEnv()
	// A service file's lines end with a newline and lose blanks before it; a password is never changed.
	if p := params["password"]; p != strings.TrimRight(p, " \t\r\f\v") || strings.Contains(p, "\n") {
		delete(params, "password")
		env = append(env, "PGPASSWORD="+p)
	}

	f, err := os.CreateTemp(dir, "connect-*.conf") // mode 0600
	if err != nil {
		return "", nil, err
	}
	_, err = f.WriteString(serviceFile(params))
	if err := errors.Join(err, f.Close()); err != nil {
		return "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), append(env, "PGSERVICEFILE="+f.Name()), nil
}

// toolEnv is what the programs are given of this one's environment: what the system, libpq and the libraries below it read. The
// rest may hold secrets that addresses are made of (${NAME}), and the worker's token.
func toolEnv() []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		switch {
		case slices.Contains([]string{"PGSERVICE", "PGSERVICEFILE", "PGOPTIONS", "PGAPPNAME", "LC_ALL"}, name), strings.HasPrefix(name, "PGRESHARD_"):
			return true
		case slices.Contains([]string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"}, name):
			return false
		}
		return !slices.ContainsFunc([]string{"PG", "LC_", "LD_", "DYLD_", "KRB5", "SSL_", "OPENSSL_", "GSS"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	return append(env, "LC_ALL=C")
}

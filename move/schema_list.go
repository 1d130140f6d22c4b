package move

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// entry is one line of an archive's table of contents. Its name may hold blanks and is for messages only: what the
// entry is, its class and OID in the source's catalog say.
type entry struct {
	id    int
	class uint32 // OID of the catalog that holds the object, 0 for what has no OID (comments, grants, attachments)
	oid   uint32
	text  string
	deps  []int // ids of entries it depends on

	phase Phase
	left  string // why no phase restores it; empty: one does
}

// listArchive asks pg_restore for the table of contents; only the verbose form tells dependencies.
func listArchive(ctx context.Context, pgRestore, archive string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, pgRestore, "--list", "--verbose", archive)
	cmd.Env = toolEnv()
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, err
	}
	return out, nil
}

var (
	entryLine = regexp.MustCompile(`^(\d+); (\d+) (\d+) (.*)$`)
	depsLine  = regexp.MustCompile(`^;\tdepends on:((?: \d+)+)$`)
)

// parseListing reads `pg_restore --list --verbose`: an entry a line, each followed by what it depends on.
func parseListing(listing []byte) ([]entry, error) {
	var out []entry
	for line := range strings.Lines(string(listing)) {
		line = strings.TrimSuffix(line, "\n")
		if m := entryLine.FindStringSubmatch(line); m != nil {
			id, errID := strconv.Atoi(m[1])
			class, errClass := strconv.ParseUint(m[2], 10, 32)
			oid, errOID := strconv.ParseUint(m[3], 10, 32)
			if err := errors.Join(errID, errClass, errOID); err != nil {
				return nil, fmt.Errorf("the archive's list has %q: %w", line, err)
			}
			out = append(out, entry{id: id, class: uint32(class), oid: uint32(oid), text: m[4]})
			continue
		}
		if m := depsLine.FindStringSubmatch(line); m != nil && len(out) > 0 {
			last := &out[len(out)-1]
			for id := range strings.FieldsSeq(m[1]) {
				n, err := strconv.Atoi(id)
				if err != nil {
					return nil, fmt.Errorf("the archive's list has %q: %w", line, err)
				}
				if n != last.id {
					last.deps = append(last.deps, n)
				}
			}
			continue
		}
		if line != "" && line[0] != ';' {
			return nil, fmt.Errorf("the archive's list has a line %q that is no entry", line)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the archive's list is empty")
	}
	return out, nil
}

// writeUseList writes the entries for --use-list and returns the file's path.
func writeUseList(dir string, use []entry) (string, error) {
	f, err := os.CreateTemp(dir, "use-*.list")
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	for _, e := range use {
		fmt.Fprintf(&b, "%d; %d %d %s\n", e.id, e.class, e.oid, e.text)
	}
	_, err = f.Write(b.Bytes())
	if err := errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

package pgtest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestAVersionIsChosenFromTheDirectoriesNamed(t *testing.T) {
	t.Setenv("PGRESHARD_TEST_SOURCE", "")
	newest, err := findInstallation(0)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "old")
	if err := os.MkdirAll(filepath.Join(own, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"postgres", "initdb"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) 14.3 (Debian 14.3-1)'\n"
		if err := os.WriteFile(filepath.Join(own, "bin", tool), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PGRESHARD_PG_BIN", "")
	t.Setenv("PGRESHARD_PG_DIRS", "/nonexistent:"+own)
	if !slices.Contains(Versions(), 14) || !slices.IsSorted(Versions()) {
		t.Errorf("versions %v", Versions())
	}
	if in, err := findInstallation(14); err != nil || in.Major != 14 {
		t.Errorf("version 14: %+v, %v", in, err)
	}
	if in, err := findInstallation(0); err != nil || in.Major < newest.Major {
		t.Errorf("newest: %+v, %v, want %d", in, err, newest.Major)
	}
	t.Setenv("PGRESHARD_PG_BIN", filepath.Join(own, "bin"))
	if in, err := findInstallation(0); err != nil || in.Bin != filepath.Join(own, "bin") {
		t.Errorf("PGRESHARD_PG_BIN: %+v, %v", in, err)
	}
	t.Setenv("PGRESHARD_PG_BIN", "")
	t.Setenv("PGRESHARD_TEST_SOURCE", "14")
	in, err := findInstallation(0)
	if err != nil || in.Major != 14 {
		t.Errorf("PGRESHARD_TEST_SOURCE: %+v, %v", in, err)
	}
	if dump := in.program("pg_dump"); dump == filepath.Join(own, "bin", "pg_dump") {
		t.Errorf("pg_dump, which version 14 has not, is looked for in %s", dump)
	}
	t.Setenv("PGRESHARD_TEST_SOURCE", "fourteen")
	if _, err := findInstallation(0); err == nil {
		t.Error("a version that is no number was taken")
	}
}

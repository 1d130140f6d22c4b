package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
)

// sweep removes the directories of keepers that were killed themselves, which only the end of a whole container or
// session does. A directory counts as left behind when the keeper that wrote its process id there, seen from this
// process's own namespace of ids, is gone and so is the server.
func sweep(base string) {
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	notes, _ := filepath.Glob(filepath.Join(base, "pgtest.??????", "keeper"))
	for _, note := range notes {
		dir := filepath.Dir(note)
		if left(note, namespace) && !lives(filepath.Join(dir, "data", "postmaster.pid")) {
			_ = os.RemoveAll(dir) // another process may sweep too
		}
	}
}

// left says that a keeper wrote its note in this namespace and has ended.
func left(note, namespace string) bool {
	text, err := os.ReadFile(note)
	if err != nil {
		return false
	}
	var pid int
	var its string
	if n, _ := fmt.Sscan(string(text), &pid, &its); n < 1 || pid <= 1 {
		return false
	}
	return its == namespace && gone(pid)
}

// lives says that the process named first in a file still runs.
func lives(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var pid int
	_, err = fmt.Sscan(string(text), &pid)
	return err != nil || !gone(pid)
}

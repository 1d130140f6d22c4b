package pgtest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// freeBytes is the room in the file system that holds a path, 0 where it cannot be told.
func freeBytes(path string) int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil {
		return 0
	}
	return int64(fs.Bavail) * fs.Bsize
}

// freeMemory is what the machine could still give without swapping.
func freeMemory() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		var kB int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kB); n == 1 {
			return kB << 10
		}
	}
	return 0
}

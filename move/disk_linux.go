package move

import "syscall"

// freeBytes is the room in the file system that holds a path, 0 where it cannot be told.
func freeBytes(path string) int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil {
		return 0
	}
	return int64(fs.Bavail) * fs.Bsize
}

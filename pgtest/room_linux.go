package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// roomScript mounts a file system of $1 bytes where only it and its children see it, so that it ends with them, and
// becomes the keeper as the user $2 of the group $3.
const roomScript = `mount -t tmpfs -o size="$1",mode=1777 pgtest /mnt && exec setpriv --reuid="$2" --regid="$3" --clear-groups /bin/sh -c "$4" pgtest-keeper /mnt`

// giveRoom makes the command of a keeper one that has a file system of its own.
func giveRoom(cmd *exec.Cmd, bytes int64) error {
	user := cmd.SysProcAttr.Credential
	if user == nil {
		return errors.New("a file system of its own needs root")
	}
	cmd.SysProcAttr.Credential, cmd.SysProcAttr.Unshareflags = nil, syscall.CLONE_NEWNS
	id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	cmd.Args = []string{cmd.Path, "-c", roomScript, "pgtest-room", strconv.FormatInt(bytes, 10), id(user.Uid), id(user.Gid), keeperScript}
	return nil
}

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

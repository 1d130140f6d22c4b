package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// keeperScript owns one directory and at most one server in it. It runs the shell lines it reads and answers each with
// its exit status and the server's process id. When its input ends, which also happens when the process holding the
// other end is killed, it stops the server at once and removes the directory, and the few bytes of shared memory by
// which a server killed before would have recognised its predecessor.
//
// Signals are ignored because Ctrl-C and a closed terminal are meant for the test process, whose end comes as the end
// of the input.
const keeperScript = `trap '' PIPE HUP INT TERM
dir=$(mktemp -d "$1/pgtest.XXXXXX") || exit 1
exec 4>>"$dir/log"
echo "$$ $(readlink /proc/self/ns/pid 2>/dev/null)" >"$dir/keeper"
pid=
echo "$dir"
while IFS= read -r line; do
	eval "$line" </dev/null >&4 2>&4
	echo "$? $pid"
done
if [ -n "$pid" ]; then
	kill -QUIT "$pid"
	kill -CONT "$pid"
	wait "$pid"
elif [ -f "$dir/data/postmaster.pid" ]; then
	set -- $(sed -n 7p "$dir/data/postmaster.pid")
	ipcrm -m "$2"
fi 2>/dev/null
cd /
rm -rf "$dir"
`

// keeper is the shell that owns a cluster's directory; see keeperScript.
type keeper struct {
	Dir string
	cmd *exec.Cmd
	own bool // Dir is on a file system that only the keeper and its children see; see roomScript

	mu    sync.Mutex
	input io.WriteCloser
	reply *bufio.Reader
}

// keepers holds every open keeper reachable: the garbage collector closes a forgotten pipe, and that would end a cluster
// of which somebody has kept only the URL.
var keepers sync.Map

// newKeeper starts a shell with a new directory under base, or on a file system of its own where room (bytes) is not 0.
func newKeeper(base string, room int64) (*keeper, error) {
	cmd := exec.Command("/bin/sh", "-c", keeperScript, "pgtest-keeper", base)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		credential, err := unprivileged()
		if err != nil {
			return nil, err
		}
		cmd.SysProcAttr.Credential = credential
	}
	if room != 0 {
		if err := giveRoom(cmd, room); err != nil {
			return nil, err
		}
	}
	cmd.Dir = "/"
	cmd.Env = serverEnvironment()
	input, err := cmd.StdinPipe() // close-on-exec: no child of ours keeps it open
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the shell that keeps a cluster: %w", err)
	}
	k := &keeper{cmd: cmd, own: room != 0, input: input, reply: bufio.NewReader(output)}
	keepers.Store(k, nil)
	line, err := k.reply.ReadString('\n')
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("make a directory under %s: %w", base, err)
	}
	k.Dir = strings.TrimSuffix(line, "\n")
	return k, nil
}

// serverEnvironment is ours without what would redirect a client tool or translate a server's messages.
func serverEnvironment() []string {
	env := []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	for _, name := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// unprivileged is the user servers run as when we are root, whom PostgreSQL refuses.
func unprivileged() (*syscall.Credential, error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: os.Getuid() != 0}, nil
		}
	}
	return nil, fmt.Errorf("PostgreSQL does not run as root and there is no user postgres or nobody")
}

// Do runs one line of shell as the server's user and waits for it; its output goes to the log.
func (k *keeper) Do(ctx context.Context, line string) (pid int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := io.WriteString(k.input, line+"\n"); err != nil {
		return 0, fmt.Errorf("the cluster's shell is gone: %w", err)
	}
	answer, err := k.reply.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("the cluster's shell is gone: %w", err)
	}
	status, pidText, _ := strings.Cut(strings.TrimSpace(answer), " ")
	pid, _ = strconv.Atoi(pidText)
	if status != "0" {
		return pid, fmt.Errorf("exit status %s:\n%s", status, k.LogTail())
	}
	return pid, ctx.Err()
}

// path is where this process finds a file the keeper names.
func (k *keeper) path(name string) string {
	if k.own {
		return filepath.Join("/proc", strconv.Itoa(k.cmd.Process.Pid), "root", name)
	}
	return name
}

// LogTail is the end of what the server and its tools printed.
func (k *keeper) LogTail() string {
	const most = 3000
	f, err := os.Open(k.path(filepath.Join(k.Dir, "log")))
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	tail, _ := io.ReadAll(f)
	return string(tail)
}

// Close stops the server, removes the directory and waits until both are done.
func (k *keeper) Close() {
	_ = k.input.Close()
	_ = k.cmd.Wait()
	keepers.Delete(k)
}

// quote makes words safe inside a shell line.
func quote(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

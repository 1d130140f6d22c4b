package pgtest

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// awaitSent waits until the peer's kernel has all bytes written, because a reset throws away what has not left yet.
func awaitSent(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		unsent := 0
		err := raw.Control(func(fd uintptr) { unsent, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || unsent == 0 {
			return
		}
	}
}

package move

import "syscall"

// childAttr puts a program in a process group of its own, so that a signal from the terminal does not reach it and
// its children can be ended together, and has the kernel end it when this process is killed.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

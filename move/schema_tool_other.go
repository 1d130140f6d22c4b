//go:build !linux

package move

import "syscall"

// childAttr puts a program in a process group of its own, so that a signal from the terminal does not reach it and
// its children can be ended together.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

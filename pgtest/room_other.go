//go:build !linux

package pgtest

import (
	"errors"
	"os/exec"
)

func freeBytes(string) int64 { return 0 }

func freeMemory() int64 { return 0 }

func giveRoom(*exec.Cmd, int64) error { return errors.New("a file system of its own needs Linux") }

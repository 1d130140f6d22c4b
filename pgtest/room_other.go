//go:build !linux

package pgtest

func freeBytes(string) int64 { return 0 }

func freeMemory() int64 { return 0 }

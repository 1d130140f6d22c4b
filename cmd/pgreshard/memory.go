package main

import (
	"os"
	"runtime/debug"
)

const (
	streamMemory = 16 << 20 // what one source's stream holds that is not applied (package move)
	otherMemory  = 48 << 20 // everything else a worker holds, and garbage
	garbageShare = 200      // percent of what is held that may be garbage, below the limit
)

// limitMemory lets the garbage collector wait as long as memory is plenty, and makes it work harder before the worker
// grows beyond what its configuration needs: 160 MB for one source, four shards and the defaults. What is held is
// bounded by itself; this bounds the garbage beside it. GOMEMLIMIT and GOGC, where the operator set them, stand. It
// returns what undoes it.
func limitMemory(c *Config) (undo func()) {
	limit := debug.SetMemoryLimit(-1)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(workerMemory(c))
	}
	percent := debug.SetGCPercent(garbageShare)
	if os.Getenv("GOGC") != "" {
		debug.SetGCPercent(percent)
	}
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// workerMemory is how many bytes a worker may hold: translations, and for each source what was received and what is
// on its way to the shards, as values and as the statements made of them.
func workerMemory(c *Config) int64 {
	perSource := streamMemory + 2*int64(c.Stream.BatchBytes)*int64(len(c.Destination.Shards))
	return otherMemory + int64(c.General.LookupCacheSize) + int64(len(c.Source.Shards))*perSource
}

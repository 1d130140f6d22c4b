package pgtest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Seeds are n new ones at every run of a random test, or the one that an environment variable names, to replay it.
func Seeds(t testing.TB, variable string, n int) (out []uint64) {
	t.Helper()
	if s := os.Getenv(variable); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return []uint64{seed}
	}
	for range n {
		out = append(out, rand.Uint64())
	}
	return out
}

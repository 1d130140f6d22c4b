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

// EveryCase, set in the environment, runs every case of every test (`make test-all`).
const EveryCase = "PGRESHARD_TEST_ALL"

// OneIn lets about one in n of a test's cases run, others at each run, and all of them where EveryCase is set.
func OneIn(t testing.TB, n int) {
	t.Helper()
	if os.Getenv(EveryCase) == "" && rand.IntN(n) != 0 {
		t.Skip("not drawn this time; " + EveryCase + "=1 runs every case")
	}
}

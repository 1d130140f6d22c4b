package pgtest

import (
	"context"
	"sync"
	"testing"
)

// shared is the one cluster of this test process. It is a package variable because the tests that use it have nothing
// else in common; it ends with the process.
var shared struct {
	once    sync.Once
	cluster *Cluster
	err     error
}

// Shared is one cluster for every test of the process that neither stops it nor changes its settings. Each test takes
// its own databases there.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.once.Do(func() { shared.cluster, shared.err = New(context.Background(), Options{}) })
	if shared.err != nil {
		t.Fatalf("start the shared cluster: %v", shared.err)
	}
	return shared.cluster
}

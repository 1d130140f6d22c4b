package pgtest

import (
	"context"
	"sync"
	"testing"
)

// shared and destination are this test process's clusters. They are package variables because the tests that use them
// have nothing else in common; they end with the process.
var shared, destination struct {
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

// SharedDestination is the cluster for the destinations of moves: Shared, unless PGRESHARD_TEST_DEST names another major
// version than it has.
func SharedDestination(t testing.TB) *Cluster {
	t.Helper()
	source := Shared(t)
	destination.once.Do(func() {
		var major int
		if major, destination.err = versionNamed("PGRESHARD_TEST_DEST"); destination.err != nil || major == 0 || major == source.Version {
			destination.cluster = source
			return
		}
		destination.cluster, destination.err = New(context.Background(), Options{Version: major})
	})
	if destination.err != nil {
		t.Fatalf("start the shared cluster for destinations: %v", destination.err)
	}
	return destination.cluster
}

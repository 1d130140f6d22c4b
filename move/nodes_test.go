package move_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// statusPatience is for one that never is: the suite goes on without it.
const statusPatience = 3 * time.Minute

// awaitStatus asks until a status is as wanted.
func awaitStatus(t *testing.T, what string, ask func() move.Status, ok func(move.Status) bool) move.Status {
	t.Helper()
	for end := time.Now().Add(statusPatience); ; {
		s := ask()
		if ok(s) {
			return s
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("never %s: %+v", what, s)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("not %s for %s: %+v", what, statusPatience, s)
		}
	}
}

// A move of which one shard, then the source, then the home goes away and comes back: who does not answer is named by
// the worker and by whoever asks the bookkeeping, and what is known is told all the same.
func TestANodeThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	clusters := []*pgtest.Cluster{pgtest.Start(t, pgtest.Options{}), pgtest.Start(t, pgtest.Options{}), pgtest.Start(t, pgtest.Options{})}
	source, home, second := clusters[0].Database(t), clusters[1].Database(t), clusters[2].Database(t)
	source.Exec(t, `create table items (id bigint primary key, note text); insert into items select g, 'x' from generate_series(1, 500) g`)
	s := smallMoveOf(t, source, []*pgtest.DB{home, second}, "id")
	held, release := make(chan struct{}), make(chan struct{})
	worker, ended := s.move(), make(chan error, 1)
	go func() {
		ended <- worker.Migrate(t.Context(), move.MigrateOptions{Ready: func(context.Context) (bool, error) {
			close(held)
			<-release
			return true, nil
		}})
	}()
	select {
	case <-held:
	case err := <-ended:
		t.Fatal(err)
	}
	safe := func(s move.Status) bool { return s.SafeToCutOver.OK && len(s.Waiting) == 0 }
	awaitStatus(t, "safe", worker.Snapshot, safe)
	next := 500
	got := awaitStatus(t, "measured", worker.Snapshot, func(s move.Status) bool {
		next++
		source.Exec(t, `insert into items values ($1, 'y')`, next)
		return len(s.Streams) == 1 && s.Streams[0].RowsPerSecond != nil && *s.Streams[0].RowsPerSecond > 0 && s.Streams[0].Retained != nil
	})
	if kept := *got.Streams[0].Retained; kept < 0 || kept > 64<<20 {
		t.Errorf("the slot keeps %d bytes", kept)
	}
	if got.Streams[0].SafeWAL != nil {
		t.Error("the server bounds no slot and is said to")
	}

	ask := func() (move.Status, error) {
		observer := s.move()
		defer observer.Close()
		return observer.Status(t.Context())
	}
	for _, c := range []struct {
		name    string
		cluster *pgtest.Cluster
		home    bool
	}{
		{"destination shard 1", clusters[2], false}, {"source shard 0", clusters[0], false}, {"destination shard 0", clusters[1], true},
	} {
		named := func(s move.Status) bool {
			return len(s.Waiting) == 1 && strings.HasPrefix(s.Waiting[0], fmt.Sprintf("%s at %s does not answer: ", c.name, c.cluster.Addr()))
		}
		if err := c.cluster.Stop("immediate"); err != nil {
			t.Fatal(err)
		}
		got := awaitStatus(t, c.name+" named", worker.Snapshot, named)
		if got.State != "streaming" || got.SafeToCutOver.OK || !slices.Contains(got.SafeToCutOver.Because, got.Waiting[0]) || got.Error != nil {
			t.Errorf("%s is down: the worker says %+v", c.name, got)
		}
		if c.cluster == clusters[2] { // what is written from now on is not on every shard, and is told to be lacking
			lag := func(s move.Status) int64 {
				if len(s.Streams) == 0 || s.Streams[0].LagBytes == nil {
					return 0
				}
				return *s.Streams[0].LagBytes
			}
			was := lag(got)
			source.Exec(t, `insert into items select g, repeat('x', 1000) from generate_series(10000, 10099) g`)
			awaitStatus(t, "behind", worker.Snapshot, func(s move.Status) bool { return lag(s) > was+100_000 })
		}
		got, err := ask()
		if !named(got) || got.SafeToCutOver.OK || strings.Contains(got.Waiting[0], "postgres") {
			t.Errorf("%s is down: the bookkeeping says %+v", c.name, got)
		}
		switch known := got.State == "streaming" && got.Layout.Serving == 1 && len(got.Streams) == 1; {
		case c.home && (err == nil || !strings.Contains(err.Error(), "hint: ") || got.State != "" || got.Layout.Serving != 0):
			t.Errorf("the home is down: %v, %+v", err, got)
		case !c.home && (err != nil || !known || got.Streams[0].LagBytes != nil):
			t.Errorf("%s is down: %v, %+v", c.name, err, got)
		case c.name == "destination shard 1" && got.Streams[0].Retained == nil, c.name == "source shard 0" && got.Streams[0].Applied == "":
			t.Errorf("%s is down: what the others know is not told: %+v", c.name, got.Streams[0])
		}
		if err := c.cluster.Start(); err != nil {
			t.Fatal(err)
		}
		awaitStatus(t, "well again", worker.Snapshot, safe)
	}
	if got, err := ask(); err != nil || got.State != "streaming" || len(got.Waiting) > 0 || got.Streams[0].LagBytes == nil || got.Streams[0].Retained == nil {
		t.Errorf("all is up: %v, %+v", err, got)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	s.same("items", "id")
	s.onItsShard("items", "id", "bigint")
}

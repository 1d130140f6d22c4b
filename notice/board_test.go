package notice

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"pgreshard/layout"
)

func serve(t *testing.T, address string) *Server {
	t.Helper()
	s, err := Serve(t.TempDir(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, address string, inside *Server) *Board {
	t.Helper()
	b, err := Open(address, inside, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// says is what the board says of a database.
func (b *Board) says(t *testing.T, database string) layout.Record {
	t.Helper()
	bucket, err := b.bucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	entry, err := bucket.Get(t.Context(), key(database))
	if err != nil {
		t.Fatal(err)
	}
	var record layout.Record
	if err := json.Unmarshal(entry.Value(), &record); err != nil {
		t.Fatal(err)
	}
	return record
}

// A worker has read the layout and is slow to tell; another tells a newer one meanwhile, where nothing stood before and where
// something did. What the first has read must not take its place.
func TestAWorkerThatIsSlowDoesNotTakeANewerLayoutBack(t *testing.T) {
	s := serve(t, "")
	slow, other := open(t, "", s), open(t, "", s)
	for round := range 2 {
		truth := 2*round + 1
		read := func(context.Context) (layout.Record, error) { return layout.Record{Version: truth}, nil }
		reads := 0
		err := slow.Agree(t.Context(), "app", func(ctx context.Context) (layout.Record, error) {
			record, err := read(ctx)
			if reads++; reads == 1 {
				truth++
				err = other.Agree(ctx, "app", read)
			}
			return record, err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := other.says(t, "app"); got.Version != truth || reads != 2 {
			t.Errorf("round %d: the board says layout %d after %d readings, the truth is %d", round, got.Version, reads, truth)
		}
	}
}

func TestWhatCannotBeReadIsNotTold(t *testing.T) {
	s := serve(t, "")
	b, failed := open(t, "", s), errors.New("the home is down")
	version := func(n int, err error) func(context.Context) (layout.Record, error) {
		return func(context.Context) (layout.Record, error) { return layout.Record{Version: n}, err }
	}
	if err := b.Agree(t.Context(), "a b.c", version(1, nil)); err != nil {
		t.Fatal(err)
	}
	if err := b.Agree(t.Context(), "a b.c", version(0, failed)); !errors.Is(err, failed) {
		t.Errorf("it ended with %v", err)
	}
	if got := b.says(t, "a b.c"); got.Version != 1 {
		t.Errorf("the board says %d", got.Version)
	}
}

func TestKeysHaveTheLettersTheyMay(t *testing.T) {
	for database, want := range map[string]string{"app": "app", "App_2-x": "App_2-x", "a b.c": "a=20b=2Ec", "ü=": "=C3=BC=3D"} {
		if got := key(database); got != want {
			t.Errorf("%q: %q, want %q", database, got, want)
		}
	}
}

// A watcher sees each layout that comes to serve, also what came while the server was away, and a rollback; it begins before
// anything is there.
func TestAWatcherSeesEveryLayoutThatComesToServe(t *testing.T) {
	dir := t.TempDir()
	s, err := Serve(dir, "nats://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := s.Address()
	watching, telling := open(t, address, nil), open(t, address, nil)
	seen := make(chan int, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- watching.Watch(ctx, "app", nil, func(r layout.Record) { seen <- r.Version })
	}()
	began := time.Now()
	tell := func(version int, at time.Duration) {
		t.Helper()
		since := began.Add(at)
		record := layout.Record{Version: version, Database: "app", ServingSince: &since}
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := telling.Agree(t.Context(), "app", func(context.Context) (layout.Record, error) { return record, nil })
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	sees := func(version int) {
		t.Helper()
		select {
		case got := <-seen:
			if got != version {
				t.Fatalf("it sees layout %d, want %d", got, version)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("it does not see layout %d", version)
		}
	}
	tell(1, 0)
	sees(1)
	tell(2, time.Second)
	sees(2)
	s.Close()
	if s, err = Serve(dir, address); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	tell(1, 2*time.Second)
	sees(1)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if len(seen) != 0 {
		t.Errorf("it saw layout %d again", <-seen)
	}
}

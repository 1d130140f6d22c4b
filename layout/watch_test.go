package layout_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgreshard/layout"
)

// worker answers /layout as a worker does, with a shorter wait, and fails when it is told to.
type worker struct {
	mu      sync.Mutex
	serving int
	fails   bool
}

func (w *worker) set(serving int, fails bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving, w.fails = serving, fails
}

func (w *worker) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil || r.Header.Get("Authorization") != "Bearer t" {
		out.WriteHeader(http.StatusUnauthorized)
		return
	}
	for end := time.Now().Add(50 * time.Millisecond); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		serving, fails := w.serving, w.fails
		w.mu.Unlock()
		switch {
		case fails:
			out.WriteHeader(http.StatusServiceUnavailable)
		case serving != after || time.Now().After(end):
			_, _ = out.Write([]byte(`{"version":` + strconv.Itoa(serving) + `,"database":"d","shards":[{"shard":0,"node":"h:1"}]}`))
		default:
			continue
		}
		return
	}
}

func TestAnApplicationIsToldOfEachLayoutOnce(t *testing.T) {
	t.Parallel()
	w := &worker{serving: 1}
	server := httptest.NewServer(w)
	defer server.Close()
	ctx, stop := context.WithCancel(t.Context())
	told, trouble, ended := make(chan layout.Record, 10), make(chan error, 100), make(chan error, 1)
	go func() {
		ended <- layout.Watch(ctx, layout.Watched{URL: server.URL + "/", Token: "t", Trouble: func(err error) { trouble <- err }}, func(r layout.Record) { told <- r })
	}()
	if r := <-told; r.Version != 1 || len(r.Shards) != 1 || r.Shards[0].Node != "h:1" {
		t.Errorf("first %+v", r)
	}
	w.set(1, true)
	if err := <-trouble; err == nil {
		t.Error("no trouble")
	}
	w.set(0, false) // one that has only just started and does not know
	time.Sleep(120 * time.Millisecond)
	w.set(2, false)
	if r := <-told; r.Version != 2 {
		t.Errorf("then %+v", r)
	}
	w.set(1, false) // rolled back
	if r := <-told; r.Version != 1 {
		t.Errorf("after a rollback %+v", r)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if len(told) != 0 {
		t.Errorf("it was told of more: %+v", <-told)
	}
	if err := layout.Watch(t.Context(), layout.Watched{URL: "127.0.0.1:7432"}, nil); err == nil {
		t.Error("what is no URL is watched")
	}
}

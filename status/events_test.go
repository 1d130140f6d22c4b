package status

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgreshard/move"
)

// Each change of the status is sent once, nothing where there is none, and the asker is let go with the server, when it has the
// last.
func TestEventsComeWhereSomethingIsNew(t *testing.T) {
	t.Parallel()
	var rows atomic.Int64
	s := New(Config{Snapshot: func() move.Status {
		st := streaming()
		st.Shards[0].Rows.Inserted = rows.Load()
		return st
	}})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.Addr().String()+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Errorf("events are %s", kind)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for text := bufio.NewScanner(response.Body); text.Scan(); {
			if data, ok := strings.CutPrefix(text.Text(), "data: "); ok {
				lines <- data
			}
		}
	}()
	for want := range int64(3) {
		rows.Store(want)
		var st move.Status
		if err := json.Unmarshal([]byte(<-lines), &st); err != nil || st.Shards[0].Rows.Inserted != want {
			t.Fatalf("event %d: %+v, %v", want, st.Shards, err)
		}
	}
	select {
	case data := <-lines:
		t.Errorf("an event although nothing is new: %s", data)
	case <-time.After(3 * eventEvery):
	}
	rows.Store(7)
	stop()
	var last string
	for last = range lines {
	}
	if !strings.Contains(last, `"inserted":7`) {
		t.Errorf("the last that was said: %s", last)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWhatThePageShowsIsSentAsOneLine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(New(Config{Snapshot: streaming}))
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text := bufio.NewReader(response.Body)
	for line := ""; ; {
		if line, err = text.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var shown string
		if err := json.Unmarshal([]byte(data), &shown); err != nil || !strings.HasPrefix(shown, `<main id="live"`) || !strings.HasSuffix(shown, "</main>") || !strings.Contains(shown, "no &lt;mapping&gt;") {
			t.Errorf("%v: %s", err, data)
		}
		return
	}
}

func TestABrowserMayGiveTheTokenAsAPassword(t *testing.T) {
	t.Parallel()
	s := New(Config{Snapshot: streaming, Token: "secret"})
	basic := func(password string) string {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		r.SetBasicAuth("anybody", password)
		return r.Header.Get("Authorization")
	}
	if code, _, header := ask(t, s, "/"); code != http.StatusUnauthorized || len(header.Values("WWW-Authenticate")) != 2 {
		t.Errorf("without: %d %v", code, header)
	}
	if code, _, _ := ask(t, s, "/", "Authorization", basic("other")); code != http.StatusUnauthorized {
		t.Errorf("a wrong one: %d", code)
	}
	if code, _, _ := ask(t, s, "/", "Authorization", basic("secret")); code != http.StatusOK {
		t.Errorf("the right one: %d", code)
	}
}

package layout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Watched is where Watch asks.
type Watched struct {
	URL    string       // of a worker: http://127.0.0.1:7432
	Token  string       // where it listens beyond loopback; else empty
	Client *http.Client // nil: one that waits for an answer longer than a worker holds it back
	// Trouble, where not nil, is told of each question that was not answered; it is asked again.
	Trouble func(error)
}

const (
	watchWait   = 45 * time.Second // a worker answers after 30 s where there is nothing new
	watchAgain  = 500 * time.Millisecond
	maxWatched  = 16 << 20 // bytes of one answer
	watchBehind = "/layout?after="
)

// Watch calls fn with the layout that serves, and again whenever another one does, until ctx ends, which is its error. It
// is for applications in Go that follow a move; the worker is asked, and while none answers the layout known last goes on.
// A layout that served before the one reported last is not reported, unless a rollback has made it serve again.
//
// What a worker says is a copy: table pgreshard.serving on the first destination shard decides, and a write that is sent to
// a layout that does not serve is refused there with SQLSTATE 25006.
func Watch(ctx context.Context, w Watched, fn func(Record)) error {
	if _, err := url.Parse(w.URL); err != nil || !strings.Contains(w.URL, "://") {
		return fmt.Errorf("watch the layout at %q: it is no URL; hint: http://127.0.0.1:7432", w.URL)
	}
	client := w.Client
	if client == nil {
		client = &http.Client{Timeout: watchWait}
	}
	for known := (Record{}); ; {
		asked := time.Now()
		record, err := w.ask(ctx, client, known.Version)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && record.Follows(known):
			known = record
			fn(record)
			continue
		case err == nil && time.Since(asked) > watchAgain: // it has waited for another one already
			continue
		}
		if err != nil && w.Trouble != nil {
			w.Trouble(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchAgain):
		}
	}
}

// Follows says that a layout has come to serve after another one.
func (r Record) Follows(known Record) bool {
	if r.Version == known.Version || r.Version == 0 {
		return false
	}
	return r.ServingSince == nil || known.ServingSince == nil || r.ServingSince.After(*known.ServingSince)
}

// ask waits for another layout than known, for as long as the worker holds the answer back.
func (w Watched) ask(ctx context.Context, client *http.Client, known int) (record Record, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(w.URL, "/")+watchBehind+strconv.Itoa(known), nil)
	if err != nil {
		return record, err
	}
	if w.Token != "" {
		request.Header.Set("Authorization", "Bearer "+w.Token)
	}
	response, err := client.Do(request)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL
		}
		return record, fmt.Errorf("ask which layout serves: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return record, fmt.Errorf("ask which layout serves: the worker answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxWatched)).Decode(&record); err != nil {
		return record, fmt.Errorf("read which layout serves: %w", err)
	}
	return record, nil
}

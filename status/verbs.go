package status

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Verb does what a POST asks. body is the request's JSON, empty where there was none; answer becomes the reply's, with ok
// false as a 409. What a verb began goes on although the asker goes away.
type Verb func(ctx context.Context, body json.RawMessage) (answer any, ok bool)

const maxBody = 64 << 10 // bytes

// verb answers a POST, as long as it takes.
func (s *Server) verb(run Verb) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if foreign(r) {
			problem(w, http.StatusForbidden, "asked for by a page of another origin")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil || len(body) > 0 && !json.Valid(body) {
			problem(w, http.StatusBadRequest, "the request's body is not JSON")
			return
		}
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			problem(w, http.StatusInternalServerError, "the reply cannot be waited for")
			return
		}
		answer, ok := run(context.WithoutCancel(r.Context()), body)
		if !ok {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusConflict)
		}
		reply(w, answer)
	})
}

// foreign says that a browser sent the request for a page of another origin. Programs send neither header.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host
}

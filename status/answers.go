package status

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"pgreshard/move"
	"pgreshard/pg"
)

// health says that the process answers, nothing more: a worker that is waiting or that failed is not to be restarted
// by an orchestrator that cannot help.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok\n") }

// ready says that the move goes on by itself: it has begun, nothing stopped it, and it waits for no shard.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if st := s.config.Snapshot(); st.State == "" || st.Error != nil || len(st.Waiting) > 0 {
		text(w, http.StatusServiceUnavailable, "not ready\n")
		return
	}
	text(w, http.StatusOK, "ready\n")
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) { reply(w, s.config.Snapshot()) }

const (
	layoutWait  = 30 * time.Second
	layoutEvery = 100 * time.Millisecond
)

// layout answers with the serving layout. With after=N it first waits, up to layoutWait, for another version than N, a newer
// one or after a rollback the one before; the version in the answer says whether there was one.
func (s *Server) layout(w http.ResponseWriter, r *http.Request) {
	if after := r.URL.Query().Get("after"); after != "" {
		version, err := strconv.Atoi(after)
		if err != nil {
			problem(w, http.StatusBadRequest, "after is not a layout version")
			return
		}
		if !another(r, s.config.Snapshot, version) {
			return // the asker has gone
		}
	}
	l, err := s.config.Layout(r.Context())
	if err != nil {
		problem(w, errorCode(err, http.StatusNotFound), err.Error())
		return
	}
	reply(w, l)
}

// another waits until another layout than version serves or the time is up; false means that nobody waits for the answer.
func another(r *http.Request, snapshot func() move.Status, version int) bool {
	ticker := time.NewTicker(layoutEvery)
	defer ticker.Stop()
	end := time.NewTimer(layoutWait)
	defer end.Stop()
	for snapshot().Layout.Serving == version {
		select {
		case <-r.Context().Done():
			return false
		case <-end.C:
			return true
		case <-ticker.C:
		}
	}
	return true
}

func (s *Server) reportJSON(w http.ResponseWriter, r *http.Request) {
	report, err := s.config.Report(r.Context(), nil)
	if err != nil {
		problem(w, errorCode(err, http.StatusNotFound), err.Error())
		return
	}
	reply(w, report)
}

// reportPolicy lets the report be styled, and nothing else.
const reportPolicy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

func (s *Server) reportPage(w http.ResponseWriter, r *http.Request) {
	var page bytes.Buffer
	if _, err := s.config.Report(r.Context(), &page); err != nil {
		problem(w, errorCode(err, http.StatusNotFound), err.Error())
		return
	}
	w.Header().Set("Content-Security-Policy", reportPolicy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes())
}

// maxKey is the longest key /route takes, in bytes; a key of several columns is given as several key=.
const maxKey = 8 << 10

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := query["key"]
	if len(key) == 0 || len(strings.Join(key, "")) > maxKey {
		problem(w, http.StatusBadRequest, "key is missing or too long (/route?table=orders&key=42)")
		return
	}
	route, err := s.config.Route(r.Context(), query.Get("table"), key)
	if err != nil {
		problem(w, errorCode(err, http.StatusBadRequest), err.Error())
		return
	}
	reply(w, route)
}

// errorCode is 503 for what may work in a moment.
func errorCode(err error, otherwise int) int {
	if pg.Transient(err) {
		return http.StatusServiceUnavailable
	}
	return otherwise
}

func reply(w http.ResponseWriter, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		problem(w, http.StatusInternalServerError, "the answer has no JSON form")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the asker may have gone
}

func problem(w http.ResponseWriter, code int, what string) {
	body, _ := json.Marshal(map[string]string{"error": what}) // a map of strings always has a form
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}

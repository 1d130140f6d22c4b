package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Event is something that happened, as the log says it.
type Event struct {
	At    time.Time `json:"at"`
	Level string    `json:"level"` // INFO, WARN or ERROR
	Text  string    `json:"text"`
}

const (
	eventEvery = 500 * time.Millisecond // looked whether there is something new
	eventAlive = 15 * time.Second       // said although there is not, so that who went away is found out
	eventRetry = 2 * time.Second        // a browser connects again after
)

// events sends the status.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	stream(w, r, func() ([]byte, error) { return json.Marshal(s.config.Snapshot()) })
}

// live sends what the page shows, as a string of JSON: in an event a line's end would be one of the event's.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	stream(w, r, func() ([]byte, error) {
		var shown, line bytes.Buffer
		if err := pageTemplate.ExecuteTemplate(&shown, "live", s.shown()); err != nil {
			return nil, err
		}
		e := json.NewEncoder(&line)
		e.SetEscapeHTML(false)
		err := e.Encode(shown.String())
		return bytes.TrimSpace(line.Bytes()), err
	})
}

// stream sends server-sent events, one whenever what is to be said is not what it was, until the asker or the server goes.
// The server's last word is sent too: it may be that the move is completed, or why the worker ends.
func stream(w http.ResponseWriter, r *http.Request, say func() ([]byte, error)) {
	send := http.NewResponseController(w)
	if err := send.SetWriteDeadline(time.Time{}); err != nil {
		problem(w, http.StatusInternalServerError, "events cannot be sent")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "retry: %d\n\n", eventRetry.Milliseconds())
	ticker := time.NewTicker(eventEvery)
	defer ticker.Stop()
	var was []byte
	said := time.Now()
	for last := false; ; {
		now, err := say()
		if err != nil {
			return
		}
		switch {
		case !bytes.Equal(now, was):
			_, err = fmt.Fprintf(w, "data: %s\n\n", now)
			was, said = now, time.Now()
		case time.Since(said) > eventAlive:
			_, err = fmt.Fprint(w, ": nothing new\n\n")
			said = time.Now()
		}
		if err == nil {
			err = send.Flush()
		}
		if err != nil || last {
			return
		}
		select {
		case <-r.Context().Done():
			last = true
		case <-ticker.C:
		}
	}
}

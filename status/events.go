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

// events sends the status as server-sent events, whenever it is not what it was, until the asker or the server goes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
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
	for {
		now, err := json.Marshal(s.config.Snapshot())
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
		if err != nil {
			return // the asker has gone
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}

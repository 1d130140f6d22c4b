package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"pgreshard/move"
	"pgreshard/pgtest"
)

// shows looks at the report of a worker that has not switched.
func (r *rig) shows() {
	r.t.Helper()
	for path, want := range map[string]string{"/report.json": `"switched":null`, "/report": "Layout 2 has not begun to serve"} {
		answer, err := http.Get("http://" + r.listen + path)
		if err != nil {
			r.t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			r.t.Errorf("%s: %s, %v\n%s", path, answer.Status, err, text)
		}
	}
}

// reported looks at what a completed move has left, of which nobody has written since the switch.
func (r *rig) reported() {
	r.t.Helper()
	dir := ""
	for _, set := range r.env {
		if value, ok := strings.CutPrefix(set, "PGRESHARD_STATE_DIR="); ok {
			dir = value
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	var e move.Evidence
	if err := json.Unmarshal(text, &e); err != nil {
		r.t.Fatal(err)
	}
	if e.State != move.StateCompleted || e.Switched == nil || len(e.Steps) != 9 || len(e.Tables) != len(pgtest.WorkloadTables()) || len(e.Refusals) != 0 { // a rehearsal is none
		r.t.Errorf("%s", text)
	}
	page, err := os.ReadFile(filepath.Join(dir, "report.html"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, table := range e.Tables {
		for n, db := range r.shards {
			rows := db.Query(r.t, `select count(*) from `+table.Table)[0][0]
			one, _ := json.Marshal(table.Shards[n])
			if !strings.Contains(string(one), `"rows":`+rows+",") || !strings.Contains(string(page), "<td>"+rows+"<td><code>"+table.Shards[n].Hash+"</code>") {
				r.t.Errorf("%s has %s rows on shard %d, not %s", table.Table, rows, n, one)
			}
		}
	}
	email := r.sources[0].Query(r.t, `select email from users limit 1`)[0][0]
	for _, secret := range []string{email, "postgres://", "127.0.0.1", "http", "<script"} {
		if strings.Contains(string(page), secret) || strings.Contains(string(text), secret) {
			r.t.Errorf("the report has %q in it", secret)
		}
	}
}

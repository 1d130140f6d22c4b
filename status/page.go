package status

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"pgreshard/move"
)

//go:embed page.html
var pageText string

//go:embed page.css
var pageStyle string

//go:embed page.js
var pageScript string

// policy lets the page run its own script and ask its own server, and nothing else.
var policy = "default-src 'none'; style-src " + hashSource(pageStyle) + "; script-src " + hashSource(pageScript) +
	"; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

func hashSource(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// pageData is what the page shows: a status, and what the status does not have.
type pageData struct {
	move.Status
	Words  string
	Events []Event
	Verbs  []button
	Style  template.CSS
	Script template.JS
}

// button is a verb as the page offers it, in one state of the move.
type button struct{ Name, Path, Body, Ask, In string }

// buttons are all that a worker may offer, in their order.
var buttons = []button{
	{Name: "Verify", Path: "verify", In: move.StateStreaming},
	{Name: "Rehearse the cutover", Path: "cutover", Body: `{"rehearse":true}`, Ask: "Writes will be refused for a moment. Rehearse?", In: move.StateStreaming},
	{Name: "Cut over", Path: "cutover", Ask: "Writes will be refused for a moment, and the new layout serves. Cut over?", In: move.StateStreaming},
	{Name: "Roll back", Path: "rollback", Ask: "Writes will be refused for a moment, and the old layout serves again. Roll back?", In: move.StateSwitched},
	{Name: "Complete", Path: "complete", Ask: "The old layout will not follow any more, and there is no way back then. Complete the move?", In: move.StateSwitched},
}

// Over says that no worker goes on with the move.
func (d pageData) Over() bool {
	return d.State == move.StateCompleted || d.State == move.StateCancelled
}

// shown is what the page shows now.
func (s *Server) shown() pageData {
	d := pageData{Status: s.config.Snapshot(), Style: template.CSS(pageStyle), Script: template.JS(pageScript)}
	if s.config.Words != nil {
		d.Words = s.config.Words(d.Status)
	}
	if s.config.Events != nil {
		d.Events = s.config.Events()
	}
	for _, b := range buttons {
		if s.config.Verbs[b.Path] != nil && s.config.Token != "" {
			d.Verbs = append(d.Verbs, b)
		}
	}
	return d
}

// page is the status for a browser, as of the request; from then on the page shows what live sends.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, s.shown()); err != nil {
		problem(w, http.StatusInternalServerError, "the page could not be written")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(b.Bytes())
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"percent": func(c move.CopyStatus) int64 {
		if c.State == "done" {
			return 100
		}
		return min(100, 100*c.Bytes/max(1, c.BytesTotal))
	},
	"seconds": func(v any) string { return fmt.Sprintf("%.3f", number(v)) },
	"whole":   func(v any) string { return fmt.Sprintf("%.0f", number(v)) },
	"span":    func(v any) string { return (time.Duration(number(v)) * time.Second).String() },
	"bytes":   func(v any) string { return bytesText(int64(number(v))) },
	"clock":   func(t any) string { return clock(t) },
	"join":    func(list []string) string { return strings.Join(list, "; ") },
	"perCommit": func(s move.ShardStatus) string {
		if s.Batches == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f ms", 1000*s.ApplySeconds/float64(s.Batches))
	},
	"plot": plot,
}).Parse(pageText))

// number is a figure of a status, or what a pointer to one leads to.
func number(v any) float64 {
	switch n := v.(type) {
	case float64:
		return n
	case *float64:
		return *n
	case int64:
		return float64(n)
	case *int64:
		return float64(*n)
	}
	return 0
}

func clock(t any) string {
	switch at := t.(type) {
	case time.Time:
		return at.UTC().Format("15:04:05 UTC")
	case *time.Time:
		return at.UTC().Format("15:04:05 UTC")
	}
	return ""
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f kB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

const plotWidth, plotHeight = 160, 28

// plot draws figures as a line from the oldest at the left to now at the right; a gap is where nothing was measured.
func plot(values []float64) template.HTML {
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	if len(values) < 2 {
		return ""
	}
	var path strings.Builder
	pen := "M"
	for i, v := range values {
		if v < 0 {
			pen = "M"
			continue
		}
		y := float64(plotHeight-2) - v/max(most, 1e-9)*float64(plotHeight-4)
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, float64(i)*plotWidth/float64(len(values)-1), y)
		pen = "L"
	}
	return template.HTML(fmt.Sprintf(`<svg width="%d" height="%d" role="img" aria-label="seconds behind, at most %.1f"><path d="%s" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>`,
		plotWidth, plotHeight, most, path.String()))
}

package status

import (
	"bytes"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"pgreshard/move"
)

// page is the status for a browser, as of the request.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, s.config.Snapshot()); err != nil {
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
	"seconds": func(s *float64) string { return fmt.Sprintf("%.3f", *s) },
	"whole":   func(v *float64) string { return fmt.Sprintf("%.0f", *v) },
	"join":    func(list []string) string { return strings.Join(list, "; ") },
}).Parse(pageText))

const pageText = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="2">
<title>{{.Move}}: {{.State}}</title>
<style>
body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #ccc; }
.error { color: #a00; }
</style>
</head>
<body>
<h1>{{.Move}}: {{.State}}</h1>
<p>{{if eq .Layout.Serving .Layout.Next}}Layout {{.Layout.Next}} serves, the one the move led to.{{else}}Layout {{.Layout.Serving}} serves; the move leads to layout {{.Layout.Next}}.{{end}}</p>
{{with .Error}}<p class="error">{{.}}</p>{{end}}
{{range .Waiting}}<p class="error">{{.}}</p>
{{end}}{{range .Alarms}}<p class="error">{{.}}</p>
{{end}}<p>Safe to cut over: {{if .SafeToCutOver.OK}}yes{{else}}no, because {{join .SafeToCutOver.Because}}{{end}}.</p>
{{with .Cutover.FreezeSeconds}}<p>Writes were refused for {{seconds .}} s.</p>{{end}}
{{with .CopyETA}}<p>Copied in about {{whole .}} s.</p>{{end}}
{{if .Copy}}<table><caption>Copy</caption><tr><th>source<th>table<th>state<th>rows<th>done<th>seconds left</tr>
{{range .Copy}}<tr><td>{{.Source}}<td>{{.Table}}<td>{{.State}}<td>{{.Rows}}<td>{{percent .}} %<td>{{with .ETASeconds}}{{whole .}}{{end}}</tr>
{{end}}</table>{{end}}
{{if .Streams}}<table><caption>Streams</caption><tr><th>source<th>applied<th>bytes behind<th>seconds behind<th>rows/s<th>seconds to catch up<th>bytes the slot keeps<th>of<th>seconds until it is lost</tr>
{{range .Streams}}<tr><td>{{.Source}}<td>{{.Applied}}<td>{{with .LagBytes}}{{.}}{{else}}not measured{{end}}<td>{{with .LagSeconds}}{{seconds .}}{{else}}not measured{{end}}<td>{{with .RowsPerSecond}}{{whole .}}{{else}}not measured{{end}}<td>{{with .ETASeconds}}{{whole .}}{{end}}<td>{{with .Retained}}{{.}}{{end}}<td>{{with .Budget}}{{.}}{{end}}<td>{{with .LossSeconds}}{{whole .}}{{end}}</tr>
{{end}}</table>{{end}}
{{if .Shards}}<table><caption>Shards</caption><tr><th>shard<th>node<th>inserted<th>updated<th>deleted</tr>
{{range .Shards}}<tr><td>{{.Shard}}<td>{{.Node}}<td>{{.Rows.Inserted}}<td>{{.Rows.Updated}}<td>{{.Rows.Deleted}}</tr>
{{end}}</table>{{end}}
</body>
</html>
`

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pgreshard/move"
)

// The files in the state directory that a move leaves when it is completed.
const (
	evidenceJSON = "report.json"
	evidencePage = "report.html"
)

// leaveEvidence writes what a move can show for itself beside the worker's other files, and says where.
func (a *app) leaveEvidence(ctx context.Context, e engine, name string) (page string, err error) {
	evidence, err := e.Evidence(ctx)
	if err != nil {
		return "", err
	}
	dir, err := stateDir(name)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(evidence, "", "  ")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := writeEvidence(&b, evidence); err != nil {
		return "", err
	}
	page = filepath.Join(dir, evidencePage)
	for file, content := range map[string]string{filepath.Join(dir, evidenceJSON): string(text) + "\n", page: b.String()} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return page, nil
}

// ended leaves the evidence of a move that is completed; where it cannot, the move is completed all the same.
func (a *app) ended(ctx context.Context, e engine, name string) {
	page, err := a.leaveEvidence(context.WithoutCancel(ctx), e, name)
	if err != nil {
		a.log.Warn("the move's report was not written", "error", redact(err.Error()))
		return
	}
	a.log.Info("the move's report is written", "page", page, "json", evidenceJSON)
}

// writeEvidence writes a page that needs nothing beside it: no script, no font, no image.
func writeEvidence(w io.Writer, e *move.Evidence) error {
	if err := evidenceTemplate.Execute(w, e); err != nil {
		return fmt.Errorf("write the report's page: %w", err)
	}
	return nil
}

var evidenceTemplate = template.Must(template.New("evidence").Funcs(template.FuncMap{
	"when":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
	"seconds": func(s float64) string { return fmt.Sprintf("%.3f s", s) },
	"join":    func(list []string) string { return strings.Join(list, ", ") },
}).Parse(evidenceText))

const evidenceText = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Move}}: report</title>
<style>
:root { --text: #1b1f24; --quiet: #5b6470; --back: #fff; --line: #d8dde3; --good: #1a7f37; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e7eb; --quiet: #9aa4af; --back: #15181c; --line: #343a41; --good: #4ac26b; --bad: #ff8a80; } }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--quiet); font-weight: 600; } .wide { overflow-x: auto; }
.quiet { color: var(--quiet); } .good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
code { font: .9em ui-monospace, monospace; }
</style>
</head>
<body>
<h1>Move {{.Move}}: {{.State}}</h1>
<p>{{with .Switched}}Layout {{$.Layout.Next}} serves since {{when .}}{{else}}Layout {{.Layout.Next}} has not begun to serve{{end}}{{with .FreezeSeconds}}; writes were refused for {{seconds .}}{{end}}.
Comparison in the freeze: {{.Verify.State}}, {{.Verify.Rows}} rows{{with .Verify.Changed}}, {{.}} of them once more by their keys{{end}}{{with .Verify.At}}, as of <code>{{join .}}</code>{{end}}.</p>
<p class="quiet">Written {{when .Made}}.</p>
<h2>Rows at the switch</h2>
{{if .At}}<p>As of <code>{{join .At}}</code> on the sources, when everything was drained and nobody wrote. A hash is two sums over all rows, each modulo 2<sup>64</sup>: those of a sharded table's shards add up to those of its sources, the copies of an omnisharded table are equal.</p>{{end}}
{{with .Unread}}<p class="bad">Not read: {{.}}.</p>{{end}}
{{if .Tables}}<div class="wide"><table>
<tr><th scope="col">table<th scope="col">node<th scope="col">rows<th scope="col">hash<th scope="col"></tr>
{{range $t := .Tables}}{{range .Sources}}<tr><th scope="row">{{$t.Table}}<td>source {{.Number}}<td>{{.Rows}}<td><code>{{.Hash}}</code><td></tr>
{{end}}{{range .Shards}}<tr><th scope="row"><td>destination {{.Number}}<td>{{.Rows}}<td><code>{{.Hash}}</code><td>{{if $t.Equal}}<span class="good">equal</span>{{else}}<span class="bad">not equal</span>{{end}}</tr>
{{end}}{{end}}</table></div>{{end}}
<h2>The cutover</h2>
<table><tr><th scope="col">step<th scope="col">began<th scope="col">took</tr>
{{range .Steps}}<tr><th scope="row">{{.Step}}<td>{{when .Began}}<td>{{seconds .Seconds}}</tr>
{{end}}</table>
<h2>Refusals</h2>
{{if .Refusals}}<table><tr><th scope="col">when<th scope="col">step<th scope="col">why</tr>
{{range .Refusals}}<tr><td>{{when .At}}<td>{{.Step}}<td>{{.Why}}</tr>
{{end}}</table>{{else}}<p>None: no cutover was refused or undone.</p>{{end}}
<h2>Repairs</h2>
{{if .Repairs}}<table><tr><th scope="col">when<th scope="col">table<th scope="col">destination<th scope="col">rows written<th scope="col">rows taken away</tr>
{{range .Repairs}}<tr><td>{{when .At}}<td>{{.Table}}<td>{{.Shard}}<td>{{.Written}}<td>{{.Removed}}</tr>
{{end}}</table>{{else}}<p>None: no row was mended.</p>{{end}}
</body>
</html>
`

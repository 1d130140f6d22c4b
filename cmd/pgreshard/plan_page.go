package main

import (
	"fmt"
	"html/template"
	"io"
	"strings"

	"pgreshard/survey"
)

// WriteHTML is the plan as one page that needs nothing beside it: no script, no font, no image.
func (r planReport) WriteHTML(w io.Writer) error {
	var b strings.Builder
	if err := planPage.Execute(&b, r); err != nil {
		return fmt.Errorf("write the plan's page: %w", err)
	}
	_, err := io.WriteString(w, redact(b.String()))
	return err
}

var planPage = template.Must(template.New("plan").Funcs(template.FuncMap{
	"percent": func(part float64) string { return fmt.Sprintf("%.1f %%", 100*part) },
	"width":   func(part, of float64) string { return fmt.Sprintf("%.2f", 100*part/max(of, 1e-9)) },
	"fullest": func(s *survey.Report) float64 {
		_, largest := extremes(s.Shares)
		return largest
	},
	"top": func(s *survey.Report) []survey.Heavy { return s.Largest[:min(10, len(s.Largest))] },
	"heaviest": func(s *survey.Report) float64 {
		if len(s.Largest) == 0 {
			return 0
		}
		return s.Largest[0].Share
	},
	"rows": rowsWords, "bytes": bytesWords, "read": readWords, "error": errorWords, "strategy": strategyWords, "ratio": ratioWords,
	"foretold": forecastLines, "subKeys": subKeysWords, "shards": shardsWords, "names": strategyNames, "sweep": sweepRows, "swept": sweepWords,
}).Parse(planPageText))

const planPageText = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>pgreshard plan</title>
<style>
:root { --text: #1b1f24; --quiet: #5b6470; --back: #fff; --line: #d8dde3; --bar: #2f6fb3; --recent: #d08a1e; --bad: #b3261e; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e7eb; --quiet: #9aa4af; --back: #15181c; --line: #343a41; --bar: #5b9bdc; --recent: #e0a53e; --bad: #ff8a80; --card: #1d2126; }
}
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--quiet); font-weight: 600; }
.wide { overflow-x: auto; }
.chart td { border: 0; padding: .12rem .8rem .12rem 0; white-space: nowrap; } .chart td:nth-child(2) { width: 100%; }
.bar { background: var(--bar); height: .8rem; border-radius: 2px; } .bar.recent { background: var(--recent); height: .3rem; margin-top: 2px; }
.quiet { color: var(--quiet); } .verdict { font-size: 1.1rem; font-weight: 600; }
.problem { border-left: 4px solid var(--bad); } .warning { border-left: 4px solid var(--recent); }
.problem, .warning { background: var(--card); padding: .5rem .8rem; margin: .5rem 0; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>pgreshard plan</h1>
<p class="verdict">{{with len .Problems}}{{.}} {{if eq . 1}}problem blocks{{else}}problems block{{end}} the move{{else}}nothing blocks the move{{end}}{{with .State}}; it is made already and is {{.}}{{end}}</p>
{{range .Problems}}<div class="problem">{{with .Table}}<b>{{.}}</b>: {{end}}{{.What}}{{with .Hint}}<br><code>{{.}}</code>{{end}}</div>
{{end}}{{range $s := .Surveys}}{{range .Warnings}}<div class="warning"><b>{{$s.Table}}</b>: {{.What}}<br>{{.Hint}}{{with .SubKeys}}<br><span class="quiet">{{subKeys .}}</span>{{end}}</div>
{{end}}{{end}}{{range .Foretold}}<div class="warning">{{.What}}<br>{{.Hint}}</div>
{{end}}
{{with .Forecast}}<h2>What it will take</h2>
<div class="wide"><table><tr><th>what<th>foretold<th>by</tr>
{{range foretold .}}<tr><td>{{.What}}<td>{{.Value}}<td class="quiet">{{.Basis}}</tr>
{{end}}</table></div>{{end}}
{{if .Surveys}}<h2>Where the rows will go</h2>
<p class="quiet">Blue: the shard's share of the rows, within &plusmn; in 95 of 100 samples. Orange: its share of the tenth of the rows that were written last.</p>
{{range $s := .Surveys}}<h3>{{.Table}}</h3>
<p class="quiet">{{.Rule}}; {{read .}} read in {{.Read.Blocks}} of {{.Read.Of}} blocks, {{.Read.Keys}} keys; &plusmn; {{error .}}{{if .Growing}}; keys increase: the rows written last have the highest{{end}}</p>
{{$most := fullest .}}<table class="chart">{{range .Shares}}<tr><td>shard {{.Shard | printf "%d"}}<td><div class="bar" style="width: {{width .Rows $most}}%"></div><div class="bar recent" style="width: {{width .Recent $most}}%"></div><td>{{percent .Rows}}<td class="quiet">{{percent .Bytes}} of the bytes</tr>
{{end}}</table>
{{if .Largest}}{{$top := heaviest .}}<table class="chart">{{range top .}}<tr><td><code>{{.Key}}</code><td><div class="bar" style="width: {{width .Share $top}}%"></div><td>{{percent .Share}}<td class="quiet">{{.Rows}} rows {{if .Exact}}counted{{else}}estimated{{end}}, shard {{.Shard | printf "%d"}}, {{printf "%.2f" .Alone}} of an average shard</tr>
{{end}}</table>{{else}}<p class="quiet">No key stands out.</p>{{end}}
{{with .Costs}}<div class="wide"><table><tr><th>from {{shards (index . 0).From}} to {{(index . 0).To}}<th>keys moved<th>rows moved<th>bytes moved<th>least share<th>largest share<th>max/min<th>a scan of a range of keys</tr>
{{range .}}<tr><td>{{strategy .}}<td>{{percent .Keys}}<td>{{percent .Rows}}<td>{{percent .Bytes}}<td>{{percent .Least}}<td>{{percent .Largest}}<td>{{ratio .}}<td>{{.Scans}}</tr>
{{end}}</table></div><p class="quiet">* can be a rule's placement, the others are compared only.</p>{{end}}
{{if .Sweep}}<div class="wide"><table><tr><th>shards{{range names}}<th>{{.}}{{end}}</tr>
{{range sweep .}}<tr><td>{{.Shards}}{{range .Costs}}<td>{{swept .}}{{end}}</tr>
{{end}}</table></div><p class="quiet">Rows that move from {{shards (index .Sweep 0).From}} on, step by step, and the largest share by the least.</p>{{end}}
{{end}}{{end}}
{{if .Statements}}<h2>Statements that go to every shard</h2>
<p class="quiet">They name a sharded table without its key, by their words, as pg_stat_statements has them.</p>
<div class="wide"><table><tr><th>calls<th>seconds<th>table<th>key<th>statement</tr>
{{range .Statements}}<tr><td>{{.Calls}}<td>{{printf "%.1f" .Seconds}}<td>{{.Table}}<td>{{.Key}}<td><code>{{.Query}}</code></tr>
{{end}}</table></div>{{end}}
<h2>Tables</h2>
<div class="wide"><table><tr><th>table<th>rows<th>size<th>rule</tr>
{{range .Tables}}<tr><td>{{.Table}}<td>{{rows .Rows}}<td>{{bytes .Bytes}}<td>{{.Rule}}</tr>
{{end}}</table></div>
<h2>Nodes</h2>
<table><tr><th>node<th>address<th>version<th>connections</tr>
{{range .Nodes}}<tr><td>{{.Side}} shard {{.Shard}}<td>{{.Node}}<td>{{.Version}}<td>{{.Sessions}}</tr>
{{end}}</table>
{{if .Notes}}<h2>To know</h2><ul>{{range .Notes}}<li>{{.}}</li>
{{end}}</ul>{{end}}
</body>
</html>
`

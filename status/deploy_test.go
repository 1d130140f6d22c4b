package status

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pgreshard/move"
)

// full is a snapshot in which everything was measured, so that every metric is there.
func full() move.Status {
	s := streaming()
	some, figure := int64(1), 1.0
	s.CopyETA = &figure
	s.Streams[0].SafeWAL, s.Cutover.FreezeSeconds = &some, &figure
	s.CDC = &move.CDCStatus{Shards: []move.CDCShardStatus{{LagBytes: &some, LagSeconds: &figure, Retained: &some, Budget: &some, Events: map[string]int64{"c": 1}}}}
	return s
}

// What the alert rules and the dashboard ask for is there: each metric, and each label they name.
func TestRulesAndDashboardAskForMetricsThatExist(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{full})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]map[string]bool{}
	for _, f := range families {
		labels := map[string]bool{"instance": true}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		there[f.GetName()] = labels
	}
	named := regexp.MustCompile(`pgreshard_[a-z_]+`)
	label := regexp.MustCompile(`\{\{ ?\$?(?:labels\.)?([a-z]+) ?\}\}`)
	ask := func(where, expr, legend string) {
		metrics := named.FindAllString(expr, -1)
		for _, name := range metrics {
			labels := there[name]
			for _, suffix := range []string{"_sum", "_count"} {
				if labels == nil {
					labels = there[strings.TrimSuffix(name, suffix)]
				}
			}
			if labels == nil {
				t.Errorf("%s asks for %s, which is not there", where, name)
			}
			for _, l := range label.FindAllStringSubmatch(legend, -1) {
				if labels != nil && !labels[l[1]] && l[1] != "value" {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
				}
			}
		}
		if len(metrics) == 0 && !strings.HasPrefix(expr, "up{") {
			t.Errorf("%s asks for nothing of ours: %s", where, expr)
		}
	}

	rules, err := os.ReadFile("../deploy/prometheus-rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := strings.Split(string(rules), "- alert: ")[1:]
	if len(alerts) < 8 {
		t.Errorf("%d alerts", len(alerts))
	}
	for _, alert := range alerts {
		name, rest, _ := strings.Cut(alert, "\n")
		_, expr, _ := strings.Cut(rest, "expr: ")
		expr, _, _ = strings.Cut(expr, "\n")
		ask("alert "+name, expr, rest)
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			ask("panel "+p.Title, target.Expr, target.LegendFormat)
		}
	}
}

// panel is one of the dashboard's.
type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct{ Panels []panel }
	text, err := os.ReadFile("../deploy/grafana-dashboard.json")
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil || len(dashboard.Panels) < 10 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	return dashboard.Panels
}

// What promtool says of metrics and rules; of rules only where it is installed.
func TestMetricsAndRulesAreWellMade(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{full})
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed, so the rules are not checked by it")
	}
	if said, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "../deploy/prometheus-rules.yml").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// prometheusAt starts a real Prometheus that scrapes a worker, with the token for metrics alone and the alert rules of deploy/, and
// returns its address.
func prometheusAt(t *testing.T, worker, token string) string {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("prometheus is not installed (Debian: apt-get install prometheus), so nothing scrapes the metrics")
	}
	rules, err := filepath.Abs("../deploy/prometheus-rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	config := fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: pgreshard
    authorization: {credentials: %q}
    static_configs: [{targets: [%q]}]
`, rules, token, worker)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	server := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	server.Stderr = &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	return address
}

// answer is what Prometheus's API says to a question.
func answer(ctx context.Context, address, question string, data any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/"+question, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil {
		return err
	}
	if said.Status != "success" {
		return fmt.Errorf("%s: %s", said.Status, said.Error)
	}
	return nil
}

// A real Prometheus takes every metric, evaluates every alert rule, and answers every panel of the dashboard.
func TestPrometheusScrapesAWorkerAndEvaluatesTheRules(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(New(Config{Snapshot: full, Token: "token", MetricsToken: "metrics"}))
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); worker.Close() })
	at := prometheusAt(t, strings.TrimPrefix(worker.URL, "http://"), "metrics")

	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, LastEvaluation string }
		}
	}
	var last error
	await := func(what string, done func() bool) {
		t.Helper()
		for !done() {
			select {
			case <-t.Context().Done():
				t.Fatalf("never: %s: %v", what, last)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	var targets struct {
		ActiveTargets []struct{ Health, LastError string }
	}
	await("it has scraped", func() bool {
		last = answer(t.Context(), at, "targets", &targets)
		if last == nil && len(targets.ActiveTargets) == 1 && targets.ActiveTargets[0].Health == "down" {
			t.Fatalf("the scrape failed: %s", targets.ActiveTargets[0].LastError)
		}
		return last == nil && len(targets.ActiveTargets) == 1 && targets.ActiveTargets[0].Health == "up"
	})
	await("it has evaluated the rules", func() bool {
		if last = answer(t.Context(), at, "rules", &rules); last != nil || len(rules.Groups) != 1 {
			return false
		}
		for _, r := range rules.Groups[0].Rules {
			if r.Health == "err" {
				t.Fatalf("%s: %s", r.Name, r.LastError)
			}
			if r.Health != "ok" {
				return false
			}
		}
		return true
	})
	if n := len(rules.Groups[0].Rules); n < 8 {
		t.Errorf("%d rules", n)
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{full})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var series struct{ Result []json.RawMessage }
	ask := func(expr string) int {
		t.Helper()
		if err := answer(t.Context(), at, "query?query="+url.QueryEscape(expr), &series); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		return len(series.Result)
	}
	for _, f := range families {
		name := f.GetName()
		if f.GetType().String() == "SUMMARY" {
			name += "_count"
		}
		if ask(name) < len(f.GetMetric()) {
			t.Errorf("%s has %d series, of %d", name, len(series.Result), len(f.GetMetric()))
		}
	}
	for _, p := range panels(t) {
		for _, target := range p.Targets {
			ask(strings.ReplaceAll(target.Expr, "$__rate_interval", "1m"))
		}
	}
}

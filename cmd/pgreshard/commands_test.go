package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/verify"
)

// fakeEngine answers as it is told.
type fakeEngine struct {
	status  move.Status
	ok      bool
	fenced  bool
	checks  *move.CheckReport
	migrate func(context.Context, move.MigrateOptions) error
}

func (*fakeEngine) Cancel(context.Context, move.CancelOptions) error { return nil }
func (*fakeEngine) Cutover(context.Context, move.CutoverOptions) (move.CutoverReport, error) {
	return move.CutoverReport{}, nil
}
func (*fakeEngine) Rollback(context.Context) (move.CutoverReport, error) {
	return move.CutoverReport{}, nil
}
func (*fakeEngine) CompleteNow(context.Context, bool) error        { return nil }
func (e *fakeEngine) Complete(context.Context, bool) (bool, error) { return e.fenced, nil }

type fakeReport struct {
	Name string `json:"name"`
	ok   bool
}

func (r fakeReport) WriteText(w io.Writer) error {
	_, err := fmt.Fprintln(w, "the "+r.Name)
	return err
}
func (r fakeReport) OK() bool { return r.ok }

func (e *fakeEngine) Plan(context.Context, move.PlanOptions) (report, error) {
	return fakeReport{"plan", e.ok}, nil
}
func (e *fakeEngine) Verify(context.Context) (report, error) {
	return fakeReport{"comparison", e.ok}, nil
}
func (e *fakeEngine) Evidence(context.Context) (*move.Evidence, error) { return &move.Evidence{}, nil }
func (e *fakeEngine) VerifyNow(context.Context) (*verify.Report, error) {
	return nil, errors.New("no worker")
}
func (e *fakeEngine) Repair(context.Context) (*move.RepairReport, error) {
	return nil, errors.New("no worker")
}
func (e *fakeEngine) RepairStopped(context.Context) (*move.RepairReport, error) {
	return &move.RepairReport{Before: &verify.Report{}, After: &verify.Report{}, Forgiven: []string{"public.orders"}}, nil
}
func (e *fakeEngine) Check(_ context.Context, o move.CheckOptions) (*move.CheckReport, error) {
	return e.checks, nil
}
func (e *fakeEngine) CheckNow(_ context.Context, o move.CheckOptions) (*move.CheckReport, error) {
	return e.checks, nil
}
func (e *fakeEngine) Layout(context.Context) (report, error) { return fakeReport{"layout", true}, nil }
func (e *fakeEngine) Route(_ context.Context, table string, key []string) (report, error) {
	return fakeReport{"route of " + table + "/" + strings.Join(key, ","), true}, nil
}
func (e *fakeEngine) Status(context.Context) (move.Status, error) { return e.status, nil }
func (e *fakeEngine) Snapshot() move.Status                       { return e.status }
func (e *fakeEngine) Close()                                      {}
func (e *fakeEngine) Migrate(ctx context.Context, o move.MigrateOptions) error {
	if e.migrate == nil {
		return nil
	}
	return e.migrate(ctx, o)
}

// freePort is an address nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// call runs the program on the small configuration with an engine.
func call(t *testing.T, e engine, listen string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pgreshard.toml")
	if err := os.WriteFile(file, []byte(small+"[cutover]\nreverse = false\n[http]\nlisten = \""+listen+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, trouble bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &trouble}
	a.open = func(context.Context, *Config, *slog.Logger) (engine, error) { return e, nil }
	code = a.run(t.Context(), append([]string{"-c", file}, args...))
	return code, out.String(), trouble.String()
}

func TestCommandsPrintAndEndWithTheirCode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args           []string
		bad            bool // what the engine reports is not well
		idle           bool // no worker runs
		code           int
		stdout, stderr string
	}{
		"plan prints the plan":                     {args: []string{"plan"}, stdout: "the plan\n"},
		"plan as JSON":                             {args: []string{"plan", "--json"}, stdout: `{"name":"plan"}` + "\n"},
		"plan ends with 3 where a problem blocks":  {args: []string{"plan"}, bad: true, code: 3, stdout: "the plan\n", stderr: "block the move (hint: "},
		"verify ends with 3 on a difference":       {args: []string{"verify"}, bad: true, code: 3, stdout: "the comparison\n", stderr: "differ (hint: "},
		"route takes a table and a key":            {args: []string{"route", "orders", "42"}, stdout: "the route of orders/42\n"},
		"route takes a key of two columns":         {args: []string{"route", "measures", "42", "eu"}, stdout: "the route of measures/42,eu\n"},
		"route takes a key alone":                  {args: []string{"route", "42"}, stdout: "the route of /42\n"},
		"route takes a negative key":               {args: []string{"route", "orders", "--", "-42"}, stdout: "the route of orders/-42\n"},
		"route needs a key":                        {args: []string{"route"}, code: 2, stderr: "hint: "},
		"layout prints the layout":                 {args: []string{"layout"}, stdout: "the layout\n"},
		"version needs no configuration":           {args: []string{"-c", "/no/such", "version"}, stdout: "pgreshard "},
		"a missing configuration is 2":             {args: []string{"-c", "/no/such", "plan"}, code: 2, stderr: "no such file"},
		"an unknown command is 2":                  {args: []string{"frobnicate"}, code: 2, stderr: "unknown command"},
		"an unknown flag is 2":                     {args: []string{"plan", "--frob"}, code: 2, stderr: "unknown flag"},
		"an unknown log format is 2":               {args: []string{"plan", "--log-format", "xml"}, code: 2, stderr: `"xml" is not a format`},
		"check wants checks":                       {args: []string{"check"}, code: 2, stderr: "there are no [[checks]]"},
		"check knows three consistencies":          {args: []string{"check", "--consistency", "weak"}, code: 2, stderr: `there is no consistency "weak" (hint: --consistency strong, bounded or eventual)`},
		"a repair needs a worker that answers":     {args: []string{"verify", "--repair"}, code: 1, stderr: "cannot be asked"},
		"a repair without a worker is one":         {args: []string{"verify", "--repair"}, idle: true, stdout: "rows of public.orders stopped the stream"},
		"plan compares numbers of shards":          {args: []string{"plan", "--shards", "8..16"}, stdout: "the plan\n"},
		"plan refuses a stretch that is none":      {args: []string{"plan", "--shards", "16..8"}, code: 2, stderr: `"16..8" is not a stretch`},
		"an error as JSON carries hint and code":   {args: []string{"--log-format", "json", "plan"}, bad: true, code: 3, stderr: `"exit":3`},
		"the help names no command there is not":   {args: []string{"--help"}, stdout: "migrate"},
		"migrate ends with 0 when the worker does": {args: []string{"migrate", "--yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := call(t, &fakeEngine{ok: !test.bad, status: move.Status{Idle: test.idle}}, freePort(t), test.args...)
			if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) {
				t.Errorf("got %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}

func TestAReportGoesToAFileAsWell(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "plan.txt")
	code, stdout, _ := call(t, &fakeEngine{ok: false}, freePort(t), "plan", "--report", file)
	text, err := os.ReadFile(file)
	if err != nil || code != exitCheck || string(text) != stdout || stdout != "the plan\n" {
		t.Errorf("code %d, %q, %q, %v", code, text, stdout, err)
	}
}

func TestTheWorkersErrorBecomesTheExitCode(t *testing.T) {
	t.Parallel()
	e := &fakeEngine{migrate: func(context.Context, move.MigrateOptions) error {
		return fmt.Errorf("cut over: %w", undone{})
	}}
	code, _, stderr := call(t, e, freePort(t), "migrate", "--yes")
	if code != exitUndone || !strings.Contains(stderr, "the cutover was undone (hint: ") {
		t.Errorf("got %d, %s", code, stderr)
	}
}

func TestWithoutATerminalNobodyIsAskedAndMigrateWantsToBeTold(t *testing.T) {
	t.Parallel()
	run := false
	e := &fakeEngine{migrate: func(context.Context, move.MigrateOptions) error { run = true; return nil }}
	code, _, stderr := call(t, e, freePort(t), "migrate")
	if code != exitUsage || run || !strings.Contains(stderr, "(hint: --yes to switch without asking, --hold to follow only)") {
		t.Errorf("neither --yes nor --hold: %d, run %v\n%s", code, run, stderr)
	}
	for _, test := range []struct {
		args        []string
		want, serve bool
	}{{[]string{"migrate", "--yes"}, true, false}, {[]string{"migrate", "--hold"}, false, false}, {[]string{"serve"}, false, true}} {
		e := &fakeEngine{migrate: func(ctx context.Context, o move.MigrateOptions) error {
			if got, err := o.Ready(ctx); err != nil || got != test.want || o.Serve != test.serve {
				return fmt.Errorf("ready: %v, serve: %v, %w", got, o.Serve, err)
			}
			return nil
		}}
		if code, _, stderr := call(t, e, freePort(t), test.args...); code != 0 {
			t.Error(stderr)
		}
	}
}

func TestOnlyAYesIsAYes(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false} {
		var said bytes.Buffer
		a := &app{stdin: strings.NewReader(answer), stderr: &said}
		got, err := a.ready(t.Context(), window{}, false, true)
		if err != nil || got != want || strings.Contains(said.String(), "Not cutting over: ") == want {
			t.Errorf("%q: %v, %v, %s", answer, got, err, said.String())
		}
	}
}

func TestStatusAsksTheRunningWorkerFirst(t *testing.T) {
	t.Parallel()
	listen := freePort(t)
	worker := &fakeEngine{status: move.Status{Move: "m", State: "copying"}}
	bookkeeping := &fakeEngine{status: move.Status{Move: "m", State: "created"}}
	worker.migrate = func(ctx context.Context, _ move.MigrateOptions) error {
		if err := waitFor(ctx, "http://"+listen+"/healthz"); err != nil {
			return err
		}
		code, stdout, stderr := call(t, bookkeeping, listen, "status", "--json")
		var s move.Status
		if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != 0 {
			return fmt.Errorf("status: %d, %w, %s", code, err, stderr)
		}
		if s.State != "copying" {
			return fmt.Errorf("the worker was not asked: %s", stdout)
		}
		return nil
	}
	if code, _, stderr := call(t, worker, listen, "migrate", "--yes"); code != 0 {
		t.Error(stderr)
	}
	code, stdout, _ := call(t, bookkeeping, listen, "status")
	if code != 0 || !strings.Contains(stdout, "state:  created") {
		t.Errorf("without a worker: %d, %s", code, stdout)
	}
}

func TestAnAddressInUseDoesNotStopTheMove(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listen := l.Addr().String()
	e := &fakeEngine{migrate: func(ctx context.Context, _ move.MigrateOptions) error {
		_ = l.Close() // the worker that had it has gone
		return waitFor(ctx, "http://"+listen+"/healthz")
	}}
	if code, _, stderr := call(t, e, listen, "migrate", "--yes"); code != 0 {
		t.Error(stderr)
	}
}

// waitFor asks a URL until it answers.
func waitFor(ctx context.Context, url string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

func TestASecondWorkerUsesTheTokenOfTheFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	t.Setenv(stateVariable, dir)
	t.Setenv(tokenVariable, "")
	first, err := makeToken("m")
	if err != nil || len(first) < 20 {
		t.Fatalf("token %q, %v", first, err)
	}
	second, err := makeToken("m")
	if err != nil || second != first {
		t.Errorf("second %q, %v", second, err)
	}
	info, err := os.Stat(filepath.Join(dir, tokenFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	t.Setenv(tokenVariable, "mine")
	if token, err := makeToken("m"); err != nil || token != "mine" {
		t.Errorf("token %q, %v", token, err)
	}
}

func TestTheEndOfAMoveNamesWhatStays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args           []string
		fenced         bool
		stdout, stderr string
	}{
		"cancel keeps the tables and says so before and after": {args: []string{"cancel"},
			stdout: "cancelled: the copied tables stay on the shards; drop them", stderr: "the copied tables stay on the shards; --drop-data drops them too"},
		"with --drop-data nothing is left":           {args: []string{"cancel", "--drop-data"}, stdout: "cancelled: nothing of it is left on any node; types, functions,"},
		"complete names the fence":                   {args: []string{"complete"}, fenced: true, stdout: "what stays: the layout record on every shard, and the fence on the retired source\n", stderr: "the move's report is written"},
		"complete again, after the fence was let go": {args: []string{"complete"}, stdout: "what stays: the layout record on every shard\n", stderr: "the move's report is written"},
	} {
		code, stdout, stderr := call(t, &fakeEngine{fenced: test.fenced, status: move.Status{Idle: true}}, freePort(t), test.args...)
		if code != 0 || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%s: %d\n%s%s", name, code, stdout, stderr)
		}
	}
}

package status

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pgreshard/move"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// streaming is a snapshot with a value in every part.
func streaming() move.Status {
	lag, seconds, rate, eta, freeze, stopped := int64(14000000), 3.25, 41000.0, 6.0, 0.0421, "stream of source 0: no <mapping>"
	finished := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return move.Status{
		Move: "split-prod", State: "streaming", Layout: move.StatusLayout{Serving: 1, Next: 2}, Error: &stopped,
		SafeToCutOver: move.SafeToCutOver{Because: []string{"stream of source 0 is 14 MB behind"}},
		Copy:          []move.CopyStatus{{Table: "public.orders", Rows: 120000, Bytes: 9000000, BytesTotal: 18000000, State: "copying"}},
		Streams: []move.StreamStatus{
			{Received: "0/5A3", Applied: "0/5A0", Confirmed: "0/5A0", LagBytes: &lag, LagSeconds: &seconds, RowsPerSecond: &rate, ETASeconds: &eta, Retained: &lag, Growth: &rate, Budget: &lag, LossSeconds: &eta},
			{Source: 1, Received: "0/0", Applied: "0/0", Confirmed: "0/0"},
		},
		Shards: []move.ShardStatus{{
			Node: "10.1.0.1:5432", Rows: move.RowCounts{Inserted: 1, Updated: 2, Deleted: 3}, ZeroRowChanges: 4,
			Transactions: 5, Batches: 2, ApplySeconds: 0.5,
		}},
		Lookup:  move.LookupStatus{Hits: 1, Misses: 2, Queries: 2, Bytes: 3, Entries: 4, QuerySeconds: 0.25},
		Verify:  move.VerifyStatus{State: "clean", At: []string{"0/59F"}, Finished: &finished, Rows: 10},
		Cutover: move.CutoverStatus{FreezeSeconds: &freeze},
	}
}

func ask(t *testing.T, s http.Handler, path string, headers ...string) (int, string, http.Header) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String(), w.Header()
}

func TestStatusHasTheShapeOfTheContract(t *testing.T) {
	t.Parallel()
	_, body, _ := ask(t, New(Config{Snapshot: streaming}), "/status")
	const contract = `{"move":"split-prod","state":"streaming","layout":{"serving":1,"next":2},"error":null,
 "safe_to_cut_over":{"ok":false,"because":["stream of source 0 is 14 MB behind"]},
 "copy":[{"source":0,"table":"public.orders","rows":120000,"bytes":9000000,"bytes_total":18000000,"state":"copying","eta_seconds":12}],
 "streams":[{"source":0,"received":"0/5A3","applied":"0/5A0","confirmed":"0/5A0","lag_bytes":14000000,"lag_seconds":3.2,"rows_per_second":41000,"eta_seconds":6}],
 "shards":[{"shard":0,"node":"10.1.0.1:5432","rows":{"inserted":1,"updated":2,"deleted":3},"zero_row_changes":0}],
 "lookup":{"hits":1,"misses":2,"queries":2,"bytes":3,"entries":4,"evictions":0},
 "verify":{"state":"clean","at":["0/59F"],"finished":"2026-01-01T00:00:00Z","differences":0},
 "cutover":{"step":"","freeze_seconds":null}}`
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(contract), &want), json.Unmarshal([]byte(body), &got)); err != nil {
		t.Fatal(err)
	}
	for _, path := range missing(want, got, "") {
		t.Errorf("%s is missing", path)
	}
	if !strings.Contains(body, `"lag_bytes":null,"lag_seconds":null,"rows_per_second":null,"eta_seconds":null`) {
		t.Error("a lag that was not measured is not null")
	}
}

// missing lists the keys of want that got has not.
func missing(want, got any, path string) []string {
	var list []string
	switch w := want.(type) {
	case map[string]any:
		g, _ := got.(map[string]any)
		for key, value := range w {
			if _, ok := g[key]; !ok {
				list = append(list, path+"."+key)
				continue
			}
			list = append(list, missing(value, g[key], path+"."+key)...)
		}
	case []any:
		if g, _ := got.([]any); len(w) > 0 && len(g) > 0 {
			return missing(w[0], g[0], path+"[]")
		}
	}
	return list
}

func TestAnEmptyStatusHasListsAndNoNull(t *testing.T) {
	t.Parallel()
	_, body, _ := ask(t, New(Config{Snapshot: func() move.Status { return move.Status{} }}), "/status")
	for _, part := range []string{`"because":[]`, `"waiting":[]`, `"alarms":[]`, `"copy":[]`, `"streams":[]`, `"shards":[]`, `"at":[]`} {
		if !strings.Contains(body, part) {
			t.Errorf("no %s in %s", part, body)
		}
	}
}

func TestMetricsLeaveOutWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	code, body, _ := ask(t, New(Config{Snapshot: streaming}), "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, body)
	}
	for _, line := range []string{
		`pgreshard_state{state="streaming"} 1`, `pgreshard_state{state="copying"} 0`, `pgreshard_layout_version 1`,
		`pgreshard_copy_rows_total{source="0",table="public.orders"} 120000`,
		`pgreshard_stream_lag_bytes{source="0"} 1.4e+07`, `pgreshard_stream_lag_seconds{source="0"} 3.25`,
		`pgreshard_applied_rows_total{op="delete",shard="0"} 3`, `pgreshard_applied_transactions_total{shard="0"} 5`,
		`pgreshard_batch_size_rows_sum{shard="0"} 6`, `pgreshard_batch_size_rows_count{shard="0"} 2`,
		`pgreshard_stream_rows_per_second{source="0"} 41000`, `pgreshard_slot_retained_bytes{source="0"} 1.4e+07`,
		`pgreshard_slot_retained_bytes_per_second{source="0"} 41000`, `pgreshard_slot_wal_budget_bytes{source="0"} 1.4e+07`, `pgreshard_slot_loss_seconds{source="0"} 6`, `pgreshard_alarms 0`, `pgreshard_waiting 0`,
		`pgreshard_apply_duration_seconds_sum{shard="0"} 0.5`, `pgreshard_zero_row_changes_total{shard="0"} 4`,
		`pgreshard_lookup_cache_hits_total 1`, `pgreshard_lookup_queries_total 2`, `pgreshard_lookup_query_duration_seconds_sum 0.25`,
		`pgreshard_verify_differences 0`, `pgreshard_freeze_seconds 0.0421`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	for _, part := range []string{`lag_bytes{source="1"}`, `rows_per_second{source="1"}`, `slot_retained_bytes{source="1"}`, "slot_safe_wal_size_bytes{", "copy_eta_seconds "} {
		if strings.Contains(body, part) {
			t.Errorf("%s was not measured", part)
		}
	}
}

func TestThePageEscapesAndIsHardened(t *testing.T) {
	t.Parallel()
	c := Config{Snapshot: func() move.Status {
		st := streaming()
		st.Streams[0].LagHistory = []float64{1, 2, -1, 4}
		st.Cutover.Steps = []move.StepReport{{Name: "freeze", Seconds: 0.0123}}
		return st
	}, Token: "t", Open: true, Words: func(st move.Status) string { return "in <words>: " + st.State },
		Events: func() []Event {
			return []Event{{At: time.Unix(0, 0), Level: "WARN", Text: "<script>alert(1)</script>"}}
		},
		Verbs: map[string]Verb{"verify": nil, "cutover": func(context.Context, json.RawMessage) (any, bool) { return nil, true }}}
	code, body, header := ask(t, New(c), "/")
	for _, part := range []string{"no &lt;mapping&gt;", "in &lt;words&gt;: streaming", "&lt;script&gt;alert(1)", "50 %", "refused for 0.042 s", "13.4 MB (3.250 s)", `aria-label="seconds behind, at most 4.0"`,
		"freeze <span class=\"unit\">0.012 s", "00:00:00 UTC", `data-body="{&#34;rehearse&#34;:true}"`, ">Cut over</button>", "new EventSource(\"/live\")", "prefers-color-scheme: dark"} {
		if code != http.StatusOK || !strings.Contains(body, part) {
			t.Errorf("%d: the page lacks %s", code, part)
		}
	}
	if strings.Contains(body, ">Verify</button>") {
		t.Error("a button for what the worker does not offer")
	}
	// The browser runs the script and takes the style only where they are what the policy names.
	for tag, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
		_, inner, _ := strings.Cut(body, "<"+tag+">")
		inner, _, _ = strings.Cut(inner, "</"+tag+">")
		sum := sha256.Sum256([]byte(inner))
		if want := directive + " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(header.Get("Content-Security-Policy"), want) {
			t.Errorf("the policy does not have %s: %s", want, header.Get("Content-Security-Policy"))
		}
	}
	if strings.Contains(body, "http://") || strings.Contains(body, "https://") {
		t.Error("the page loads from elsewhere")
	}
	c.Token = ""
	if _, body, _ := ask(t, New(c), "/"); strings.Contains(body, "<form") {
		t.Error("buttons although nothing can be asked")
	}
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Cache-Control"} {
		if header.Get(name) == "" {
			t.Errorf("no %s", name)
		}
	}
	if header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("another origin is let in")
	}
}

func TestEachPathAnswersWithItsCode(t *testing.T) {
	t.Parallel()
	config := Config{
		Snapshot: streaming,
		Layout:   func(context.Context) (any, error) { return map[string]int{"version": 1}, nil },
		Route: func(_ context.Context, table string, key []string) (any, error) {
			if table == "gone" {
				return nil, errors.New("no rule for gone")
			}
			return map[string]string{"table": table, "key": strings.Join(key, ",")}, nil
		},
	}
	open := New(config)
	config.Token, config.MetricsToken = "t", "m"
	guarded := New(config)
	for name, test := range map[string]struct {
		server *Server
		path   string
		token  string
		code   int
		body   string
	}{
		"a process that answers is healthy":       {open, "/healthz", "", 200, "ok"},
		"a stopped move is not ready":             {open, "/readyz", "", 503, "not ready"},
		"the layout":                              {open, "/layout", "", 200, `{"version":1}`},
		"the layout after an older one":           {open, "/layout?after=0", "", 200, `{"version":1}`},
		"the layout after nonsense":               {open, "/layout?after=x", "", 400, "not a layout version"},
		"a route":                                 {open, "/route?table=orders&key=42", "", 200, `{"key":"42","table":"orders"}`},
		"a route of a key of two columns":         {open, "/route?table=measures&key=42&key=eu", "", 200, `{"key":"42,eu","table":"measures"}`},
		"a route of an empty key":                 {open, "/route?key=", "", 200, `{"key":"","table":""}`},
		"a route without key":                     {open, "/route?table=orders", "", 400, "key is missing"},
		"a route there is not":                    {open, "/route?table=gone&key=1", "", 400, "no rule for gone"},
		"a path there is not":                     {open, "/nothing", "", 404, ""},
		"the token is asked for":                  {guarded, "/status", "", 401, "asks for the token"},
		"a wrong token is refused":                {guarded, "/status", "m", 401, ""},
		"the token opens":                         {guarded, "/status", "t", 200, "split-prod"},
		"the metrics token opens metrics":         {guarded, "/metrics", "m", 200, "pgreshard_state"},
		"the token opens metrics":                 {guarded, "/metrics", "t", 200, "pgreshard_state"},
		"health needs no token":                   {guarded, "/healthz", "", 200, ""},
		"the page needs the token, as the others": {guarded, "/", "", 401, ""},
	} {
		code, body, _ := ask(t, test.server, test.path, "Authorization", "Bearer "+test.token)
		if code != test.code || !strings.Contains(body, test.body) {
			t.Errorf("%s: got %d %q, want %d %q", name, code, body, test.code, test.body)
		}
	}
	w := httptest.NewRecorder()
	open.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/status", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered with %d", w.Code)
	}
}

func TestAMoveThatWaitsForAShardIsNotReadyAndSaysSo(t *testing.T) {
	t.Parallel()
	s := move.Status{Move: "m", State: "streaming"}
	server := New(Config{Snapshot: func() move.Status { return s }})
	if code, body, _ := ask(t, server, "/readyz"); code != http.StatusOK {
		t.Errorf("%d: %s", code, body)
	}
	s.Waiting = []string{"destination shard 1 at 10.1.0.2:5432 does not answer: connection refused"}
	if code, body, _ := ask(t, server, "/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, "10.1.0.2") {
		t.Errorf("%d: %s", code, body)
	}
	if _, body, _ := ask(t, server, "/"); !strings.Contains(body, `<p class="error">destination shard 1 at 10.1.0.2:5432 does not answer`) {
		t.Errorf("the page does not name the shard: %s", body)
	}
	if _, body, _ := ask(t, server, "/metrics"); !strings.Contains(body, "\npgreshard_waiting 1\n") {
		t.Error("the metrics do not say that it waits")
	}
}

func TestLayoutWaitsForANewerOne(t *testing.T) {
	t.Parallel()
	var serving atomic.Int64
	serving.Store(1)
	asked := make(chan struct{}, 100)
	s := New(Config{
		Snapshot: func() move.Status {
			select {
			case asked <- struct{}{}:
			default:
			}
			return move.Status{Layout: move.StatusLayout{Serving: int(serving.Load())}}
		},
		Layout: func(context.Context) (any, error) { return map[string]int64{"version": serving.Load()}, nil },
	})
	answer := make(chan string, 1)
	go func() {
		_, body, _ := ask(t, s, "/layout?after=1")
		answer <- body
	}()
	<-asked
	<-asked // it has seen layout 1 twice and waits
	serving.Store(2)
	if body := <-answer; body != "{\"version\":2}\n" {
		t.Errorf("got %q", body)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- New(Config{Snapshot: streaming}).Serve(ctx, l) }()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.Addr().String()+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if string(body) != "ok\n" {
		t.Errorf("got %q", body)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

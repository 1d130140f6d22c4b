package status

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func post(t *testing.T, s http.Handler, body string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://worker:7432/cutover", strings.NewReader(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestAVerbWantsTheTokenAndNoOtherOrigin(t *testing.T) {
	t.Parallel()
	var ran []string
	fails := false
	c := Config{Snapshot: streaming, Token: "secret", MetricsToken: "metrics", Open: true,
		Verbs: map[string]Verb{"cutover": func(_ context.Context, body json.RawMessage) (any, bool) {
			ran = append(ran, string(body))
			return map[string]int{"exit": 0}, !fails
		}}}
	s := New(c)
	const bearer = "Bearer secret"
	for name, test := range map[string]struct {
		body    string
		headers []string
		code    int
	}{
		"no token":                  {"", nil, http.StatusUnauthorized},
		"another token":             {"", []string{"Authorization", "Bearer other"}, http.StatusUnauthorized},
		"the token for metrics":     {"", []string{"Authorization", "Bearer metrics"}, http.StatusUnauthorized},
		"the token as a password":   {"", []string{"Authorization", "Basic eDpzZWNyZXQ="}, http.StatusUnauthorized},
		"a page of another site":    {"", []string{"Authorization", bearer, "Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"a page of the same site":   {"", []string{"Authorization", bearer, "Sec-Fetch-Site", "same-site"}, http.StatusForbidden},
		"another origin":            {"", []string{"Authorization", bearer, "Origin", "http://worker:8000"}, http.StatusForbidden},
		"an origin that is opaque":  {"", []string{"Authorization", bearer, "Origin", "null"}, http.StatusForbidden},
		"a body that is not JSON":   {"{", []string{"Authorization", bearer}, http.StatusBadRequest},
		"a body that is very large": {`"` + strings.Repeat("x", maxBody) + `"`, []string{"Authorization", bearer}, http.StatusBadRequest},
	} {
		if code, body := post(t, s, test.body, test.headers...); code != test.code || len(ran) != 0 {
			t.Errorf("%s: %d %s, it ran %d times", name, code, body, len(ran))
		}
	}
	for _, headers := range [][]string{
		{"Authorization", bearer},
		{"Authorization", bearer, "Origin", "http://worker:7432", "Sec-Fetch-Site", "same-origin"},
	} {
		ran = nil
		if code, body := post(t, s, `{"rehearse":true}`, headers...); code != http.StatusOK || body != "{\"exit\":0}\n" || len(ran) != 1 || ran[0] != `{"rehearse":true}` {
			t.Errorf("%q: %d %s, it ran with %q", headers, code, body, ran)
		}
	}
	fails = true
	if code, body := post(t, s, "", "Authorization", bearer); code != http.StatusConflict || body != "{\"exit\":0}\n" {
		t.Errorf("a verb that failed: %d %s", code, body)
	}
	if code, _, _ := ask(t, s, "/cutover", "Authorization", bearer); code != http.StatusMethodNotAllowed {
		t.Errorf("GET /cutover: %d", code)
	}
	c.Token = ""
	if code, _ := post(t, New(c), ""); code != http.StatusNotFound && code != http.StatusMethodNotAllowed {
		t.Errorf("without a token of its own a server answers a POST with %d", code)
	}
}

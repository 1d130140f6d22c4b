package status

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pgreshard/move"
)

// Config is what a Server reads. Every func is called from many goroutines at once.
type Config struct {
	// Snapshot is the move as it stands; it must answer at once and ask no database.
	Snapshot func() move.Status
	// Layout is the serving layout, Route where a key (a value for each of its columns) lives, both as values that become
	// JSON. Where one is nil, its path is not served.
	Layout func(context.Context) (any, error)
	Route  func(ctx context.Context, table string, key []string) (any, error)
	// Report is what the move can show for itself, and writes it as a page where there is one to write to. nil: not served.
	Report func(ctx context.Context, page io.Writer) (any, error)
	// Words say what a status means; Events are what happened last, the latest first. nil: the page does without.
	Words  func(move.Status) string
	Events func() []Event
	// Verbs are what may be asked by POST, by name. Each asks for Token wherever it comes from, and without one is refused.
	Verbs map[string]Verb

	// Token, where Open is not set, is asked for on every path but /healthz and /readyz. MetricsToken opens /metrics as well.
	Token        string
	Open         bool // GET asks for no token
	MetricsToken string
	// Cert and Key are files of PEM; both empty: no TLS.
	Cert, Key string
}

// Server answers over HTTP. It is a http.Handler, for tests, and Serve gives it a port.
type Server struct {
	config  Config
	handler http.Handler
}

// New makes a Server.
func New(c Config) *Server {
	s := &Server{config: c}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{snapshot: c.Snapshot})

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	read := c.Token
	if c.Open {
		read = ""
	}
	mux.Handle("GET /{$}", s.guard(http.HandlerFunc(s.page), read))
	mux.Handle("GET /live", s.guard(http.HandlerFunc(s.live), read))
	mux.Handle("GET /events", s.guard(http.HandlerFunc(s.events), read))
	mux.Handle("GET /status", s.guard(http.HandlerFunc(s.status), read))
	mux.Handle("GET /metrics", s.guard(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), read, c.MetricsToken))
	if c.Layout != nil {
		mux.Handle("GET /layout", s.guard(http.HandlerFunc(s.layout), read))
	}
	if c.Report != nil {
		mux.Handle("GET /report.json", s.guard(http.HandlerFunc(s.reportJSON), read))
		mux.Handle("GET /report", s.guard(http.HandlerFunc(s.reportPage), read))
	}
	if c.Route != nil {
		mux.Handle("GET /route", s.guard(http.HandlerFunc(s.route), read))
	}
	if c.Token != "" {
		for name, run := range c.Verbs {
			mux.Handle("POST /"+name, s.guard(s.verb(run), c.Token))
		}
	}
	s.handler = harden(mux)
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// The limits of a request. A reply may take as long as /layout waits, and a little more.
const (
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	replyTimeout   = layoutWait + 10*time.Second
	idleTimeout    = time.Minute
	maxHeaderBytes = 16 << 10
	closeTimeout   = 2 * time.Second
)

// Serve answers on l until ctx ends, then lets requests in flight finish for two seconds. It owns l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      replyTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() {
		if s.config.Cert != "" {
			ended <- server.ServeTLS(l, s.config.Cert, s.config.Key)
		} else {
			ended <- server.Serve(l)
		}
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := server.Shutdown(last)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	<-ended
	return err
}

// guard asks for one of the tokens, where the first is set.
func (s *Server) guard(next http.Handler, tokens ...string) http.Handler {
	if tokens[0] == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if _, password, ok := r.BasicAuth(); ok && r.Method == http.MethodGet { // a browser asks its user for it
			given = password
		}
		for _, token := range tokens {
			if token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(token)) == 1 {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Add("WWW-Authenticate", `Bearer realm="pgreshard"`)
		if r.Method == http.MethodGet {
			w.Header().Add("WWW-Authenticate", `Basic realm="pgreshard: any name, the token as password"`)
		}
		problem(w, http.StatusUnauthorized, "this path asks for the token (Authorization: Bearer …)")
	})
}

// harden sets the headers of every reply: nothing may frame it, guess its type, keep it or load from elsewhere. No
// other origin is allowed in.
func harden(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

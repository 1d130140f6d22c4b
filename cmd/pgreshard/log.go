package main

import (
	"context"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"

	"pgreshard/status"
)

// newLogger writes to w, as lines of text or of JSON. Nothing it writes holds an address or a password, whatever it
// is given.
func newLogger(w io.Writer, format string) (*slog.Logger, error) {
	options := &slog.HandlerOptions{ReplaceAttr: redactAttr}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usage("--log-format text, or json", "--log-format %q is not a format", format)
}

// recent keeps the last lines of a log, for the page.
type recent struct {
	mu   sync.Mutex
	list []status.Event
}

const recentMost = 40

// events are the last lines, the latest first.
func (r *recent) events() []status.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.list)
	slices.Reverse(out)
	return out
}

// keeping is a log whose last lines are kept as well.
func (r *recent) keeping(log *slog.Logger) *slog.Logger {
	return slog.New(keeper{Handler: log.Handler(), kept: r})
}

// keeper hands lines on and keeps them.
type keeper struct {
	slog.Handler
	kept  *recent
	attrs []slog.Attr
}

func (k keeper) WithAttrs(attrs []slog.Attr) slog.Handler {
	return keeper{k.Handler.WithAttrs(attrs), k.kept, append(slices.Clip(k.attrs), attrs...)}
}

func (k keeper) Handle(ctx context.Context, line slog.Record) error {
	var text strings.Builder
	text.WriteString(redact(line.Message))
	add := func(a slog.Attr) bool {
		text.WriteString(", " + a.Key + " " + redactAttr(nil, a).Value.String())
		return true
	}
	for _, a := range k.attrs {
		add(a)
	}
	line.Attrs(add)
	k.kept.mu.Lock()
	k.kept.list = append(k.kept.list, status.Event{At: line.Time, Level: line.Level.String(), Text: text.String()})
	if n := len(k.kept.list) - recentMost; n > 0 {
		k.kept.list = slices.Delete(k.kept.list, 0, n)
	}
	k.kept.mu.Unlock()
	return k.Handler.Handle(ctx, line)
}

func redactAttr(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(redact(v))
	case error:
		a.Value = slog.StringValue(redact(v.Error()))
	}
	return a
}

var (
	addressForm  = regexp.MustCompile(`\b(postgres(?:ql)?|nats|tls)://[^\s"'<>]+`)
	passwordForm = regexp.MustCompile(`\b(password|sslpassword)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)`)
)

// redact takes connection strings out of a text. The packages below never put one in; this is the last gate, for
// what a library may say.
func redact(text string) string {
	text = addressForm.ReplaceAllString(text, "$1://…")
	return passwordForm.ReplaceAllString(text, "$1=…")
}

package main

import (
	"io"
	"log/slog"
	"regexp"
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

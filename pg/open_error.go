package pg

import (
	"slices"
	"strings"
)

// openError is why no session could be opened, told in one line: each address that was tried, once. That a server speaks
// no TLS is told only where nothing else is, because it is then asked without (sslmode prefer).
type openError struct{ err error }

func (e *openError) Unwrap() error { return e.err }

func (e *openError) Error() string {
	text := e.err.Error()
	if head, rest, ok := strings.Cut(text, "`:"); ok && strings.HasPrefix(head, "failed to connect to `") {
		text = rest
	}
	var tried []string
	for line := range strings.Lines(text) {
		if line = strings.Replace(strings.TrimSpace(line), "ValidateConnect failed: ", "", 1); line != "" && !slices.Contains(tried, line) {
			tried = append(tried, line)
		}
	}
	told := slices.DeleteFunc(slices.Clone(tried), func(line string) bool { return strings.HasSuffix(line, "server refused TLS connection") })
	if len(told) == 0 {
		told = tried
	}
	return strings.Join(told, "; ")
}

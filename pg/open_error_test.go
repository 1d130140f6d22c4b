package pg

import (
	"errors"
	"testing"
)

func TestAnErrorOfAConnectionIsOneLineWithoutWhatWasTriedFirst(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		"failed to connect to `user=u database=d`:\n\t127.0.0.1:1 (localhost): tls error: server refused TLS connection\n\t127.0.0.1:1 (localhost): server error: FATAL: no pg_hba.conf entry": "127.0.0.1:1 (localhost): server error: FATAL: no pg_hba.conf entry",
		"failed to connect to `user=u database=d`:\n\t127.0.0.1:1 (h): dial error: refused\n\t127.0.0.1:1 (h): dial error: refused\n\t127.0.0.2:1 (h): dial error: refused":                    "127.0.0.1:1 (h): dial error: refused; 127.0.0.2:1 (h): dial error: refused",
		"failed to connect to `user=u database=d`: 127.0.0.1:1 (h): tls error: server refused TLS connection":                                                                                  "127.0.0.1:1 (h): tls error: server refused TLS connection",
		"the environment variable X is not set": "the environment variable X is not set",
	} {
		cause := errors.New(said)
		e := &openError{cause}
		if got := e.Error(); got != want || !errors.Is(e, cause) {
			t.Errorf("%q", got)
		}
	}
}

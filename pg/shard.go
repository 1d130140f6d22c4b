package pg

import (
	"fmt"
	"strings"
)

// Shard is how to reach one shard's primary. URL is asked anew at every connect, so that a rotated password or a
// moved leader needs no restart; it may name several hosts, of which the one that leads is found.
type Shard struct {
	Side   string // "source" or "destination", for messages; may be empty
	Number int
	URL    func() (string, error)
	Known  *Known // nil: nothing is expected of its nodes, and nothing remembered
	// Settings are sent at the start of every session beside those that all sessions have.
	Settings map[string]string
}

// FixedURL makes a Shard of an address that does not change.
func FixedURL(number int, url string) Shard {
	return Shard{Number: number, URL: func() (string, error) { return url, nil }}
}

// String names the shard in messages; it never shows the URL.
func (s Shard) String() string {
	return strings.TrimLeft(fmt.Sprintf("%s shard %d", s.Side, s.Number), " ")
}

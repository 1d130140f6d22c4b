package pg

import "fmt"

// Shard is how to reach one shard's primary. URL is asked anew at every connect, so that a rotated password or a
// moved leader needs no restart; it may name several hosts.
type Shard struct {
	Number int
	URL    func() (string, error)
}

// FixedURL makes a Shard of an address that does not change.
func FixedURL(number int, url string) Shard {
	return Shard{Number: number, URL: func() (string, error) { return url, nil }}
}

// String names the shard in messages; it never shows the URL.
func (s Shard) String() string { return fmt.Sprintf("shard %d", s.Number) }

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
)

// screen is a terminal whose last lines are redrawn in place. What else is written goes above them.
type screen struct {
	out io.Writer

	mu    sync.Mutex
	lines []string // drawn last, each narrower than the terminal
}

// draw puts lines in place of those drawn before.
func (s *screen) draw(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	s.erase(&b)
	s.lines = lines
	s.redraw(&b)
	_, _ = s.out.Write(b.Bytes()) // a terminal that is gone stops no move
}

// Write puts text, which ends in a newline, above the drawn lines.
func (s *screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	s.erase(&b)
	b.Write(text)
	s.redraw(&b)
	if _, err := s.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// erase moves the cursor to the first drawn line and clears to the end of the terminal.
func (s *screen) erase(b *bytes.Buffer) {
	if len(s.lines) > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", len(s.lines))
	}
}

func (s *screen) redraw(b *bytes.Buffer) {
	for _, line := range s.lines {
		b.WriteString(line)
		b.WriteByte('\n')
	}
}

// terminal says whether a person reads or types there.
func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

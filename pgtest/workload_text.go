package pgtest

import (
	"math/rand/v2"
	"strings"
)

const bigText = 20 << 10

// text is NULL, short, or too large to stay in its row.
func (w *writer) text() *string {
	var text string
	switch n := w.random.IntN(10); {
	case n < 2:
		return nil
	case n < 8 || w.load.o.Narrow:
		text = strings.Repeat("Größe \\N\t'\"\n", w.random.IntN(4))
	default:
		text = randomText(w.random, bigText)
	}
	return &text
}

// randomText does not compress.
func randomText(random *rand.Rand, n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
	b := make([]byte, n)
	for i := range b {
		b[i] = letters[random.IntN(len(letters))]
	}
	return string(b)
}

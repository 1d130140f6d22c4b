package move

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/sink"
)

func TestLagIsMeasuredFromTheLatestPositionThatIsApplied(t *testing.T) {
	t.Parallel()
	var l lagMeter
	start := time.Now()
	after := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	if _, _, ok := l.at(100, start); ok {
		t.Error("a lag is known before the source was asked")
	}
	// A stream that is constantly half a second behind, asked four times a second, never is level and never grows older.
	for i := range 5000 {
		l.asked(pg.LSN(100*(i+1)), after(float64(i)/4))
		bytes, age, ok := l.at(pg.LSN(100*max(1, i-1)), after(float64(i)/4))
		if i > 2 && (bytes != 200 || age != 500*time.Millisecond || !ok) {
			t.Fatalf("asked %d times: %d bytes, %v, %v", i, bytes, age, ok)
		}
	}
	// One that stands still falls behind, however often the source is asked.
	from, _, _ := l.at(499_900, after(1250))
	for i := 5000; i < 20_000; i++ {
		l.asked(pg.LSN(100*(i+1)), after(float64(i)/4))
	}
	bytes, age, _ := l.at(499_900, after(5000))
	if from != 100 || bytes != 1_500_100 || age < 3750*time.Second || age > 3751*time.Second {
		t.Errorf("after standing still: from %d to %d bytes, %v", from, bytes, age)
	}
	if bytes, _, _ := l.at(2_000_000, after(5000)); bytes != 0 {
		t.Errorf("level again, %d bytes are lacking", bytes)
	}
}

func TestALagGrowsWhoeverAsksTheSourceAndNeverShrinksByAnAnswerThatComesLate(t *testing.T) {
	t.Parallel()
	var l lagMeter
	start := time.Now()
	l.asked(100, start)
	l.asked(500, start.Add(time.Second))
	l.asked(300, start.Add(2*time.Second)) // asked before the other and answered after it
	if bytes, age, ok := l.at(100, start.Add(2*time.Second)); bytes != 400 || age != 2*time.Second || !ok {
		t.Errorf("%d bytes, %v, %v", bytes, age, ok)
	}
}

func TestACutoverIsRefusedWhileALagIsUnknown(t *testing.T) {
	t.Parallel()
	m := New(Config{MaxLag: 1 << 20, Destination: Side{Shards: make([]pg.Shard, 1)}}, slog.New(slog.DiscardHandler))
	m.state, m.followers = StateStreaming, []*follower{{move: m, sink: new(sink.Stream)}}
	_, err := m.Cutover(t.Context(), CutoverOptions{})
	var refused *NotReadyError
	if !errors.As(err, &refused) || strings.Join(refused.Because, "; ") != "how far the stream of source 0 is behind is not known yet" {
		t.Errorf("it is refused because of %v", err)
	}
}

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/verify"
)

func ptr[T any](v T) *T { return &v }

func TestStatusEndsWithWhetherItIsSafe(t *testing.T) {
	t.Parallel()
	lagging := move.Status{
		Move: "m", State: "streaming", Layout: move.StatusLayout{Serving: 1, Next: 2}, Error: ptr("table t: no mapping"),
		SafeToCutOver: move.SafeToCutOver{Because: []string{"source 0 is 14 MB behind", "nothing was verified"}},
		Streams:       []move.StreamStatus{{LagBytes: ptr(int64(14 << 20)), LagSeconds: ptr(3.21), RowsPerSecond: ptr(41000.0), ETASeconds: ptr(6.0)}, {Source: 1}},
	}
	for name, test := range map[string]struct {
		status move.Status
		want   []string
	}{
		"not safe": {lagging, []string{
			"layout 1 serves\n", "error:  table t: no mapping\n", "source 0 14.0 MB behind (3.2 s), 41000 rows/s, about 6.0 s to catch up\n",
			"move:   m, layout 1 to layout 2; layout 1 serves\n", "source 1 lag not known\n", "safe to cut over: no, because source 0 is 14 MB behind; nothing was verified\n",
		}},
		"safe": {move.Status{SafeToCutOver: move.SafeToCutOver{OK: true}}, []string{"safe to cut over: yes\n"}},
		"switched, with the freeze": {
			move.Status{State: "switched", Layout: move.StatusLayout{Serving: 2, Next: 2}, Cutover: move.CutoverStatus{FreezeSeconds: ptr(0.0421)}},
			[]string{"move:   , layout 1 to layout 2; layout 2 serves\n", "state:  switched: layout 2 serves\n", "freeze: writes were refused for 0.042 s\n"},
		},
		"copying": {
			move.Status{State: "copying", CopyETA: ptr(75.0), Copy: []move.CopyStatus{
				{Rows: 10, Bytes: 1 << 20, BytesTotal: 2 << 20, State: "copying", ETASeconds: ptr(12.0)}, {State: "done"},
			}, Streams: []move.StreamStatus{{Retained: ptr(int64(16 << 20)), SafeWAL: ptr(int64(1 << 30))}}},
			[]string{"copy:   50 %, 1.0 MB of 2.0 MB, 10 rows, 1 of 2 tables, about 1m15s left\nslot:   source 0 keeps 16.0 MB of log, and is lost once 1.0 GB more are written\n"},
		},
		"a shard that does not answer": {
			move.Status{State: "streaming", Waiting: []string{"destination shard 1 at h:1 does not answer: connection refused"}},
			[]string{"\nwaits:  destination shard 1 at h:1 does not answer: connection refused\n"},
		},
		"no worker, streaming": {
			move.Status{State: "streaming", Idle: true, Layout: move.StatusLayout{Serving: 1, Next: 2}, Fences: []move.FenceStatus{{}}},
			[]string{"state:  streaming: everything is copied; the destination stands still while the slot keeps the source's log; no worker runs: pgreshard migrate goes on\n",
				"fence:  source 0 lets writes pass\n"},
		},
		"no worker, in a freeze": {
			move.Status{State: "cutting_over", Idle: true, Layout: move.StatusLayout{Serving: 1, Next: 2}, Fences: []move.FenceStatus{
				{Refuses: true, Until: ptr(time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC))}, {Source: 1, Refuses: true}}},
			[]string{"state:  cutting_over: a cutover was interrupted; no worker runs: ", "fence:  source 0 refuses writes until 2026-01-01T02:00:00Z\n",
				"fence:  source 1 is sealed: it refuses writes until pgreshard migrate or cancel decides\n"},
		},
		"no worker, completed": {
			move.Status{State: "completed", Idle: true, Layout: move.StatusLayout{Serving: 2, Next: 2}, Fences: []move.FenceStatus{{Refuses: true}}},
			[]string{"state:  completed: the move is done and cleaned up\n", "fence:  source 0 refuses writes for good\n"},
		},
		"a home that does not answer": {
			move.Status{Move: "m", Layout: move.StatusLayout{Next: 2}},
			[]string{"move:   m, layout 1 to layout 2; which layout serves is not known\nstate:  not known yet\n"},
		},
	} {
		var b bytes.Buffer
		if err := writeStatus(&b, test.status); err != nil {
			t.Fatal(err)
		}
		for _, part := range test.want {
			if !strings.Contains(b.String(), part) {
				t.Errorf("%s: no %q in\n%s", name, part, b.String())
			}
		}
		lines := strings.Split(strings.TrimSpace(b.String()), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "safe to cut over: ") {
			t.Errorf("%s: ends with %q", name, last)
		}
	}
}

func TestBarsAreRedrawnInPlaceAndNeverWrap(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	s := &screen{out: &b}
	long := move.CopyStatus{Table: "public." + strings.Repeat("x", 200), State: "copying", Bytes: 1, BytesTotal: 2}
	s.draw(progressLines(move.Status{State: "copying", Copy: []move.CopyStatus{long}}))
	if _, err := s.Write([]byte("a log line\n")); err != nil {
		t.Fatal(err)
	}
	s.draw([]string{"done"})

	parts := strings.Split(b.String(), "\x1b[3A\r\x1b[J")
	if len(parts) != 3 || !strings.HasPrefix(parts[1], "a log line\ncopying: ") || parts[2] != "done\n" {
		t.Errorf("got %q", b.String())
	}
	for line := range strings.Lines(parts[0]) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > lineWidth {
			t.Errorf("%d characters: %q", n, line)
		}
	}
}

func TestProgressFitsOneLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status move.Status
		want   string
	}{
		{move.Status{State: "schema"}, "schema"},
		{move.Status{State: "copying", Copy: []move.CopyStatus{{Bytes: 5 << 30, BytesTotal: 10 << 30}}}, "copying: 50 %, 5.0 GB of 10.0 GB, 0 rows, 0 of 1 tables"},
		{move.Status{State: "streaming", Streams: []move.StreamStatus{{LagBytes: ptr(int64(0))}}}, "streaming: source 0 0 B behind"},
		{move.Status{State: "streaming", Streams: []move.StreamStatus{{LagBytes: ptr(int64(0)), RowsPerSecond: ptr(0.0)}}, Waiting: []string{"x"}}, "streaming: source 0 0 B behind, 0 rows/s: waits: x"},
		{move.Status{State: "copying"}, "copying: what is to be copied is being looked at"},
		{move.Status{}, ""},
		{move.Status{State: "cutting_over", Cutover: move.CutoverStatus{Step: "drain"}}, "cutting_over: drain"},
	} {
		if got := progressLine(test.status); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestARowThatBelongsNowhereIsSaidToHaveNoShard(t *testing.T) {
	t.Parallel()
	for want, text := range map[int]string{1: "misplaced (7), shard 0, belongs on shard 1", verify.Nowhere: "misplaced (7), shard 0, has no shard: no rule or mapping names one"} {
		if got := findingWords(verify.Finding{What: "misplaced", Key: "(7)", Shard: ptr(0), Want: &want}); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

func TestTheLastLineOfAPlanFitsWhatItFound(t *testing.T) {
	t.Parallel()
	one := layout.Problem{Table: "t", What: "w", Hint: "h"}
	for want, plan := range map[string]*move.Plan{
		"\n1 problem blocks the move\n":                                           {Problems: layout.Problems{one}},
		"\n2 problems block the move\n":                                           {Problems: layout.Problems{one, one}},
		"\nnothing blocks the move; pgreshard migrate will\n  1. make the tables": {},
		"\nnothing blocks the move, which is made already and is streaming: pgreshard status shows it, pgreshard migrate goes on from there\n": {State: "streaming"},
		"\nnothing blocks the move, which is completed already: pgreshard status shows it\n":                                                   {State: "completed"},
	} {
		var b bytes.Buffer
		if err := (planReport{plan}).WriteText(&b); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s%v", want, b.String(), err)
		}
	}
}

func TestATableThatWasWrittenWhileItWasComparedIsNeitherCleanNorDifferent(t *testing.T) {
	t.Parallel()
	r := verifyReport{Report: &verify.Report{Tables: []verify.TableReport{{Table: "public.a", State: verify.Clean}, {Table: "public.b", State: verify.Changed}}}}
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "public.b: was written while it was compared: no row differs, and nothing is proved\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
	if r.OK() || !r.Moving() {
		t.Error("it is clean, or not told from a difference")
	}
	if r.Tables[0].State = verify.Differs; r.Moving() {
		t.Error("a difference beside it is passed over")
	}
}

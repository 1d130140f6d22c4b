package main

import (
	"strings"
	"testing"

	"pgreshard/move"
	"pgreshard/verify/fanout"
)

// What both sides said stands beside each other; a difference ends with 3, a shard that did not answer with 1 whatever the rest says.
func TestACheckShowsBothSidesAndEndsWithWhatItMeans(t *testing.T) {
	t.Parallel()
	text := func(list ...string) (out []*string) {
		for i := range list {
			out = append(out, &list[i])
		}
		return out
	}
	comparison := func(state fanout.State, failures ...fanout.Failure) *fanout.Comparison {
		c := &fanout.Comparison{Table: "public.orders", Aggregates: []string{"count", "sum(amount)"}, GroupBy: []string{"status"}, Where: "amount > 0\n and true", State: state,
			Lines: []fanout.Line{
				{Group: text("new"), Source: text("20", "7.50"), Destination: text("20", "7.50")},
				{Group: []*string{nil}, Source: text("1", "\n"+strings.Repeat("9", 99)), Destination: []*string{nil, nil}},
				{Group: text("gone"), Source: text("1", "3")},
			},
			Source: &fanout.Answer{}, Destination: &fanout.Answer{Failures: failures}}
		if state == fanout.Differs {
			c.Lines[2].Differs = c.Aggregates
		}
		return c
	}
	gone := fanout.Failure{Shard: 1, Node: "10.1.0.2:5432", Reason: "unavailable"}
	nobody := fanout.Failure{Shard: 2, Reason: "error", Code: "42P01"}
	for name, test := range map[string]struct {
		checks []*fanout.Comparison
		at     []string
		code   int
		stdout []string
		stderr string
	}{
		"equal": {checks: []*fanout.Comparison{comparison(fanout.Equal)}, at: []string{"0/5A3", "0/1"}, stdout: []string{
			"check of public.orders where amount > 0 and true: equal\n", "   status               source  ", "new     sum(amount)  7.50   ", "null    count        1 ",
			"�" + strings.Repeat("9", 63) + "…", "exactly as of 0/5A3, 0/1 on the sources\n"}},
		"different": {checks: []*fanout.Comparison{comparison(fanout.Equal), comparison(fanout.Differs)}, code: exitCheck,
			stdout: []string{": differs\n", "gone    count        1 ", "-  differs\n", "each node as it was when it was asked\n"}, stderr: "source and destination differ (hint: rows on their way"},
		"partial": {checks: []*fanout.Comparison{comparison(fanout.Differs), comparison(fanout.Partial, gone, nobody)}, code: exitFailed,
			stdout: []string{": partial\n  destination shard 1 at 10.1.0.2:5432: unavailable\n  destination shard 2: error (SQLSTATE 42P01)\n"}, stderr: "nothing is proved (hint: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &fakeEngine{checks: &move.CheckReport{Consistency: fanout.Strong, At: test.at, Checks: test.checks}}
			more := "\"\n[[checks]]\ntable = \"orders\"\naggregates = [\"count\"]\nwhere = \"" // behind the address, before its quote
			code, stdout, stderr := call(t, e, freePort(t)+more, "check")
			for _, part := range test.stdout {
				if !strings.Contains(stdout, part) {
					t.Errorf("it does not say %q:\n%s", part, stdout)
				}
			}
			if code != test.code || !strings.Contains(stderr, test.stderr) {
				t.Errorf("%d\n%s", code, stderr)
			}
		})
	}
}

func TestKeysOfACheckAreTexts(t *testing.T) {
	t.Parallel()
	c, err := parseConfig("x", []byte(small+"[[checks]]\ntable = \"o\"\naggregates = [\"count\"]\nkeys = [42, \"a\", [7, \"eu\"]]\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"42"}, {"a"}, {"7", "eu"}}
	got := c.checks()[0].Keys
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if strings.Join(got[i], "|") != strings.Join(want[i], "|") {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}

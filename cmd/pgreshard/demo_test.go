package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

func TestTheDemoThereAndBack(t *testing.T) {
	t.Parallel()
	pgtest.OneIn(t, 3)
	p := start(t, nil, "demo", "--scene", "rollback")
	code, said := p.wait(t)
	if out := p.out.String(); code != exitDone || !strings.Contains(out, "the writers go on against the source again\n") || !strings.Contains(out, "the writers' ledger: each of the ") {
		t.Errorf("it ended with %d:\n%s", code, said)
	}
}

// The demo with relays before its servers tells what passed there, and no value of a row.
func TestTheDemoOverAWire(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "demo", "--wire", "--delay", "100us")
	code, said := p.wait(t)
	out := p.out.String()
	if code != exitDone {
		t.Fatalf("it ended with %d:\n%s", code, said[max(0, len(said)-4000):])
	}
	for i := range 1 + demoShards {
		found := regexp.MustCompile(fmt.Sprintf(`(?m)^%s +(\d+) +(\d+) +([0-9.]+) MB +([0-9.]+) MB$`, demoDatabase(i))).FindStringSubmatch(out)
		if found == nil {
			t.Fatalf("nothing is told of %s:\n%s", demoDatabase(i), out)
		}
		sessions, _ := strconv.Atoi(found[1])
		trips, _ := strconv.Atoi(found[2])
		moved, _ := strconv.ParseFloat(found[map[bool]int{true: 3, false: 4}[i == 0]], 64) // from the source, to a shard
		if sessions < 5 || trips < 5*sessions/2 || moved < 1 {
			t.Errorf("of %s: %q", demoDatabase(i), found[0])
		}
	}
	for _, line := range []string{`(?m)^app: .*XLogData`, `(?m)^app_0: .*CopyData`, `(?m)^app_3: .*Bind`} {
		if !regexp.MustCompile(line).MatchString(said) {
			t.Errorf("no line like %s", line)
		}
	}
	if value := regexp.MustCompile(`.*user[0-9]+@[0-9]+\.example.*`).FindString(said); value != "" { // a user's address
		t.Errorf("a value is printed: %.300q", value)
	}
}

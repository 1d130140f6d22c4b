package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// realMove is a database of 1000 rows, two empty ones, and the file that moves the one to the two.
func realMove(t *testing.T) (file string, source *pgtest.DB, shards []*pgtest.DB) {
	t.Helper()
	cluster := pgtest.Shared(t)
	source, shards = cluster.Database(t), []*pgtest.DB{cluster.Database(t), cluster.Database(t)}
	source.Exec(t, `create table orders (id bigint primary key, tenant_id bigint not null, note text);
		create table countries (code text primary key);
		insert into orders select g, g % 10, 'note ' || g from generate_series(1, 1000) g;
		insert into countries values ('DE'), ('FR')`)
	file = filepath.Join(t.TempDir(), "pgreshard.toml")
	text := fmt.Sprintf(`[move]
name = "m%d"
[source]
database = "prod"
layout = 1
[[source.shards]]
url = %q
[destination]
database = "next"
layout = 2
[[destination.shards]]
url = %q
[[destination.shards]]
url = %q
[cutover]
reverse = false
[http]
listen = %q
[[sharded_tables]]
column = "tenant_id"
[[omnisharded_tables]]
tables = ["countries"]
`, cluster.Port, source.URL(), shards[0].URL(), shards[1].URL(), freePort(t))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file, source, shards
}

// cli runs the program as it is.
func cli(t *testing.T, file string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, trouble bytes.Buffer
	code = run(t.Context(), append([]string{"-c", file}, args...), strings.NewReader(""), &out, &trouble)
	return code, out.String(), trouble.String()
}

func TestTheCommandsOfAMoveFromPlanToLayout(t *testing.T) {
	t.Setenv(stateVariable, t.TempDir())
	file, source, shards := realMove(t)

	if code, out, trouble := cli(t, file, "plan"); code != exitDone || !strings.Contains(out, "public.orders") || !strings.Contains(out, "nothing blocks the move") {
		t.Fatalf("plan: %d\n%s%s", code, out, trouble)
	}
	foretold := planned(t, file)
	if code, _, trouble := cli(t, file, "status"); code == exitDone || !strings.Contains(trouble, "hint: ") {
		t.Errorf("status before the move: %d, %s", code, trouble)
	}
	if code, out, trouble := cli(t, file, "migrate", "--yes"); code != exitDone {
		t.Fatalf("migrate: %d\n%s%s", code, out, trouble)
	}
	if got := shards[0].Query(t, "select count(*) from countries"); got[0][0] != "2" {
		t.Errorf("countries on shard 0: %v", got)
	}
	for n, share := range foretold.Surveys[0].Shares {
		if got := shards[n].Query(t, "select count(*) from orders"); got[0][0] != fmt.Sprint(1000*share.Rows) {
			t.Errorf("shard %d has %s rows of orders, the plan foretold %v of 1000", n, got[0][0], share.Rows)
		}
	}
	// A route, by our own code, against where the row is, by plain SQL.
	for tenant := range 10 {
		code, out, trouble := cli(t, file, "route", "--json", "orders", fmt.Sprint(tenant))
		var route move.Route
		if err := json.Unmarshal([]byte(out), &route); code != exitDone || err != nil || len(route.Shards) != 1 {
			t.Fatalf("route: %d, %v\n%s%s", code, err, out, trouble)
		}
		got := shards[route.Shards[0]].Query(t, "select count(*) from orders where tenant_id = $1", tenant)
		if got[0][0] != "100" {
			t.Errorf("tenant %d: %s rows on shard %d", tenant, got[0][0], route.Shards[0])
		}
	}
	code, out, trouble := cli(t, file, "layout", "--json")
	var record layout.Record
	if err := json.Unmarshal([]byte(out), &record); code != exitDone || err != nil || record.Version != 2 || len(record.Shards) != 2 || record.ServingSince == nil {
		t.Errorf("layout: %d, %v\n%s%s", code, err, out, trouble)
	}
	code, out, trouble = cli(t, file, "status")
	if code != exitDone || !strings.Contains(out, "state:  completed") || !strings.Contains(out, "\nsafe to cut over: no, because") {
		t.Errorf("status after the move: %d\n%s%s", code, out, trouble)
	}
	if got := source.Query(t, "select count(*) from orders"); got[0][0] != "1000" {
		t.Errorf("the source has %s rows", got[0][0])
	}
}

// planned is the plan with all that it can tell, as JSON, as text and as a page.
func planned(t *testing.T, file string) (plan move.Plan) {
	t.Helper()
	page := filepath.Join(t.TempDir(), "plan.html")
	code, out, trouble := cli(t, file, "plan", "--json", "--placements", "--shards", "2..4", "--report", page)
	if err := json.Unmarshal([]byte(out), &plan); code != exitDone || err != nil || len(plan.Surveys) != 1 {
		t.Fatalf("plan: %d, %v\n%s%s", code, err, out, trouble)
	}
	s := plan.Surveys[0]
	if s.Table != "public.orders" || !s.Read.Whole || s.Rows != 1000 || s.Read.Keys != 10 || len(s.Costs) != 9 || len(s.Sweep) != 3*8 {
		t.Errorf("orders: %+v", s)
	}
	if c := s.Costs[0]; c.Strategy != "as configured: modulo 2" || c.Rows != s.Shares[1].Rows {
		t.Errorf("as configured: %+v, shares %+v", c, s.Shares)
	}
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<h3>public.orders</h3>", "prefers-color-scheme: dark", "as configured: modulo 2 *", `<div class="bar" style="width: 100.00%">`, "10 keys are spread over 2 shards"} {
		if !strings.Contains(string(html), want) {
			t.Errorf("the page lacks %s:\n%s", want, html)
		}
	}
	for _, not := range []string{"http://", "https://", "<script", "ZgotmplZ"} {
		if strings.Contains(string(html), not) {
			t.Errorf("the page has %s", not)
		}
	}
	code, out, trouble = cli(t, file, "plan", "--placements", "--shards", "2..4")
	for _, want := range []string{"all 1000 rows", "public.orders: from 1 shard to 2;", "16384 slots, handed over whole *", "public.orders: rows that move from 1 shard on", "warning: public.orders: 10 keys"} {
		if code != exitDone || !strings.Contains(out, want) {
			t.Errorf("plan: %d, no %s in\n%s%s", code, want, out, trouble)
		}
	}
	if testing.Verbose() {
		t.Log(out)
	}
	return plan
}

func TestAPlanThatIsBlockedNamesEveryProblem(t *testing.T) {
	t.Setenv(stateVariable, t.TempDir())
	file, source, shards := realMove(t)
	source.Exec(t, "create table nobody (id int primary key)")
	shards[1].Exec(t, "create table orders (id bigint)")
	code, out, trouble := cli(t, file, "plan")
	if code != exitCheck || !strings.Contains(out, "public.nobody") || !strings.Contains(trouble, "hint: ") {
		t.Errorf("plan: %d\n%s%s", code, out, trouble)
	}
	if code, _, _ := cli(t, file, "migrate", "--yes"); code != exitCheck {
		t.Errorf("migrate: %d", code)
	}
	if got := source.Query(t, "select count(*) from pg_namespace where nspname = 'pgreshard'"); got[0][0] != "0" {
		t.Error("a blocked plan left something behind")
	}
	if !strings.Contains(out, "exists already") {
		t.Errorf("not every problem is named:\n%s", out)
	}
}

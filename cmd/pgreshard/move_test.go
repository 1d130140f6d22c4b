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
	if code, _, trouble := cli(t, file, "status"); code == exitDone || !strings.Contains(trouble, "hint: ") {
		t.Errorf("status before the move: %d, %s", code, trouble)
	}
	if code, out, trouble := cli(t, file, "migrate", "--yes"); code != exitDone {
		t.Fatalf("migrate: %d\n%s%s", code, out, trouble)
	}
	if got := shards[0].Query(t, "select count(*) from countries"); got[0][0] != "2" {
		t.Errorf("countries on shard 0: %v", got)
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

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/notice"
	"pgreshard/pgtest"
)

const liveChecks = `
[[checks]]
table = "order_items"
aggregates = ["count", "sum(amount)", "avg(amount)"]
[[checks]]
table = "users"
aggregates = ["count"]
where = "version >= 0"
`

func TestTheCommandsBesideALiveMove(t *testing.T) {
	t.Parallel()
	nats, err := notice.Serve(t.TempDir(), "nats://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	r := newRig(t, 3, pgtest.WorkloadOptions{Writers: 4, Rate: 300, Lookups: true, KeyChanges: true},
		fmt.Sprintf("[cutover]\nreverse = false\n[nats]\nurl = %q\n", nats.Address())+liveChecks)
	told := r.noticed(nats.Address())
	stop := r.write()

	code, out, said := r.run("plan")
	for _, table := range pgtest.WorkloadTables() {
		if !strings.Contains(out, "\npublic."+table+" ") {
			t.Errorf("plan does not list %s", table)
		}
	}
	if code != exitDone || !strings.Contains(out, "nothing blocks the move") {
		t.Fatalf("plan: %d\n%s", code, said)
	}
	var plan move.Plan
	r.json(&plan, "plan")
	if len(plan.Tables) != len(pgtest.WorkloadTables()) || len(plan.Nodes) != 4 || len(plan.Problems) != 0 {
		t.Errorf("plan: %+v", plan)
	}
	untouched(t, append(r.shards, r.sources...)...)
	for _, command := range []string{"status", "layout", "verify"} {
		if code, _, said := r.run(command); code != exitFailed || !strings.Contains(said, "hint: ") {
			t.Errorf("%s before there is a move: %d\n%s", command, code, said)
		}
	}

	worker := r.start("migrate", "--hold")
	s := r.awaitSafe(worker)
	if s.Move != r.name || s.State != "streaming" || s.Layout != (move.StatusLayout{Serving: 1, Next: 2}) || s.Error != nil ||
		len(s.Streams) != 1 || s.Streams[0].LagBytes == nil || s.Streams[0].LagSeconds == nil || len(s.Shards) != 3 || len(s.Copy) != 7 {
		t.Errorf("status of the worker: %+v", s)
	}
	for _, c := range s.Copy {
		if c.State != "done" || c.Bytes != c.BytesTotal {
			t.Errorf("copy of %s: %+v", c.Table, c)
		}
	}
	if code, out, said := r.run("status"); code != exitDone || !strings.Contains(out, "state:  streaming: ") || !strings.Contains(out, "\nsafe to cut over: ") {
		t.Errorf("status: %d\n%s", code, said)
	}
	r.serves(1, 1)
	r.routes()
	r.rehearses(worker)
	r.shows()

	stop()
	if err := worker.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, said := worker.wait(t); code != exitFailed || !strings.Contains(said, "stopped by signal: terminated (hint: the same command goes on from here)") {
		t.Errorf("the worker stopped with %d:\n%s", code, said)
	}
	code, out, said = r.run("status")
	if code != exitDone || !strings.Contains(out, "state:  streaming: ") || !strings.HasSuffix(out, "\nsafe to cut over: no, because no worker runs\n") || strings.Contains(out, "worker:") ||
		!strings.Contains(out, "\nfence:  source 0 lets writes pass\n") || !strings.Contains(out, "no worker runs: pgreshard migrate goes on\n") {
		t.Errorf("status without a worker: %d\n%s", code, said)
	}
	s = move.Status{}
	r.json(&s, "status")
	if s.State != "streaming" || s.SafeToCutOver.OK || len(s.Streams) != 1 || s.Streams[0].LagBytes == nil || s.Worker != "" {
		t.Errorf("status without a worker: %+v", s)
	}

	if code, _, said := r.run("cutover"); code != exitFailed || !strings.Contains(said, "no worker runs this move (hint: ") {
		t.Errorf("cutover without a worker: %d\n%s", code, said)
	}
	worker = r.start("migrate", "--hold")
	if code, _, said := r.run("cutover"); code != exitFailed && code != exitCheck { // it may not listen yet
		t.Errorf("cutover before it is safe: %d\n%s", code, said)
	}
	r.awaitSafe(worker)
	code, out, said = r.run("cutover")
	if code != exitDone || !strings.HasPrefix(out, "arm ") || !strings.Contains(out, "\nlayout 2 serves; writes were refused for ") {
		t.Fatalf("cutover: %d\n%s%s", code, out, said)
	}
	if code, said := worker.wait(t); code != exitDone {
		t.Fatalf("the worker that was asked to cut over ended with %d:\n%s", code, said)
	}
	for _, version := range []int{1, 2} {
		if got := <-told; got.Version != version || len(got.Shards) == 0 {
			t.Errorf("the board at NATS told of %+v, want layout %d", got, version)
		}
	}
	r.compare()
	r.placed()
	r.serves(2, 3)
	r.routes()
	r.reported()
	r.verifies()
	if code, out, said := r.run("status"); code != exitDone || !strings.Contains(out, "layout 2 serves") || !strings.Contains(out, "state:  completed: ") || !strings.HasSuffix(out, "\nsafe to cut over: no, because the move is completed\n") {
		t.Errorf("status after the move: %d\n%s", code, said)
	}
	if code, _, said := r.run("migrate", "--yes"); code != exitDone {
		t.Errorf("migrate after the end: %d\n%s", code, said)
	}
}

// noticed tells of the layouts that come to serve, as the board at NATS has them.
func (r *rig) noticed(address string) <-chan layout.Record {
	r.t.Helper()
	board, err := notice.Open(address, nil, r.t.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(board.Close)
	told := make(chan layout.Record, 10)
	go func() {
		_ = board.Watch(r.t.Context(), "app", func(err error) { r.t.Log(err) }, func(record layout.Record) { told <- record })
	}()
	return told
}

// json runs a command with --json and reads what it prints.
func (r *rig) json(into any, args ...string) {
	r.t.Helper()
	code, out, said := r.run(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil || code != exitDone {
		r.t.Fatalf("%v --json: %d, %v\n%s", args, code, err, said)
	}
}

// awaitSafe asks the running worker until it says that it is safe to cut over.
func (r *rig) awaitSafe(worker *process) move.Status {
	r.t.Helper()
	for {
		if code, out, _ := r.run("status", "--json"); code == exitDone {
			var s move.Status
			if err := json.Unmarshal([]byte(out), &s); err != nil {
				r.t.Fatalf("%v\n%s", err, out)
			}
			if s.SafeToCutOver.OK {
				return s
			}
		}
		select {
		case <-worker.ended:
			r.t.Fatalf("the worker ended with %d:\n%s", worker.code, worker.both.String())
		case <-r.t.Context().Done():
			r.t.Fatal("never safe to cut over")
		default:
		}
	}
}

// rehearses looks at what a cutover would do, and lets all of it but the switch be done, beside writers.
func (r *rig) rehearses(worker *process) {
	r.t.Helper()
	steps := []string{"arm", "check", "freeze", "drain", "finish", "verify", "seal", "switch", "open"}
	before := r.state()
	var dry, done move.CutoverReport
	r.json(&dry, "cutover", "--dry-run")
	for i, name := range append(steps, "undo") {
		if len(dry.Steps) != len(steps)+1 || dry.Steps[i].Name != name || len(dry.Steps[i].Would) == 0 {
			r.t.Fatalf("step %d of a dry run is not %s: %+v", i, name, dry.Steps)
		}
	}
	if state, at := r.state(), r.sources[0].Query(r.t, `select last_value from pgreshard.fence_until`)[0][0]; state != before || at != "0" || dry.Serving != 1 || dry.FreezeSeconds != nil {
		r.t.Errorf("a dry run left state %s, freeze %s: %+v", state, at, dry)
	}
	code, out, said := r.run("cutover", "--dry-run")
	for _, want := range []string{"source shard 0 at ", "every table of public.", "until 5s from then", " sessions of applications are open, ", "the shards are at ", "destination shard 2 at ", "nothing was changed; layout 1 serves\n"} {
		if code != exitDone || !strings.Contains(out, want) {
			r.t.Errorf("cutover --dry-run does not say %q: %d\n%s%s", want, code, out, said)
		}
	}
	if code, out, said := r.run("verify"); code != exitDone || !strings.Contains(out, "\nexactly as of ") || strings.Count(out, "  clean  ") != len(pgtest.WorkloadTables()) {
		r.t.Errorf("verify beside writers: %d\n%s", code, said)
	}
	r.checks()
	writes := r.load.Stats()
	r.awaitSafe(worker)
	r.json(&done, "cutover", "--rehearse")
	for i, name := range steps[:len(steps)-2] {
		if len(done.Steps) != len(steps)-2 || done.Steps[i].Name != name {
			r.t.Fatalf("step %d of a rehearsal is not %s: %+v", i, name, done.Steps)
		}
	}
	if done.FreezeSeconds == nil || *done.FreezeSeconds <= 0 || done.Serving != 1 {
		r.t.Errorf("a rehearsal: %+v", done)
	}
	if err := r.load.Committed(r.t.Context(), 50); err != nil {
		r.t.Fatal(err)
	}
	if now := r.load.Stats(); now.Refused == writes.Refused {
		r.t.Errorf("no writer was refused in a rehearsal: %+v", now)
	}
	if state := r.state(); state != "streaming" {
		r.t.Errorf("after a rehearsal the move is %s", state)
	}
}

// checks asks both sides beside writers: the worker as of one position, and the nodes as they are.
func (r *rig) checks() {
	r.t.Helper()
	code, out, said := r.run("check")
	for _, part := range []string{"check of public.order_items: equal\n", "  sum(amount)", "check of public.users where version >= 0: equal\n", "\nexactly as of "} {
		if code != exitDone || !strings.Contains(out, part) {
			r.t.Errorf("check beside writers does not say %q: %d\n%s", part, code, said)
		}
	}
	for _, consistency := range []string{"bounded", "eventual"} { // whose sides are of two moments
		if code, out, said := r.run("check", "--consistency", consistency, "--json"); code != exitDone && code != exitCheck || !strings.HasPrefix(out, `{"consistency":"`+consistency+`","checks":[{"table":"public.order_items"`) {
			r.t.Errorf("check --consistency %s: %d\n%s", consistency, code, said)
		}
	}
	other := r.file + ".other"
	text, err := os.ReadFile(r.file)
	if err == nil {
		err = os.WriteFile(other, []byte(strings.Replace(string(text), "version >= 0", "version >= 1", 1)), 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	if code, said := start(r.t, r.env, "-c", other, "check").wait(r.t); code != exitUsage || !strings.Contains(said, "the worker was started with other [[checks]] (hint: ") {
		r.t.Errorf("other checks than the worker's: %d\n%s", code, said)
	}
}

// serves looks at what `layout` says.
func (r *rig) serves(version, shards int) {
	r.t.Helper()
	var record layout.Record
	r.json(&record, "layout")
	if record.Version != version || len(record.Shards) != shards || record.ServingSince == nil || version == 2 && len(record.Rules) != 7 {
		r.t.Errorf("layout: %+v", record)
	}
	if code, out, said := r.run("layout"); code != exitDone || !strings.HasPrefix(out, fmt.Sprintf("layout %d of ", version)) {
		r.t.Errorf("layout: %d\n%s", code, said)
	}
}

// routes compares `route` with where plain SQL finds the rows.
func (r *rig) routes() {
	r.t.Helper()
	for _, c := range []struct{ table, key, column, translated string }{
		{"orders", "1", "tenant_id", ""}, {"public.orders", "6", "tenant_id", ""}, {"orders", "39", "tenant_id", ""},
		{"users", "1", "tenant_id", "1"}, {"users", "6", "tenant_id", "5"}, {"documents", "39", "tenant_id", "38"}, {"documents", "40", "tenant_id", "40"},
		{"events", pgtest.EventTenant(5), "tenant_id", ""}, {"events", pgtest.EventTenant(12), "tenant_id", ""},
		{"order_items", r.sources[0].Query(r.t, `select order_id from order_items order by 1 limit 1`)[0][0], "order_id", "tenant_id of the order"},
	} {
		var route move.Route
		r.json(&route, "route", c.table, c.key)
		if c.table == "order_items" {
			c.translated = r.sources[0].Query(r.t, `select tenant_id from orders where id = $1`, c.key)[0][0]
		}
		if len(route.Shards) != 1 || len(route.Nodes) != 1 || route.Translated != c.translated || route.Version != 2 {
			r.t.Errorf("route %s %s: %+v", c.table, c.key, route)
			continue
		}
		var found []layout.Shard
		for n, db := range r.shards {
			if db.Query(r.t, fmt.Sprintf(`select count(*) from %s where %s::text = $1`, c.table, c.column), c.key)[0][0] != "0" {
				found = append(found, layout.Shard(n))
			}
		}
		if !slices.Equal(found, route.Shards) {
			r.t.Errorf("route %s %s says shard %v, rows are on %v", c.table, c.key, route.Shards, found)
		}
	}
	var all move.Route
	r.json(&all, "route", "countries", "AA")
	if len(all.Shards) != 3 || len(all.Nodes) != 3 {
		r.t.Errorf("route of an omnisharded table: %+v", all)
	}
	if code, out, said := r.run("route", "countries", "AA"); code != exitDone || !strings.Contains(out, "write to all of them, read from any") {
		r.t.Errorf("route of an omnisharded table: %d\n%s", code, said)
	}
	for what, args := range map[string][]string{"a table that is not moved": {"nowhere", "1"}, "a key without mapping": {"users", "123456789"}, "a key of another type": {"orders", "x"}} {
		if code, _, said := r.run(append([]string{"route"}, args...)...); code == exitDone || !strings.Contains(said, "hint: ") {
			r.t.Errorf("route of %s: %d\n%s", what, code, said)
		}
	}
}

// verifies looks at what `verify` says of equal sides, and of a row that was changed, one taken away and one put elsewhere.
func (r *rig) verifies() {
	r.t.Helper()
	var tables []map[string]any
	r.json(&tables, "verify")
	if len(tables) != len(pgtest.WorkloadTables()) {
		r.t.Errorf("verify: %v", tables)
	}
	for _, table := range tables {
		for _, key := range []string{"missing", "extra", "different", "misplaced"} {
			if table[key] != 0.0 || table["state"] != "clean" || table["rows"] == 0.0 {
				r.t.Errorf("verify: %v", table)
			}
		}
	}
	if code, out, said := r.run("verify"); code != exitDone || !strings.Contains(out, "public.order_items") {
		r.t.Errorf("verify: %d\n%s", code, said)
	}
	order := r.shards[0].Query(r.t, `select id from orders order by id limit 1`)[0][0]
	r.shards[0].Exec(r.t, `update orders set placed_at = placed_at + interval '1 microsecond' where id = $1`, order)
	user := r.shards[1].Query(r.t, `delete from users where ctid = (select ctid from users limit 1) returning id`)[0][0]
	r.shards[2].Exec(r.t, `insert into countries values ('!!', 'nowhere', 1)`)
	code, out, said := r.run("verify")
	for _, part := range []string{"public.orders: different", order, "public.users: missing", user, "public.countries: extra", "!!"} {
		if !strings.Contains(out, part) {
			r.t.Errorf("verify does not say %q", part)
		}
	}
	if code != exitCheck || !strings.Contains(said, "hint: ") {
		r.t.Errorf("verify of differences: %d", code)
	}
	r.t.Logf("verify of differences:\n%s", said)
	if code, out, said := r.run("check"); code != exitCheck || !strings.Contains(out, "check of public.users where version >= 0: differs\n") || !strings.Contains(out, "check of public.order_items: equal\n") {
		r.t.Errorf("check of differences: %d\n%s", code, said)
	}
}

func TestASecondProcessTakesOverWhenTheFirstIsKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, pgtest.WorkloadOptions{}, "[cutover]\nreverse = false\n")
	first := r.start("migrate", "--hold")
	r.awaitSafe(first)
	second := r.start("migrate", "--yes")
	second.says(t, "another worker runs this move")
	if got := r.state(); got != "streaming" {
		t.Errorf("the move is %s", got)
	}
	first.kill()
	if code, said := second.wait(t); code != exitDone {
		t.Fatalf("the second ended with %d:\n%s", code, said)
	}
	r.compare()
	r.placed()
}

// says waits until a process has written something.
func (p *process) says(t *testing.T, what string) {
	t.Helper()
	for !strings.Contains(p.both.String(), what) {
		select {
		case <-p.ended:
			t.Fatalf("the process ended with %d and did not say %q:\n%s", p.code, what, p.both.String())
		default:
			pause(t.Context())
		}
	}
}

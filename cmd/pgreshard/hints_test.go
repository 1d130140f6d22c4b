package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

// fails runs migrate, which must end with 1 and say the parts.
func fails(t *testing.T, env []string, file string, parts ...string) {
	t.Helper()
	code, said := start(t, env, "-c", file, "migrate", "--yes").wait(t)
	for _, part := range parts {
		if !strings.Contains(said, part) {
			t.Errorf("migrate does not say %q:\n%s", part, said)
		}
	}
	if code != exitFailed {
		t.Errorf("migrate ended with %d:\n%s", code, said)
	}
}

// What a hint asks for must be what helps: a row without mapping stops the stream until the source has one, a lost slot for
// good, and starting over as the hint says ends in a whole move.
func TestWhatStopsTheStreamIsToldWhatHelps(t *testing.T) {
	t.Parallel()
	const over = "`pgreshard cancel --drop-data`, then `pgreshard migrate`"
	r := newWrongRig(t, pgtest.Shared(t))
	r.source.Exec(t, `insert into tenants select g from generate_series(1, 20) g; insert into orders select g, g % 20 + 1 from generate_series(1, 200) g`)
	file, env := filepath.Join(t.TempDir(), "pgreshard.toml"), []string{stateVariable + "=" + t.TempDir()}
	writeConfig(t, file, nameOf(r.source), freePort(t), []string{r.source.URL()}, urls(r.shards), wrongRules)

	const missing = "give the key exactly one mapping row on the source"
	worker := start(t, env, "-c", file, "migrate", "--hold")
	worker.says(t, "held before the cutover")
	r.source.Exec(t, `insert into orders values (1000, 999)`)
	if code, said := worker.wait(t); code != exitFailed || !strings.Contains(said, missing) || strings.Contains(said, over) || !strings.Contains(said, "(key 999)") {
		t.Errorf("a row without mapping: %d\n%s", code, said)
	}
	fails(t, env, file, missing)
	p := start(t, env, "-c", file, "status")
	if code, said := p.wait(t); code != exitDone || !strings.Contains(said, missing) {
		t.Errorf("status: %d\n%s", code, said)
	}
	r.source.Exec(t, `insert into tenants values (999)`)
	worker = start(t, env, "-c", file, "migrate", "--hold")
	worker.says(t, "held before the cutover")
	until(t, worker, "the row came", func() bool {
		return len(r.shards[0].Query(t, `select 1 from orders where id = 1000`))+len(r.shards[1].Query(t, `select 1 from orders where id = 1000`)) == 1
	})
	worker.kill()
	slot := "pgreshard_" + strings.ReplaceAll(nameOf(r.source), "-", "_") + "_0"
	r.source.Exec(t, `select pg_terminate_backend(active_pid, 10000) from pg_replication_slots where slot_name = $1 and active`, slot) // it may not have heard of the kill
	r.source.Exec(t, `select pg_drop_replication_slot($1)`, slot)
	fails(t, env, file, "the replication slot does not exist", over)
	for _, command := range [][]string{{"cancel", "--drop-data"}, {"migrate", "--yes"}} {
		if code, said := start(t, env, append([]string{"-c", file}, command...)...).wait(t); code != exitDone {
			t.Fatalf("%v ended with %d:\n%s", command, code, said)
		}
	}
	p = start(t, env, "-c", file, "verify")
	if code, said := p.wait(t); code != exitDone {
		t.Errorf("verify: %d\n%s", code, said)
	}
	if got := r.shards[0].Query(t, `select count(*) from orders`)[0][0] + " " + r.shards[1].Query(t, `select count(*) from orders`)[0][0]; strings.HasPrefix(got, "0 ") || strings.HasSuffix(got, " 0") {
		t.Errorf("orders on the shards: %s", got)
	}
}

func TestAHintKnowsTheCopyFromTheStream(t *testing.T) {
	t.Parallel()
	missing := &lookup.MissingError{Query: &lookup.Query{Name: "d.public.orders.tenant_id"}}
	for name, test := range map[string]struct {
		at   pg.LSN
		err  error
		want string
	}{
		"in the copy the mapping row can be added":                    {0, missing, "hint: give the key exactly one mapping row on the source"},
		"and in the stream":                                           {1, missing, "hint: give the key exactly one mapping row on the source"},
		"in the copy a row that no rule takes can be mended":          {0, errors.New("x"), "hint: give the key exactly one mapping row on the source, or mend the row"},
		"in the stream it is there for good, and is to be begun anew": {1, errors.New("x"), "hint: the stream cannot pass this row"},
	} {
		got := explain(errors.Join(&sink.PlaceError{At: test.at, Err: test.err}))
		if !strings.Contains(got, test.want) || strings.Contains(got, "on_missing") || strings.Count(got, "hint: ") != 1 {
			t.Errorf("%s: %s", name, got)
		}
	}
}

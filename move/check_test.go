package move_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/verify/fanout"
)

// What a check needs to know, and what it asks, it gets of replicas where those may answer and a leader does not.
func TestACheckIsAnsweredByReplicasWhereTheyMay(t *testing.T) {
	t.Parallel()
	p := newPair(t, `create table tenants (id bigint primary key, root bigint not null);
		create table items (id bigint primary key, tenant bigint not null, amount numeric not null, at timestamptz not null);
		insert into tenants select g, 1 + g % 3 from generate_series(1, 9) g;
		insert into items select g, 1 + g % 9, g / 100.0, '2026-01-01' from generate_series(1, 300) g`, nil, nil)
	s := smallMoveOf(t, p.db, emptyShards(t, 2, ""), "tenant")
	s.omni("tenants")
	s.config.Destination.Spec.Tables[0].LookupQuery = "select root from tenants where id = $1"
	s.config.Checks = []move.Check{
		{Table: "items", Aggregates: []string{"count", "sum(amount)", "avg(amount)"}, GroupBy: []string{"tenant"}},
		{Table: "items", Aggregates: []string{"count"}, Where: "at < '2027-01-01'", Keys: [][]string{{"2"}, {"5"}}},
		{Table: "tenants", Aggregates: []string{"max(root)"}},
	}
	s.run(func() {})
	s.config.Source.Replicas = [][]pg.Shard{{p.after.Shard(0)}}
	if position, err := p.leader.Position(t.Context()); err != nil || p.standby.CatchUp(t.Context(), position) != nil {
		t.Fatal(err)
	}
	check := func(c fanout.Consistency, behind time.Duration) (states, nodes string, err error) {
		report, err := s.move().Check(t.Context(), move.CheckOptions{Consistency: c, Behind: behind})
		if err != nil {
			return "", "", err
		}
		for _, c := range report.Checks {
			states += fmt.Sprintf("%s ", c.State)
			for _, a := range c.Source.Asked {
				nodes += a.Node + " "
			}
			if c.Table == "public.items" && len(c.GroupBy) > 0 && len(c.Lines) != 9 {
				t.Errorf("%d groups", len(c.Lines))
			}
			if c.Where != "" && c.State == fanout.Equal && *c.Lines[0].Source[0] != "67" {
				t.Errorf("rows of two keys: %s", *c.Lines[0].Source[0])
			}
		}
		return states, nodes, nil
	}
	const alike = "equal equal equal equal " // the last table of two shards
	four := func(node string) string { return strings.Repeat(node+" ", 4) }
	for _, test := range []struct {
		c    fanout.Consistency
		node string
	}{{fanout.Strong, p.leader.Addr()}, {fanout.Bounded, p.leader.Addr()}, {fanout.Eventual, p.standby.Addr()}} {
		if states, nodes, err := check(test.c, time.Hour); err != nil || states != alike || nodes != four(test.node) {
			t.Errorf("%s: %s by %s, %v", test.c, states, nodes, err)
		}
	}
	if err := p.leader.Stop("immediate"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []fanout.Consistency{fanout.Bounded, fanout.Eventual} {
		if states, nodes, err := check(c, time.Hour); err != nil || states != alike || nodes != four(p.standby.Addr()) {
			t.Errorf("%s without a leader: %s by %s, %v", c, states, nodes, err)
		}
	}
	if states, _, err := check(fanout.Bounded, time.Nanosecond); err != nil || strings.Contains(states, "equal") {
		t.Errorf("bounded, and the replica is too far behind: %s, %v", states, err)
	}
	if _, _, err := check(fanout.Strong, 0); err == nil {
		t.Error("strong without a leader")
	}
}

// A check that cannot be asked is a problem of the plan.
func TestAPlanNamesWhatIsWrongWithChecks(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table items (id int primary key, tenant bigint, note text); create schema more; create table more.items (id int primary key, tenant bigint); create table countries (id int primary key)`)
	s.omni("countries")
	count := []string{"count"}
	s.config.Checks = []move.Check{
		{Table: "public.items", Aggregates: count, Where: "note <> 'x'", Keys: [][]string{{"1"}}},
		{Table: "items", Aggregates: count},
		{Table: "nothing", Aggregates: count},
		{Table: "public.items", Aggregates: []string{"sum(note)", "count(nothing)"}},
		{Table: "countries", Aggregates: count, Keys: [][]string{{"1"}}},
		{Table: "more.items", Aggregates: count, Keys: [][]string{{"1", "2"}}},
		{Table: "more.items", Aggregates: count, Where: "true; drop table more.items"},
	}
	got := s.problems()
	want := []string{"checks[1] of items: more.items and public.items are called so; name the schema too", "checks[2] of nothing: no moved table is called so",
		"checks[3] of public.items: sum does not take note", `checks[3] of public.items: public.items has no column "nothing"`,
		"checks[4] of countries: keys: its rows are not placed by a key", "checks[5] of more.items: keys: one has 2 values, and rows are placed by tenant",
		"checks[6] of more.items: where: the server does not take it: syntax error"}
	if len(got) != len(want) {
		t.Errorf("%q", got)
	}
	for _, text := range want {
		if !containing(got, text) {
			t.Errorf("no %q in %q", text, got)
		}
	}
}

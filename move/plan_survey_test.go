package move_test

import (
	"fmt"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// Two sources whose rows stand by hash, of which three are where they do not belong, and what becomes of all on three shards.
func TestAPlanReadsEverySourceAndFindsRowsThatAreNotTheirs(t *testing.T) {
	t.Parallel()
	table := `create table notes (id bigint primary key, text text); create table of_bigint (k bigint) partition by hash (k)`
	r := &rig{t: t}
	for n := range 2 {
		db := pgtest.Shared(t).Database(t)
		db.Exec(t, table+fmt.Sprintf(`; insert into notes select g, 'n' from generate_series(1, 900::bigint) g where satisfies_hash_partition('of_bigint'::regclass, 2, %d, g)`, n))
		r.sources = append(r.sources, db)
	}
	shards := []*pgtest.DB{pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t), pgtest.SharedDestination(t).Database(t)}
	s := smallMoveOf(t, r.sources[0], shards, "id")
	s.config.Source.Shards = append(s.config.Source.Shards, r.sources[1].Shard(1))
	s.config.Exclude = []string{"of_bigint"}
	astray := func() (of []string, plan *move.Plan) {
		t.Helper()
		plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{Placements: true})
		if err != nil || len(plan.Surveys) != 1 {
			t.Fatalf("%+v, %v", plan, err)
		}
		for _, p := range plan.Problems {
			of = append(of, p.String())
		}
		return of, plan
	}
	problems, plan := astray()
	if len(problems) != 0 || plan.Surveys[0].Read.Rows != 900 {
		t.Fatalf("before: %v, %+v", problems, plan.Surveys[0])
	}
	for shard, share := range plan.Surveys[0].Shares {
		want := 0.0
		for _, db := range r.sources {
			var n float64
			got := db.Query(t, fmt.Sprintf("select count(*) from notes where satisfies_hash_partition('of_bigint'::regclass, 3, %d, id)", shard))
			fmt.Sscan(got[0][0], &n)
			want += n / 900
		}
		if d := share.Rows - want; d > 1e-9 || d < -1e-9 {
			t.Errorf("shard %d gets %v of the rows, foretold %v", shard, want, share.Rows)
		}
	}
	if c := plan.Surveys[0].Costs[0]; c.From != 2 || c.To != 3 || !strings.HasPrefix(c.Strategy, "as configured: modulo 3") || c.Rows < 0.6 || c.Rows > 0.72 {
		t.Errorf("from two to three by modulo: %+v", c)
	}
	r.sources[0].Exec(t, `insert into notes select g, 'astray' from generate_series(901, 1000::bigint) g where satisfies_hash_partition('of_bigint'::regclass, 2, 1, g) order by g limit 3`)
	problems, _ = astray()
	if len(problems) != 1 || !strings.Contains(problems[0], "3 of the rows read on source 0 belong to another by the source layout's rule, hash(id) modulo 2") {
		t.Errorf("with three astray: %q", problems)
	}
	s.config.Source.Spec.Tables[0].Mapping = []layout.Mapping{{Kind: layout.KindDefault, Shard: new(int)}}
	if problems, _ = astray(); len(problems) != 1 || !strings.Contains(problems[0], "source 1") {
		t.Errorf("a source rule that is not how the rows stand: %q", problems)
	}
}

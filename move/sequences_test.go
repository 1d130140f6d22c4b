package move

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

func at(v int64) *int64 { return &v }

func TestStrideGivesEachShardItsOwnValuesAboveAllSeen(t *testing.T) {
	t.Parallel()
	up := Sequence{Start: 1, Min: 1, Max: math.MaxInt64, Increment: 1}
	down := Sequence{Start: -1, Min: math.MinInt64, Max: -1, Increment: -1}
	with := func(s Sequence, change func(*Sequence)) Sequence { change(&s); return s }
	last := func(s Sequence, v int64) Sequence { s.Last = &v; return s }
	type want struct {
		next, increment int64
		err             string
	}
	tests := map[string]struct {
		seen    []Sequence
		sources int
		shards  int
		want    []want // by shard
	}{
		"never used":                 {[]Sequence{up}, 1, 3, []want{{next: 3, increment: 3}, {next: 1, increment: 3}, {next: 2, increment: 3}}},
		"used up to 10":              {[]Sequence{last(up, 10)}, 1, 4, []want{{next: 12, increment: 4}, {next: 13, increment: 4}, {next: 14, increment: 4}, {next: 11, increment: 4}}},
		"one shard goes on":          {[]Sequence{last(up, 10)}, 1, 1, []want{{next: 11, increment: 1}}},
		"a row is above":             {[]Sequence{with(last(up, 10), func(s *Sequence) { s.Furthest = at(20) })}, 1, 2, []want{{next: 22, increment: 2}, {next: 21, increment: 2}}},
		"two sources of their own":   {[]Sequence{last(up, 10), last(up, 17)}, 2, 2, []want{{next: 18, increment: 2}, {next: 19, increment: 2}}},
		"descending":                 {[]Sequence{last(down, -10)}, 1, 3, []want{{next: -12, increment: -3}, {next: -11, increment: -3}, {next: -13, increment: -3}}},
		"descending to the very end": {[]Sequence{last(down, math.MinInt64+1)}, 1, 1, []want{{next: math.MinInt64, increment: -1}}},
		"used up":                    {[]Sequence{last(with(up, func(s *Sequence) { s.Max = 11 }), 10)}, 1, 2, []want{{err: "no value is left"}, {next: 11, increment: 2}}},
		"used up to the last bigint": {[]Sequence{last(up, math.MaxInt64)}, 1, 2, []want{{err: "no value is left"}, {err: "no value is left"}}},
		"cycling":                    {[]Sequence{last(with(up, func(s *Sequence) { s.Max, s.Cycle = 10, true }), 10)}, 1, 2, []want{{next: 2, increment: 2}, {next: 1, increment: 2}}},
		"blocks of ten":              {[]Sequence{last(with(up, func(s *Sequence) { s.Increment = 10 }), 31)}, 1, 2, []want{{next: 41, increment: 20}, {next: 51, increment: 20}}},
		"sources that stride":        {[]Sequence{last(with(up, func(s *Sequence) { s.Increment = 2 }), 10), last(with(up, func(s *Sequence) { s.Increment = 2 }), 15)}, 2, 3, []want{{next: 18, increment: 3}, {next: 16, increment: 3}, {next: 17, increment: 3}}},
		"increments differ":          {[]Sequence{up, down}, 2, 1, []want{{err: "increment is 1 on one source and -1"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for shard, want := range test.want {
				got, err := PlanSequences(SequencesStride, [][]Sequence{test.seen}, test.sources, shard, test.shards)
				if want.err != "" {
					if err == nil || !strings.Contains(err.Error(), want.err) {
						t.Errorf("shard %d: error %v, want %q", shard, err, want.err)
					}
					continue
				}
				if err != nil {
					t.Errorf("shard %d: %v", shard, err)
				} else if got[0].Next != want.next || got[0].Increment != want.increment {
					t.Errorf("shard %d: next %d by %d, want %d by %d", shard, got[0].Next, got[0].Increment, want.next, want.increment)
				}
			}
		})
	}
}

func TestNoValueIsHandedOutTwiceByRandomSequences(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 5000 {
		step := r.Int64N(20) + 1
		s := Sequence{Start: r.Int64N(50) - 25, Min: math.MinInt64, Max: math.MaxInt64, Increment: step}
		sign := int64(1)
		if r.IntN(2) == 0 {
			sign, s.Increment = -1, -step
		}
		seen := make([]Sequence, r.IntN(3)+1)
		used := s.Start - sign*step
		for i := range seen {
			seen[i] = s
			if r.IntN(3) > 0 {
				v := s.Start + sign*step*r.Int64N(100)
				seen[i].Last = &v
				used = max(used*sign, v*sign) * sign
			}
		}
		shards := r.IntN(7) + 1
		given := map[int64]int{}
		for shard := range shards {
			// An even number of sources may look like striding ones; that only makes the step smaller.
			got, err := PlanSequences(SequencesStride, [][]Sequence{seen}, 1, shard, shards)
			if err != nil {
				t.Fatalf("seed %d: %+v: %v", seed, seen, err)
			}
			for i, v := 0, got[0].Next; i < 20; i, v = i+1, v+got[0].Increment {
				if (v-used)*sign < step {
					t.Fatalf("seed %d: shard %d of %d hands out %d after %d (%+v)", seed, shard, shards, v, used, s)
				}
				if other, twice := given[v]; twice {
					t.Fatalf("seed %d: shards %d and %d hand out %d", seed, other, shard, v)
				}
				if m := ((v % int64(shards)) + int64(shards)) % int64(shards); step == 1 && m != int64(shard) {
					t.Fatalf("seed %d: shard %d of %d hands out %d", seed, shard, shards, v)
				}
				given[v] = shard
			}
		}
	}
}

func TestSequencesOfRealServersStride(t *testing.T) {
	t.Parallel()
	const ddl = `create table public.orders (id bigserial primary key, n int);
		create table public.lines (id int generated always as identity primary key);
		create table public.audit (id bigserial);
		create sequence public.tickets increment by -1;
		create sequence public.ring maxvalue 9 cycle;
		create sequence public."Odd name" as smallint cache 20`
	source, shards := pgtest.Shared(t).Database(t), []*pgtest.DB{pgtest.Shared(t).Database(t), pgtest.Shared(t).Database(t)}
	moved := names("orders", "lines")
	source.Exec(t, ddl)
	source.Exec(t, `insert into public.orders (n) select 1 from generate_series(1, 10); insert into public.orders values (100, 1);
		insert into public.lines default values; select nextval('public.tickets'), nextval('public."Odd name"');
		select nextval('public.ring') from generate_series(1, 12)`)

	read := func() []Sequence {
		all, err := ReadSequences(t.Context(), adminTo(t, source, pg.Reader), moved, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) != 5 {
			t.Fatalf("%d sequences, want 5 (not that of a table that is not moved): %+v", len(all), all)
		}
		return all
	}
	before := read()
	for i, db := range shards {
		db.Exec(t, ddl)
		conn := adminTo(t, db, pg.Admin)
		set, err := PlanSequences(SequencesStride, [][]Sequence{before}, 1, i, len(shards))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := PrepareSequences(t.Context(), conn, set); err != nil {
				t.Fatal(err)
			}
		}
	}
	source.Exec(t, `insert into public.lines default values`)
	after := read()
	given := map[string]int{}
	for i, db := range shards {
		conn := adminTo(t, db, pg.Admin)
		set, err := PlanSequences(SequencesStride, [][]Sequence{before, after}, 1, i, len(shards))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := SetSequences(t.Context(), conn, set); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			for _, s := range []string{"orders_id_seq", "lines_id_seq", "tickets", "ring", `"Odd name"`} {
				v := db.Query(t, fmt.Sprintf(`select nextval('public.%s')`, s))[0][0]
				if other, twice := given[s+v]; twice && (s != "ring" || other != i) {
					t.Errorf("%s hands out %s on shards %d and %d", s, v, other, i)
				}
				given[s+v] = i
			}
		}
		// What was handed out is never handed out again.
		was := db.Query(t, `select last_value from public.orders_id_seq`)
		if err := SetSequences(t.Context(), conn, set); err != nil {
			t.Fatal(err)
		}
		if is := db.Query(t, `select last_value from public.orders_id_seq`); is[0][0] != was[0][0] {
			t.Errorf("setting again took a sequence from %s to %s", was[0][0], is[0][0])
		}
	}
	for _, v := range []string{"orders_id_seq102", "orders_id_seq101", "lines_id_seq3", "tickets-2", "\"Odd name\"22", "ring4"} {
		if _, ok := given[v]; !ok {
			t.Errorf("nobody hands out %s: %v", v, given)
		}
	}
}

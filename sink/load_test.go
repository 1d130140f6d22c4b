package sink_test

import (
	"fmt"
	"testing"

	"pgreshard/copier"
	"pgreshard/pgtest"
)

const kinds = `
create type mood as enum ('sad', 'glad');
create domain small as int check (value < 1000000);
create type pair as (a int, m mood);
create table plain (id bigint primary key, tenant bigint, note text, at timestamptz, amount numeric(12,2));
create table typed (id bigint primary key, m mood, d small, p pair, ms mood[], r regclass, x xml, j jsonb, i interval);
create table "Quoted ""name's" ("the ""key" text primary key, "a,b" text, "from" int);
create table nulls (id bigint, tenant text, note text);
create table ident (id bigint generated always as identity primary key, tenant bigint, twice bigint generated always as (tenant * 2) stored);
create table onlykeys (a int, b int, primary key (a, b));
create table nothing (id bigint primary key, v text);
create table wide (id bigint primary key, v text, w bytea);
create table reference (code text primary key, name text);
create table arrays (id bigint primary key, n int[], t text[], ts tstzrange, z uuid, b bytea, f float8, bits varbit, ip inet);
create table parent (id bigint primary key, v text);
create table child (extra int) inherits (parent);
`

const kindRows = `
insert into plain select i, i % 97, case when i % 5 = 0 then null else repeat('x' || i, i % 30) end, now() + i * interval '1 s', i / 3.0 from generate_series(1, 20000) i;
insert into typed select i, (array['sad', 'glad']::mood[])[1 + i % 2], i, row(i, 'sad')::pair, array['glad', null]::mood[], 'plain', '<a b="é">x</a>',
  jsonb_build_object('k', i), i * interval '1 day 1 s' from generate_series(1, 2000) i;
insert into "Quoted ""name's" select i || E'\t\\é\n' || i, E'a\\b\r\n\tc', i from generate_series(1, 3000) i;
insert into nulls select nullif(i % 3, 0), case i % 4 when 0 then null when 1 then '' when 2 then '\N' else 't' || i end, E'\\.' from generate_series(1, 3000) i;
insert into ident (tenant) select i % 50 from generate_series(1, 3000) i;
insert into onlykeys select i % 70, i from generate_series(1, 3000) i;
insert into wide select i, (select string_agg(md5(i || '/' || k), '') from generate_series(1, 4000) k), decode(repeat(md5(i::text), 3000), 'hex') from generate_series(1, 30) i;
insert into wide values (1000, (select string_agg(md5(k::text), '') from generate_series(1, 660000) k), null);
insert into reference select i, 'name ' || i from generate_series(1, 200) i;
insert into arrays select i, array[i, null, 3], array['a,"b', null], tstzrange(now(), null), gen_random_uuid(), '\x00ff'::bytea, 'NaN', B'10101', '10.0.0.1/24' from generate_series(1, 1000) i;
insert into parent select i, 'p' from generate_series(1, 500) i;
insert into child select i, 'c', i from generate_series(1001, 1500) i;
`

var kindKeys = map[string][]string{"plain": {"tenant"}, "typed": {"id"}, `Quoted "name's`: {`the "key`}, "nulls": {"tenant"}, "ident": {"tenant"},
	"onlykeys": {"b", "a"}, "nothing": {"id"}, "wide": {"id"}, "arrays": {"id"}, "parent": {"id"}, "child": {"id"}}

func TestEveryKindOfTableArrivesWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		format copier.Format
		upsert bool
		many   bool
	}{
		{"in the format the types allow", copier.Auto, false, false},
		{"as text", copier.Text, false, false},
		{"routed in batches", copier.Auto, false, true},
		{"by upsert in the format the types allow", copier.Auto, true, false},
		{"by upsert as text, in batches", copier.Text, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pgtest.OneIn(t, 2)
			schema := kinds
			if c.upsert {
				schema += "alter table nulls add n bigint generated always as identity primary key; alter table child add primary key (id)"
			}
			r := newRig(t, 3, schema)
			r.source.Exec(t, kindRows)
			// Inheritance shows children's rows in the parent; each is compared by itself.
			r.format, r.upsert, r.many, r.keys = c.format, c.upsert, c.many, kindKeys
			chunks := r.chunks()
			var progress copier.Progress
			progress.Expect(chunks)
			r.config = func(c *copier.Config) { c.Progress = &progress }
			if err := r.run(t.Context(), chunks); err != nil {
				t.Fatal(err)
			}
			r.compare()
			var done int
			for _, p := range progress.Tables() {
				done += p.ChunksDone
				if p.SizeDone != p.Size || p.Chunks != p.ChunksDone {
					t.Errorf("progress: %+v", p)
				}
			}
			if done != len(chunks) {
				t.Errorf("%d chunks done of %d", done, len(chunks))
			}
			for i, s := range r.shards {
				if n := s.Query(t, `select count(*) from pgreshard.mark`)[0][0]; n != fmt.Sprint(len(chunks)) {
					t.Errorf("shard %d has %s marks of %d", i, n, len(chunks))
				}
			}
		})
	}
}

func TestColumnsAreMatchedByNameWhereverTheyStand(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, "")
	r.source.Exec(t, `create table t (gone int, id bigint primary key, a text, gone2 text, b int);
		alter table t drop gone, drop gone2; alter table t add c date default '2024-02-29';
		insert into t select i, 'a' || i, i from generate_series(1, 5000) i`)
	for _, s := range r.shards {
		s.Exec(t, `create table t (c date, b int, id bigint primary key, a text)`)
	}
	r.keys["t"] = []string{"id"}
	if err := r.run(t.Context(), r.chunks()); err != nil {
		t.Fatal(err)
	}
	r.compare()
}

func TestLeavesGoIntoARootThatIsPartitionedOtherwise(t *testing.T) {
	t.Parallel()
	for _, upsert := range []bool{false, true} {
		r := newRig(t, 3, "")
		r.source.Exec(t, `create table t (id bigint, day date, v text, primary key (id, day)) partition by range (day);
			create table t1 partition of t for values from ('2024-01-01') to ('2024-02-01');
			create table t2 (v text, day date not null, x int, id bigint not null);
			alter table t2 drop x; alter table t attach partition t2 default;
			insert into t select i, '2024-01-01'::date + i % 90, 'v' || i from generate_series(1, 9000) i`)
		for _, s := range r.shards {
			s.Exec(t, `create table t (id bigint, day date, v text, primary key (id, day)) partition by hash (id);
				create table h0 partition of t for values with (modulus 2, remainder 0);
				create table h1 partition of t for values with (modulus 2, remainder 1)`)
		}
		r.keys["t"] = []string{"id"}
		r.upsert = upsert
		if err := r.run(t.Context(), r.chunks()); err != nil {
			t.Fatal(err)
		}
		r.compare()
	}
}

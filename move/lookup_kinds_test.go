package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

const lookupKinds = `create table homes (device bigint primary key, shard int not null); create table tenants (id bigint primary key, parent bigint);
	create table regions (code bigint primary key, region text not null);
	create table devices (id int primary key, device bigint, a int); create table notes (id int primary key, tenant bigint, a int); create table labels (id int primary key, code bigint, a int);
	insert into homes select g, g % 3 from generate_series(1, 40) g; insert into tenants select g, g % 7 + 1 from generate_series(1, 30) g;
	insert into regions select g, case g % 3 when 0 then 'north' when 1 then 'south' else 'nowhere' end from generate_series(1, 30) g;
	insert into devices select g, g % 40 + 1 from generate_series(1, 400) g;
	insert into notes select g, g % 30 + 1 from generate_series(1, 400) g; insert into labels select g, g % 30 + 1 from generate_series(1, 400) g;
	insert into notes select 1000 + g, 100 + g from generate_series(1, 20) g; insert into labels select 1000 + g, 100 + g from generate_series(1, 20) g;`

// newLookupKinds is a move of tables whose lookup names the shard (devices), lets a key that has no mapping stand for itself
// (notes), and leaves one to the default (labels). The last row of the copy's chunks has no mapping.
func newLookupKinds(t *testing.T) *smallMove {
	s := newSmallMove(t, 3, "tenant", lookupKinds)
	d := &s.config.Destination
	on := func(shard int) *int { return &shard }
	d.Spec.Tables = []layout.ShardedTable{
		{Database: d.Database, Name: "devices", Columns: []string{"device"}, LookupQuery: `select shard from homes where device = $1`, LookupResult: layout.ResultShard},
		{Database: d.Database, Name: "notes", Columns: []string{"tenant"}, LookupQuery: `select parent from tenants where id = $1`, OnMissing: layout.MissingIdentity},
		{Database: d.Database, Name: "labels", Columns: []string{"code"}, LookupQuery: `select region from regions where code = $1`, OnMissing: layout.MissingDefault},
	}
	d.Spec.Mappings = []layout.Mapping{{Database: d.Database, Column: "code", Kind: layout.KindList, Values: []any{"north"}, Shard: on(0)},
		{Database: d.Database, Column: "code", Kind: layout.KindList, Values: []any{"south"}, Shard: on(1)}, {Database: d.Database, Column: "code", Kind: layout.KindDefault, Shard: on(2)}}
	d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"homes", "tenants", "regions"}}}
	s.places = newPlaces(t)
	return s
}

// whileTranslated changes rows and mappings: keys get a mapping that had none, another one, or none any more; %d makes ids of a round.
const whileTranslated = `insert into devices values (%[1]d, 3), (%[1]d + 1, 4); update devices set device = device %% 40 + 1 where id %% 5 = 0; update devices set a = 1 where id %% 7 = 0; delete from devices where id %% 11 = 0;
	update homes set shard = (shard + 1) %% 3 where device %% 4 = 0; insert into notes values (%[1]d, 200), (%[1]d + 1, 101); insert into labels values (%[1]d, 200), (%[1]d + 1, 101);
	insert into tenants values (101, 5), (102, 6) on conflict do nothing; insert into regions values (101, 'north'), (102, 'south') on conflict do nothing;
	update notes set a = 2 where tenant > 100; update labels set a = 2 where code > 100; update tenants set parent = parent %% 7 + 1 where id %% 3 = 0; update regions set region = 'south' where code %% 6 = 0;
	begin; insert into notes values (%[1]d + 2, %[1]d); insert into tenants values (%[1]d, 3); insert into labels values (%[1]d + 2, %[1]d); insert into regions values (%[1]d, 'north'); commit;
	update notes set tenant = tenant + 100 where id %% 13 = 0; delete from labels where id %% 17 = 0`

func TestLookupsNameShardsAndLetKeysGoWithoutMapping(t *testing.T) {
	t.Parallel()
	for _, format := range []copier.Format{copier.Auto, copier.Text} {
		t.Run(fmt.Sprint(format), func(t *testing.T) {
			t.Parallel()
			s := newLookupKinds(t)
			s.config.CopyFormat = format
			s.run(func() {
				for round := range 2 {
					for _, one := range strings.Split(fmt.Sprintf(whileTranslated, 3000+round*100), ";\n") {
						runOn(t, s.sources[0].Conn(t), one)
					}
				}
			})
			s.sameRows(pgtest.RowsOptions{Omni: true}, "homes", "tenants", "regions")
			s.sameRows(pgtest.RowsOptions{}, "devices", "notes", "labels")
			s.placedBy("notes", "tenant", `coalesce((select parent from tenants where id = r.tenant), r.tenant)`)
			for shard, db := range s.shards {
				for what, wrong := range map[string]string{
					"devices": `select count(*) from devices d join homes h using (device) where h.shard <> $1`,
					"labels":  `select count(*) from labels l left join regions r using (code) where $1 <> case r.region when 'north' then 0 when 'south' then 1 else 2 end`,
				} {
					if n := db.Query(t, wrong, shard)[0][0]; n != "0" {
						t.Errorf("%s rows of %s on shard %d are not its own", n, what, shard)
					}
				}
			}
		})
	}
}

// A lookup that names a shard there is none of stops the move before the row's transaction, and says what it named.
func TestALookupThatNamesNoShardStopsTheStream(t *testing.T) {
	t.Parallel()
	s := newLookupKinds(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		s.sources[0].Exec(t, `insert into homes values (77, 3); insert into devices values (900, 77)`)
		<-ctx.Done()
		return false, ctx.Err()
	}})
	var place *sink.PlaceError
	if !errors.As(err, &place) || place.Table.Table != "devices" || place.At == 0 || !strings.Contains(err.Error()+move.Hint(err), "shard") {
		t.Fatalf("it ended with %v (hint: %s)", err, move.Hint(err))
	}
	t.Log(err, move.Hint(err))
	for shard, db := range s.shards {
		if n := db.Query(t, `select count(*) from devices where id = 900`)[0][0]; n != "0" {
			t.Errorf("shard %d has the row", shard)
		}
	}
}

// What a lookup_query depends on besides the key and mapping rows is refused by the plan, which names it; what only looks like that is not.
func TestAPlanNamesWhatALookupDependsOnBesides(t *testing.T) {
	t.Parallel()
	for query, what := range map[string]string{
		`SELECT v FROM m WHERE k = $1`: "",
		`SELECT (v::text || to_char(v, '000') || concat(k, 'x') || date '2020-01-01' || array_to_string(ARRAY[v], ','))::varchar FROM m WHERE k = $1 -- of the key`: "",
		`SELECT v FROM m WHERE k = $1 AND since < now()`:                                                 "calls now()",
		`SELECT v FROM m WHERE k = $1 AND since < current_date`:                                          "uses current_date, current_user or another such name",
		`SELECT v FROM m WHERE k = $1 AND since < localtimestamp`:                                        "uses current_date, current_user or another such name",
		`SELECT v FROM m WHERE k = $1 AND age(since) > interval '1 year'`:                                "calls age(timestamp without time zone)",
		`SELECT v + length(current_setting('search_path')) FROM m WHERE k = $1`:                          "calls current_setting(text)",
		`SELECT v FROM m WHERE k = $1 AND EXISTS (SELECT FROM pg_class WHERE relname = 'x')`:             "reads pg_class",
		`SELECT v FROM (SELECT * FROM m WHERE k = $1 AND pg_is_in_recovery()) q`:                         "calls pg_is_in_recovery()",
		`WITH d AS (SELECT current_database() AS name) SELECT v + length(d.name) FROM m, d WHERE k = $1`: "calls current_database()",
	} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "k", `create table m (k int primary key, v int, since timestamp); create table r (id int primary key, k int)`)
			d := &s.config.Destination
			d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "r", Columns: []string{"k"}, LookupQuery: query})
			d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"m"}}}
			plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range plan.Problems {
				if what == "" || p.What != fmt.Sprintf("its lookup_query %s, whose answer may change without any mapping row", what) {
					t.Errorf("%+v", p)
				}
			}
			if len(plan.Problems) == 0 && what != "" {
				t.Errorf("it is not refused")
			}
		})
	}
}

// What a lookup_query calls may write: the plan refuses it, and has nothing written by looking.
func TestAPlanWritesNothingWhateverALookupCalls(t *testing.T) {
	t.Parallel()
	for _, query := range []string{`SELECT vol(k) FROM public.m WHERE k = $1`, `SELECT nextval($$public.sq$$)::int FROM public.m WHERE k = $1`} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 2, "k", `create table m (k int primary key, v int); insert into m select g, g from generate_series(1, 50) g; create sequence sq;
				create table r (id int primary key, k int); insert into r select g, g from generate_series(1, 50) g;
				create function vol(int) returns int language plpgsql volatile as $$begin insert into m values (1000000 + $1, 1) on conflict do nothing; return 1; end$$`)
			d := &s.config.Destination
			d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "r", Columns: []string{"k"}, LookupQuery: query, DataType: "bigint"})
			d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"m"}}}
			plan, err := s.move().PlanWith(t.Context(), move.PlanOptions{Placements: true, EveryKey: true})
			if err != nil || !slices.ContainsFunc(plan.Problems, func(p layout.Problem) bool { return strings.HasPrefix(p.What, "its lookup_query calls ") }) {
				t.Errorf("the plan says %+v, %v", plan, err)
			}
			if got := s.sources[0].Query(t, `select (select count(*) from m), (select is_called from sq)`)[0]; got[0] != "50" || got[1] != "f" {
				t.Errorf("%s rows, and the sequence was used: %s", got[0], got[1])
			}
		})
	}
}

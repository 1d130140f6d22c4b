package move_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

func TestCase06ShardingKeyChangedByUpdate(t *testing.T) {
	t.Parallel()
	tables := []string{"outside", "inside", "of_index", "of_full", "keyless"}
	s := newSmallMove(t, 3, "tenant", `create table outside (id int primary key, tenant bigint, a int);
		create table inside (id int, tenant bigint, a int, primary key (id, tenant));
		create table of_index (id int primary key, tenant bigint not null, a int); create unique index of_index_i on of_index (tenant, id); alter table of_index replica identity using index of_index_i;
		create table of_full (like outside including all); alter table of_full replica identity full;
		create table keyless (id int not null, tenant bigint, a int); alter table keyless replica identity full;`+
		strings.Join(stepsOf(tables, `insert into %T select g, g % 7, 0 from generate_series(1, 60) g`), ";"))
	list := stepsOf(tables, `update %T set tenant = tenant + 1 where id % 2 = 0`, `update %T set tenant = tenant + 1, id = id + 1000 where id % 5 = 0`,
		`begin; update %T set tenant = tenant + 1 where id < 20; update %T set a = 1 where id < 20; update %T set tenant = tenant - 1 where id < 20; commit`,
		`begin; insert into %T values (500, 1, 0); update %T set tenant = 2 where id = 500; update %T set tenant = 3, id = 501 where id = 500; delete from %T where id = 501; insert into %T values (501, 5, 5); commit`,
		`begin; delete from %T where id = 21; insert into %T values (21, 9, 9); update %T set tenant = 4 where id = 21; commit`)
	list = append(list, stepsOf([]string{"outside", "of_full", "keyless"}, `insert into %T values (600, null, 1), (601, null, 2)`, `update %T set tenant = null where id in (3, 4, 31)`,
		`update %T set a = a + 1 where tenant is null`, `update %T set tenant = 6 where id in (3, 600)`, `begin; update %T set tenant = null where id between 40 and 49; update %T set tenant = id where id between 40 and 45; commit`,
		`delete from %T where id in (4, 46)`)...)
	s.run(s.steps(list...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
	}
}

// twoSources is a move from two sources, sharded by tenant. tenants are by source and destination shard, two each.
func twoSources(t *testing.T, shards int, schema string) (s *smallMove, tenants [2][][]int) {
	places := newPlaces(t)
	s = newSmallMove(t, shards, "tenant", schema)
	s.addSource(schema)
	of := func(key string, n int) int {
		shard, err := places.of(t.Context(), "bigint", key, n)
		if err != nil {
			t.Fatal(err)
		}
		return shard
	}
	tenants = [2][][]int{make([][]int, shards), make([][]int, shards)}
	for tenant := 1; tenant < 1000; tenant++ {
		key := strconv.Itoa(tenant)
		list := &tenants[of(key, 2)][of(key, shards)]
		if len(*list) < 2 {
			*list = append(*list, tenant)
		}
	}
	return s, tenants
}

// addSource gives the move another source, whose identities hold what tells its rows from the others'.
func (s *smallMove) addSource(schema string) {
	s.t.Helper()
	db := pgtest.Shared(s.t).Database(s.t)
	db.Exec(s.t, schema)
	s.config.Source.Shards = append(s.config.Source.Shards, db.Shard(len(s.sources)))
	s.sources = append(s.sources, db)
	s.config.SetIdentity = true
}

func TestCase07TheSameIdsOnTwoSources(t *testing.T) {
	t.Parallel()
	s, tenants := twoSources(t, 3, `create table pairs (id int, tenant bigint, v text, primary key (tenant, id)); create table apart (id int primary key, tenant bigint, v text);
		create table keyless (id int, tenant bigint, v text)`)
	// pairs: every id under tenants of every shard. apart: source 0's rows go to shard 0, source 1's to shard 1.
	write := func(source, from, to int) {
		var all []string
		for _, list := range tenants[source] {
			for _, tenant := range list {
				all = append(all, strconv.Itoa(tenant))
			}
		}
		own := tenants[source][source]
		s.sources[source].Exec(t, fmt.Sprintf(`insert into pairs select g, t, 's%[1]d' from generate_series(%[2]d, %[3]d) g, unnest('{%[4]s}'::bigint[]) t; insert into keyless select g, t, 'k' from generate_series(%[2]d, %[3]d) g, unnest('{%[4]s}'::bigint[]) t;
			insert into apart select g, case g %% 2 when 0 then %[5]d else %[6]d end, 's%[1]d' from generate_series(%[2]d, %[3]d) g`, source, from, to, strings.Join(all, ","), own[0], own[1]))
	}
	for source := range 2 {
		write(source, 1, 20)
	}
	s.run(func() {
		for source := range 2 {
			write(source, 100, 120)
			own := tenants[source][source]
			s.sources[source].Exec(t, `update pairs set v = v || '!' where id % 3 = 0; delete from pairs where id % 7 = 0; update keyless set v = 'u' where id % 3 = 0; delete from keyless where id = 5; update apart set v = v || '?' where id % 2 = 0; delete from apart where id = 3`)
			s.sources[source].Exec(t, fmt.Sprintf(`insert into pairs values (1000, %d, 'n'); update pairs set tenant = %d where id = 1000; update apart set tenant = %d where tenant = %d and id < 1050; update apart set id = id + 1000`, own[0], own[1], own[1], own[0]))
		}
		s.sources[1].Exec(t, `truncate keyless; insert into keyless select g, tenant, 'after' from generate_series(1, 3) g, (select distinct tenant from pairs) t`)
	})
	s.sameRows(pgtest.RowsOptions{}, "pairs", "apart", "keyless")
	for _, table := range []string{"pairs", "apart", "keyless"} {
		s.onItsShard(table, "tenant", "bigint")
	}
}

// The same primary key for tenants whose shard is the same cannot be on it twice: loud, with the table's name.
func TestCase07TheSamePrimaryKeyForOneShardIsRefused(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"in the copy", "in the stream"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			s, tenants := twoSources(t, 3, `create table orders (id int primary key, tenant bigint, v text)`)
			s.sources[0].Exec(t, `insert into orders values (1, $1, 'a')`, tenants[0][0][0])
			collide := func() { s.sources[1].Exec(t, `insert into orders values (1, $1, 'b')`, tenants[1][0][0]) }
			if when == "in the copy" {
				collide()
			}
			ctx, stop := context.WithTimeout(t.Context(), 40*time.Second)
			defer stop()
			err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
				collide()
				return true, nil
			}})
			if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "orders") {
				t.Fatalf("it ended with %v", err)
			}
			t.Log(err)
			if got := s.shards[0].Query(t, `select tenant, v from orders`); when == "in the stream" && (len(got) != 1 || got[0][1] != "a") {
				t.Errorf("the shard holds %v", got)
			}
		})
	}
}

func TestCase07KeysSwappedAndUniqueValuesHandedOver(t *testing.T) {
	t.Parallel()
	tables := []string{"of_default", "of_full"}
	s := newSmallMove(t, 2, "tenant", `create table of_default (id int primary key, tenant bigint, u int unique, v text, exclude using gist (int4range(u, u + 1) with &&) where (u is not null));
		create table of_full (like of_default including all); alter table of_full replica identity full;`+
		strings.Join(stepsOf(tables, `insert into %T select g, g % 5, g, 'v' || g from generate_series(1, 40) g`), ";"))
	s.run(s.steps(stepsOf(tables,
		`begin; update %T set id = -1 where id = 1; update %T set id = 1 where id = 2; update %T set id = 2 where id = -1; commit`,
		`begin; update %T set id = -1 where id = 5; update %T set id = 5 where id = 10; update %T set id = 10, tenant = 3 where id = -1; commit`,
		`begin; delete from %T where id = 3; insert into %T values (103, 3, 3, 'took 3'); commit`, `begin; delete from %T where id = 4; update %T set id = 4, u = 4 where id = 6; insert into %T values (6, 1, 6, 'new'); commit`,
		`begin; update %T set u = null where id = 7; update %T set u = 7 where id = 12; update %T set u = 12 where id = 7; commit`,
		`begin; update %T set u = u + 1000; update %T set u = 2001 - u; commit`, `begin; update %T set id = id + 500; update %T set id = id - 499; commit`,
		`update %T set tenant = tenant + 1, u = u + 100 where id % 3 = 0`)...))
	for _, table := range tables {
		s.same(table, "id")
		s.onItsShard(table, "tenant", "bigint")
	}
}

func TestCase08TablesWithoutKey(t *testing.T) {
	t.Parallel()
	const schema = `create table of_default (id int, tenant bigint, n numeric, j json, big text); create table of_nothing (like of_default); alter table of_nothing replica identity nothing;
		create table keyed_nothing (id int primary key, tenant bigint, n numeric, j json, big text); alter table keyed_nothing replica identity nothing;
		create table of_full (like of_default); alter table of_full replica identity full;`
	tables := []string{"of_default", "of_nothing", "of_full"}
	const equal = `insert into %T values (1, 1, 1.0, '{"a": 1}', repeat('z', 9000)), (1, 1, 1.0, '{"a": 1}', repeat('z', 9000)), (1, 1, 1.00, '{"a":1}', null), (1, 2, 1, null, ''), (null, null, null, null, null), (null, null, null, null, null)`
	s := newSmallMove(t, 3, "tenant", schema+strings.Join(stepsOf(append(tables, "keyed_nothing"), `insert into %T select g, g % 5, g, '{}', 'b' from generate_series(10, 40) g`), ";")+";"+
		strings.Join(stepsOf(tables, equal, equal), ";"))
	problems := s.problems()
	for _, table := range []string{"of_default", "of_nothing", "keyed_nothing"} {
		if !containing(problems, "public."+table+": without a usable replica identity") || !containing(problems, `alter table "public"."`+table+`" replica identity full, or set [tables] replica_identity = "full"`) {
			t.Errorf("%s is not refused: %q", table, problems)
		}
	}
	if containing(problems, "of_full") {
		t.Errorf("%q", problems)
	}
	s.config.SetIdentity = true
	s.run(s.steps(append(stepsOf(tables, equal, `delete from %T where ctid = (select min(ctid) from %T where id = 1)`, `update %T set n = 2 where ctid = (select min(ctid) from %T where id = 1)`,
		`update %T set tenant = 4 where ctid in (select ctid from %T where id = 1 and big is not null limit 1)`, `update %T set id = 5 where n::text = '1.00'`, `update %T set tenant = 9 where ctid = (select max(ctid) from %T where id is null)`,
		`delete from %T where ctid in (select ctid from %T where id is null limit 1)`), stepsOf(append(tables, "keyed_nothing"), `update %T set big = big || 'x' where id % 2 = 0`, `delete from %T where id % 9 = 0`, `update %T set tenant = tenant + 1 where id > 30`)...)...))
	s.sameRows(pgtest.RowsOptions{}, append(tables, "keyed_nothing")...)
	for _, table := range append(tables, "keyed_nothing") {
		s.onItsShard(table, "tenant", "bigint")
	}
	if got := s.sources[0].Query(t, `select relreplident from pg_class where relname in ('of_default', 'of_nothing', 'keyed_nothing', 'of_full') order by relname`); fmt.Sprint(got) != "[[n] [d] [f] [n]]" {
		t.Errorf("the identities were not put back: %v", got)
	}
}

// An application updates and deletes in a table without key all the time. From plan to the end the only error it may
// see is the fence's, while the layouts are switched.
func TestCase08AnUpdateLoopOnATableWithoutKeySeesNoError(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table counts (tenant bigint, n int, note text); insert into counts select g % 10, 0, 'x' || g % 20 from generate_series(1, 400) g`)
	s.config.SetIdentity = true
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	conn := s.sources[0].Conn(t)
	var writes atomic.Int64
	loop := make(chan error, 1)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := conn.Exec(ctx, []string{`update counts set n = n + 1 where tenant = $1 and note > 'x17'`, `update counts set tenant = tenant + 1 where ctid = (select min(ctid) from counts where tenant = $1)`,
				`with gone as (delete from counts where ctid = (select min(ctid) from counts where tenant = $1) returning *) insert into counts select * from gone`, `insert into counts values ($1, -1, 'new')`}[i%4], i%10)
			var refused *pgconn.PgError
			if errors.As(err, &refused) && refused.Code == "25006" && strings.HasPrefix(refused.Message, "pgreshard: ") {
				break // the freeze: from here on the other layout is asked
			}
			if err != nil && ctx.Err() == nil {
				loop <- err
				return
			}
			writes.Add(1)
			time.Sleep(10 * time.Millisecond) // a row without key is found by reading the table: more than that outruns the stream
		}
		loop <- nil
	}()
	if got := s.problems(); len(got) > 0 {
		t.Errorf("a plan with replica_identity = full is blocked: %q", got)
	}
	err := s.move().Migrate(ctx, move.MigrateOptions{Ready: func(context.Context) (bool, error) {
		for until := writes.Load() + 100; writes.Load() < until && len(loop) == 0; {
			time.Sleep(5 * time.Millisecond)
		}
		return true, nil
	}})
	stop()
	if err := errors.Join(err, <-loop); err != nil {
		t.Fatal(err)
	}
	s.sameRows(pgtest.RowsOptions{}, "counts")
	s.onItsShard("counts", "tenant", "bigint")
}

func TestCase08DeferrableKeys(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table unique_later (id int primary key, tenant bigint, u int unique deferrable initially deferred);
		create table only_key (id int primary key deferrable, tenant bigint, u int, unique (u) deferrable); alter table only_key replica identity full;
		create table not_full (id int primary key deferrable initially deferred, tenant bigint, u int);
		insert into unique_later select g, g % 5, g from generate_series(1, 30) g; insert into only_key select * from unique_later; insert into not_full select * from unique_later`)
	if got := s.problems(); len(got) != 1 || !strings.HasPrefix(got[0], "public.not_full: without a usable replica identity") {
		t.Errorf("a deferrable key is no identity: %q", got)
	}
	s.config.SetIdentity = true
	tables := []string{"unique_later", "only_key", "not_full"}
	s.run(s.steps(append(stepsOf(tables, `update %T set u = 31 - u`, `update %T set u = u + 1`, `insert into %T values (100, 3, 100)`, `update %T set tenant = tenant + 1, u = u + 1000 where id % 2 = 0`, `delete from %T where id = 9`),
		`update only_key set id = id + 1`, `begin; update not_full set id = 3 - id where id in (1, 2); update not_full set id = 4 where id = 3; delete from not_full where id = 4; insert into not_full values (4, 2, 2); commit`,
		`begin; update unique_later set u = 5 where id = 10; update unique_later set u = 200 where id <> 10 and u = 5; commit`)...))
	for _, table := range tables {
		s.sameRows(pgtest.RowsOptions{}, table)
		s.onItsShard(table, "tenant", "bigint")
	}
}

func TestCase09AllKeyAndCompositeKeys(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create table memberships (person int, tenant bigint, primary key (person, tenant)); create table by_second (id text, tenant bigint, a int, primary key (id, tenant));
		create table by_two (x int, y text, a int, primary key (y, x)); create table all_key_full (like memberships including all); alter table all_key_full replica identity full;
		insert into memberships select g, g % 7 from generate_series(1, 50) g; insert into all_key_full select g, g % 7 from generate_series(1, 50) g; insert into by_second select 'same', g, g from generate_series(1, 50) g; insert into by_two select g % 5, 'y' || g % 9, g from generate_series(1, 45) g`)
	s.shard("by_two", "x", "y")
	s.run(s.steps(append(stepsOf([]string{"memberships", "all_key_full"}, `insert into %T select g, g % 3 from generate_series(100, 120) g`, `update %T set person = person`, `update %T set tenant = tenant + 1 where person % 2 = 0`,
		`update %T set person = person + 1000 where person % 3 = 0`, `delete from %T where person % 5 = 0`, `begin; delete from %T where person = 7; insert into %T values (7, 0); commit`),
		`update by_second set a = a + 1; update by_second set tenant = tenant + 100 where a % 2 = 0`, `update by_second set id = 'other' where tenant < 20; delete from by_second where tenant = 21; insert into by_second values ('same', 21, 0), ('same', 500, 1)`,
		`update by_two set a = 0 where x = 1; update by_two set y = y || 'z' where x = 2; update by_two set x = x + 10 where x = 3; delete from by_two where x = 4`)...))
	s.sameRows(pgtest.RowsOptions{}, "memberships", "all_key_full", "by_second", "by_two")
	for _, table := range []string{"memberships", "all_key_full", "by_second"} {
		s.onItsShard(table, "tenant", "bigint")
	}
	for n, db := range s.shards {
		db.Exec(t, `create table placed_two (x int, y text) partition by hash (x, y)`)
		if got := db.Query(t, fmt.Sprintf(`select count(*) from by_two where not satisfies_hash_partition('placed_two'::regclass, 3, %d, x, y)`, n)); got[0][0] != "0" {
			t.Errorf("shard %d holds %s rows of by_two that are not its own", n, got[0][0])
		}
	}
}

// keyTypes are types of a key that is the primary key and the sharding key, and an SQL expression of number g's value.
var keyTypes = []struct{ name, typ, value, hashed string }{
	{"char", "char(12)", `'k' || g`, ""}, {"collated", `text collate "C"`, `case g % 2 when 0 then 'K' else 'é' end || g`, ""}, {"odd_text", "text", `E' \\"{},\n' || repeat(' ', g)`, ""},
	{"domain", "code", `'CODE' || g`, "text"}, {"domain_of_domain", "short_code", `'C' || g`, "text"}, {"uuid", "uuid", `md5(g::text)::uuid`, ""}, {"bytea", "bytea", `decode(lpad(to_hex(g), 6, '0'), 'hex') || '\x005c'`, ""},
	{"numeric", "numeric", `(g || case g % 3 when 0 then '' when 1 then '.00' else '.125' end)::numeric`, ""}, {"timestamptz", "timestamptz", `timestamptz '1999-12-31 23:59:59.999999+05:30' + g * interval '1 day'`, ""},
	{"float", "float8", `g / 7.0::float8`, ""}, {"date", "date", `date '0044-03-15 BC' + g`, ""}, {"interval", "interval", `g * interval '1 month 3 days'`, ""}, {"inet", "inet", `'10.0.0.0/8'::inet + g`, ""},
	{"varchar", "varchar(20)", `'ñ' || g`, ""}, {"name", "name", `'n' || g`, ""}, {"bigint", "bigint", `-9223372036854775807 + g`, ""},
}

func TestCase10KeysOfEveryAwkwardType(t *testing.T) {
	t.Parallel()
	schema := `create domain code as text check (value ~ '^C'); create domain short_code as code check (length(value) < 9);`
	s := &smallMove{}
	var list []string
	for _, k := range keyTypes {
		schema += fmt.Sprintf(`create table k_%[1]s (k %[2]s primary key, tenant int, v text); insert into k_%[1]s select %[3]s, g, 'v' from generate_series(1, 40) g;`, k.name, k.typ, k.value)
		list = append(list, fmt.Sprintf(`insert into k_%[1]s select %[2]s, g, 'w' from generate_series(101, 120) g; update k_%[1]s set v = 'u' where tenant %% 3 = 0; update k_%[1]s set k = (select %[2]s from generate_series(500, 500) g) where tenant = 4;
			delete from k_%[1]s where tenant in (7, 8, 105)`, k.name, k.value))
	}
	list = append(list, `update k_numeric set k = k * 1.000 where tenant in (9, 10); update k_numeric set v = 'again' where tenant = 9`, `update k_char set k = 'x' where tenant = 11; update k_char set v = 'trailing' where k = 'x   '`,
		`insert into k_numeric values ('NaN', 900, 'n'), ('Infinity', 901, 'i'); insert into k_float values ('-0', 900, 'z'), ('NaN', 901, 'n'); update k_float set k = 0 where tenant = 900; insert into k_bytea values ('', 900, 'e'); insert into k_timestamptz values ('infinity', 900, 'i')`)
	s = newSmallMove(t, 3, "k", schema)
	s.run(s.steps(list...))
	for _, k := range keyTypes {
		s.sameRows(pgtest.RowsOptions{}, "k_"+k.name)
		hashed := k.typ
		if k.hashed != "" {
			hashed = k.hashed
		}
		s.onItsShard("k_"+k.name, "k", hashed)
	}
}

// Whatever a table is sharded by, rows are found by keys of these types; by enums, which servers hash by their OIDs, it cannot be.
func TestCase10PrimaryKeysThatPgreshardDoesNotHash(t *testing.T) {
	t.Parallel()
	schema := `create type mood as enum ('c', 'b', 'a'); create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		create table k_enum (k mood, tenant bigint, n int, primary key (k, n)); create table k_array (k int[] primary key, tenant bigint, n int); create table k_range (k int4range primary key, tenant bigint, n int); create table k_enums (k mood[] primary key, tenant bigint, n int);
		create table k_blind (k text collate blind primary key, tenant bigint, n int);
		insert into k_enum select (enum_range(null::mood))[g % 3 + 1], g % 5, g from generate_series(1, 30) g; insert into k_array select array[g, null], g % 5, g from generate_series(1, 30) g;
		insert into k_enums select array_fill('a'::mood, array[g]), g % 5, g from generate_series(1, 30) g; insert into k_range select int4range(g, g + 1), g % 5, g from generate_series(1, 30) g; insert into k_blind select 'Key' || g, g % 5, g from generate_series(1, 30) g;`
	tables := []string{"k_enum", "k_enums", "k_array", "k_range", "k_blind"}
	list := []string{`update k_enums set k = k || 'c'::mood where n = 30; update k_enum set k = 'a' where n < 5; insert into k_enum values ('a', 1, 100)`, `update k_array set k = k || 5 where n < 5; update k_range set k = int4range(n + 100, n + 200) where n < 5`,
		`update k_blind set k = 'KEY' || n where n < 9; update k_blind set tenant = 3 where k = 'key3'; begin; delete from k_blind where k = 'key20'; insert into k_blind values ('kEY20', 1, 20); commit`}
	if has(t, "citext") {
		schema += `create extension citext; create table k_citext (k citext primary key, tenant bigint, n int); insert into k_citext select 'Key' || g, g % 5, g from generate_series(1, 30) g;`
		tables = append(tables, "k_citext")
		list = append(list, `update k_citext set k = 'KEY' || n where n < 9; update k_citext set tenant = 3 where k = 'key3'; begin; delete from k_citext where k = 'key20'; insert into k_citext values ('kEY20', 1, 20); commit`)
	}
	s := newSmallMove(t, 2, "tenant", schema)
	s.config.Destination.Spec.Tables[0].Columns = []string{"k"}
	if got := s.problems(); len(got) != 2 || !strings.HasPrefix(got[0], "public.k_enum: ") || !strings.HasPrefix(got[1], "public.k_enums: ") {
		t.Errorf("sharded by their keys: %q", got)
	}
	s.config.Destination.Spec.Tables[0] = layout.ShardedTable{Database: "app_sharded", Columns: []string{"tenant"}}
	s.run(s.steps(append(list, stepsOf(tables, `update %T set n = n + 1000 where n % 4 = 0`, `update %T set tenant = tenant + 1 where n % 3 = 0`, `delete from %T where n in (10, 11)`)...)...))
	s.sameRows(pgtest.RowsOptions{}, tables...)
	for _, table := range tables {
		s.onItsShard(table, "tenant", "bigint")
	}
}

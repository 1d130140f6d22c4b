package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// kept is a move that has switched and keeps the old layout following.
type kept struct {
	*rig
	*move.Move
	done chan error
}

// keep runs the move to its switch and waits until the sources follow.
func (r *rig) keep() *kept { r.t.Helper(); return r.keepUntil(r.t.Context()) }

func (r *rig) keepUntil(ctx context.Context) *kept { r.t.Helper(); return r.keepWith(ctx, r.move()) }

func (r *rig) keepWith(ctx context.Context, m *move.Move) *kept {
	r.t.Helper()
	k := &kept{rig: r, Move: m, done: make(chan error, 1)}
	go func() { k.done <- k.Migrate(ctx, move.MigrateOptions{}) }()
	k.following()
	return k
}

// following waits until a rollback could be asked for.
func (k *kept) following() {
	k.t.Helper()
	for began := time.Now(); ; k.alive() {
		s := k.Snapshot()
		if s.Reverse != nil && s.Reverse.Rollback.OK {
			return
		}
		if time.Since(began) > time.Minute {
			k.t.Fatalf("the old layout does not follow: %+v, %+v", s.Reverse, s.Waiting)
		}
	}
}

func (k *kept) alive() {
	k.t.Helper()
	select {
	case err := <-k.done:
		k.t.Fatalf("the worker ended: %v; %+v", err, k.Snapshot())
	case <-time.After(10 * time.Millisecond):
	}
}

// level waits until the sources have everything that the shards have now.
func (k *kept) level() {
	k.t.Helper()
	k.levels(k.shards, k.sources, k.config.Name+"/reverse", k.alive)
}

// levels waits until each database of to has, by the streams of a name, everything that those of from have now.
func (r *rig) levels(from, to []*pgtest.DB, streams string, alive func()) {
	r.t.Helper()
	for n, db := range from {
		end := db.Query(r.t, `select pg_logical_emit_message(true, 'pgreshard', 'level')`)[0][0]
		for _, into := range to {
			for into.Query(r.t, `select lsn >= $3::pg_lsn from pgreshard.checkpoint where move = $1 and source = $2`, streams, n, end)[0][0] != "t" {
				alive()
			}
		}
	}
}

// soon asks for a switch until it is made.
func (r *rig) soon(ask func() (move.CutoverReport, error)) move.CutoverReport {
	r.t.Helper()
	for {
		report, err := ask()
		var behind *move.NotReadyError
		if err == nil {
			return report
		}
		if !errors.As(err, &behind) {
			r.t.Fatal(err)
		}
		r.t.Log(err)
		time.Sleep(50 * time.Millisecond)
	}
}

// nothingLeft fails where slots, publications or fences are left.
func (r *rig) nothingLeft(fences bool, dbs ...*pgtest.DB) {
	r.t.Helper()
	for _, db := range dbs {
		left := db.Query(r.t, `select (select count(*) from pg_replication_slots where database = current_database()), (select count(*) from pg_publication),
			(select count(*) from pgreshard.checkpoint) + (select count(*) from pgreshard.outbox), (select count(*) > 0 from pg_trigger where tgname like '%pgreshard%')`)
		if want := fmt.Sprintf("[[0 0 0 %.1s]]", fmt.Sprint(fences)); fmt.Sprint(left) != want {
			r.t.Errorf("%s: slots, publications, checkpoints, fences left: %v, want %s", db.Name, left, want)
		}
	}
}

func reverseRig(t *testing.T, m, n int) *rig {
	r := newRig(t, m, n, pgtest.WorkloadOptions{Writers: 8, Rate: 200, Lookups: true, KeyChanges: true, NewTenants: true})
	r.config.Name = fmt.Sprintf("back%d", moveNumber.Add(1))
	r.config.Reverse = true
	return r
}

// serving fails unless every node says that this layout serves, and writes pass there and nowhere else.
func (r *rig) serving(version int) {
	r.t.Helper()
	for layout, dbs := range map[int][]*pgtest.DB{1: r.sources, 2: r.shards} {
		for _, db := range dbs {
			if got := db.Query(r.t, `select version from pgreshard.serving`); fmt.Sprint(got) != fmt.Sprintf("[[%d]]", version) {
				r.t.Errorf("%s says that layout %v serves, want %d", db.Name, got, version)
			}
			_, err := db.Conn(r.t).Exec(r.t.Context(), `update tenants set name = name where id = 1`)
			if layout == version && err != nil || layout != version && pg.Code(err) != "25006" {
				r.t.Errorf("a write to %s of layout %d: %v", db.Name, layout, err)
			}
		}
	}
}

// What an application does on the new layout, each statement on the shard named, or on both.
var onTheNewLayout = []struct {
	shard int // -1: both
	sql   string
}{
	{-1, `update items set note = note || ' new' where id % 3 = 0`},
	{-1, `delete from items where id % 7 = 0`},
	{-1, `update items set id = id + 100000 where id % 11 = 0`},
	{-1, `insert into items (tenant, note) select min(tenant), 'by its sequence' from items, generate_series(1, 20)`},
	{-1, `update items set tenant = 39 - tenant, note = 'of another source' where tenant in (19, 20)`},
	{-1, `insert into lonely select 500 + tenant, tenant, 'new' from items group by tenant; update lonely set note = 'renamed' where id % 5 = 0; delete from lonely where id % 7 = 0`},
	{-1, `insert into log select tenant, 'new' from items; delete from log where line = 'old' and tenant % 3 = 1`},
	{-1, `insert into tenants values (1000, null, 'a new one'); update tenants set name = 'renamed' where id = 4; delete from tenants where id = 999`},
	{0, `insert into items (tenant, note) values (1000, 'of the new tenant')`},
	{0, `truncate wiped`},
	{1, `insert into wiped values (5000, (select min(tenant) from items), 'after it')`},
	// A row goes from one shard to the other.
	{0, `delete from moved`},
	{1, `insert into moved select g, (select min(tenant) from items), 'moved' from generate_series(1, 300) g`},
}

const rollbackSchema = `
create table tenants (id bigint primary key, parent bigint, name text);
insert into tenants select g, case when g % 2 = 0 then g - 1 end, 'tenant ' || g from generate_series(1, 40) g; insert into tenants values (999, null, 'goes');
create table items (id bigserial primary key, tenant bigint not null, note text);
insert into items (tenant, note) select 1 + g % 40, 'old' from generate_series(1, 800) g;
create table log (tenant bigint not null, line text); alter table log replica identity full;
insert into log select 1 + g % 40, 'old' from generate_series(1, 200) g;
create table wiped (id bigint primary key, tenant bigint not null, note text);
insert into wiped select g, 1 + g % 40, 'old' from generate_series(1, 200) g;
create table moved (id bigint primary key, tenant bigint not null, note text);
create table lonely (id bigint primary key, tenant bigint not null, note text);
insert into lonely select g, 1 + g % 40, 'old' from generate_series(1, 100) g`

// rollbackMove has two shards, and one source with rollbackSchema or two that share its rows: tenants up to 19 are the first's,
// but of lonely the first has all. moved is filled with rows of the first shard alone.
func rollbackMove(t *testing.T, sources int) *smallMove {
	s := newSmallMove(t, 2, "tenant", rollbackSchema)
	rules := s.config.Destination.Spec.Tables
	rules[0].LookupQuery = `select coalesce(parent, id) from tenants where id = $1`
	s.omni("tenants")
	s.config.Reverse = true
	if sources == 1 {
		return s
	}
	second := s.sources[0].Cluster.Database(t)
	second.Exec(t, rollbackSchema)
	s.sources = append(s.sources, second)
	on := func(shard int) *int { return &shard }
	source := &s.config.Source
	source.Shards = append(source.Shards, second.Shard(1))
	source.Spec.Tables = append(source.Spec.Tables, layout.ShardedTable{Database: "app", Name: "lonely", Columns: []string{"tenant"},
		Mapping: []layout.Mapping{{Kind: layout.KindDefault, Shard: on(0)}}})
	source.Spec.Tables[0].Mapping = []layout.Mapping{{Kind: layout.KindRange, End: 20, Shard: on(0)}, {Kind: layout.KindRange, Start: 20, Shard: on(1)}}
	source.Spec.Omni = []layout.OmniTables{{Database: "app", Tables: []string{"tenants"}}}
	for n, db := range s.sources {
		for _, table := range []string{"items", "log", "wiped", "moved", "lonely"} {
			db.Exec(t, `alter table `+table+` replica identity full`)
			if table != "lonely" {
				db.Exec(t, fmt.Sprintf(`delete from %s where (tenant >= 20)::int <> %d`, table, n))
			}
		}
		db.Exec(t, fmt.Sprintf(`alter sequence items_id_seq increment by 2; select setval('items_id_seq', %d)`, 1000+n))
	}
	second.Exec(t, `truncate lonely`)
	return s
}

// whereRulesSay fails where a row stands on a source that is not its own.
func (s *smallMove) whereRulesSay() {
	s.t.Helper()
	if len(s.sources) == 1 {
		return
	}
	for n, db := range s.sources {
		for _, table := range []string{"items", "log", "wiped", "moved"} {
			if astray := db.Query(s.t, fmt.Sprintf(`select count(*) from %s where (tenant >= 20)::int <> %d`, table, n)); astray[0][0] != "0" {
				s.t.Errorf("source %d holds %s rows of %s that are another's", n, astray[0][0], table)
			}
		}
	}
	if lonely := s.sources[1].Query(s.t, `select count(*) from lonely`); lonely[0][0] != "0" {
		s.t.Errorf("the second source holds %s rows of the first's own table", lonely[0][0])
	}
}

// ofFirst is a tenant whose rows live on the first shard.
func (s *smallMove) ofFirst() string {
	return s.shards[0].Query(s.t, `select min(tenant) from items`)[0][0]
}

func (k *kept) write() {
	k.t.Helper()
	for _, c := range onTheNewLayout {
		for n, db := range k.shards {
			if c.shard < 0 || c.shard == n {
				db.Exec(k.t, c.sql)
			}
		}
	}
}

// sameAsSources compares both sides by plain SQL, and looks whether each source holds its own.
func (s *smallMove) sameAsSources() {
	s.t.Helper()
	s.sameRows(pgtest.RowsOptions{}, "items", "log", "wiped", "moved", "lonely")
	for _, source := range s.conns(s.sources) {
		for _, shard := range s.conns(s.shards) {
			if err := pgtest.SameRows(s.t.Context(), []*pgx.Conn{source}, []*pgx.Conn{shard}, "tenants", pgtest.RowsOptions{}); err != nil {
				s.t.Error(err)
			}
		}
	}
	s.whereRulesSay()
}

// handsOutAbove: after a rollback a source's sequence goes on as it was defined, each source with its own values, above what
// the shards have handed out.
func (s *smallMove) handsOutAbove() {
	s.t.Helper()
	var most int
	for _, db := range s.sources {
		highest, err := strconv.Atoi(db.Query(s.t, `select coalesce(max(id), 0) from items where note = 'by its sequence'`)[0][0])
		if err != nil {
			s.t.Fatal(err)
		}
		most = max(most, highest)
	}
	for n, db := range s.sources {
		tenant := []int{1, 30}[n]
		got := db.Query(s.t, fmt.Sprintf(`insert into items (tenant, note) select %d, 'after' from generate_series(1, 3) returning id > %d, id %% %d = %d, id`,
			tenant, most, len(s.sources), n))
		first, err := strconv.Atoi(got[0][2])
		if err != nil {
			s.t.Fatal(err)
		}
		for i, value := range got {
			if want := []string{"t", "t", strconv.Itoa(first + i*len(s.sources))}; !slices.Equal(value, want) {
				s.t.Errorf("source %d hands out %v after a rollback, above %d, want %v", n, value, most, want)
			}
		}
	}
}

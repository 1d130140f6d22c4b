package sink_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// variant is a table of the random tests: every one has id, tenant, a, big and u.
type variant struct {
	name, also string // also: DDL after it, %[1]s its name
	primary    string
	key        string // sharding column; empty: omnisharded
	nullable   bool   // tenant may be NULL
	lookup     bool   // placed by its tenant's parent
	unique     bool   // u is unique
}

var variants = []variant{
	{name: "outside", primary: "primary key (id)", key: "tenant", nullable: true, unique: true},
	{name: "inside", primary: "primary key (tenant, id)", key: "tenant"},
	{name: "indexed", primary: "primary key (id)", key: "tenant", also: `create unique index %[1]s_i on %[1]s (id, tenant); alter table %[1]s replica identity using index %[1]s_i;`},
	{name: "whole", primary: "primary key (id)", key: "tenant", nullable: true, unique: true, also: `alter table %[1]s replica identity full;`},
	{name: "keyless", key: "tenant", nullable: true, also: `alter table %[1]s replica identity full;`},
	{name: "byid", primary: "primary key (id)", key: "id", unique: true},
	{name: "omni", primary: "primary key (id)"},
	{name: "looked", primary: "primary key (id)", key: "tenant", lookup: true},
	{name: "lookedwhole", primary: "primary key (id)", key: "tenant", lookup: true, also: `alter table %[1]s replica identity full;`},
	{name: "lookedkeyless", key: "tenant", lookup: true, also: `alter table %[1]s replica identity full;`},
	{name: "parts", primary: "primary key (id, a)", key: "tenant"},
}

func (v variant) ddl() string {
	null, unique, references, partition := " not null", "", "", ""
	if v.nullable {
		null = ""
	}
	if v.unique {
		unique = " unique"
	}
	if v.lookup {
		references = " references tenants on delete cascade deferrable initially deferred"
	}
	if v.name == "parts" {
		partition = ` partition by range (a); create table parts_0 partition of parts for values from (minvalue) to (3);
			create table parts_1 (u int, big text, a int not null, tenant bigint not null, id int not null); alter table parts attach partition parts_1 default`
	}
	primary := ""
	if v.primary != "" {
		primary = ", " + v.primary
	}
	return fmt.Sprintf(`create table %[1]s (id int, tenant bigint%[2]s%[3]s, a int, big text, u int%[4]s%[5]s)%[6]s;
		alter table %[1]s alter big set storage external; `+v.also, v.name, null, references, unique, primary, partition)
}

// everyVariant is a rig with all of them; fill puts rows into the source before the stream begins.
func everyVariant(t testing.TB, shards int, list []variant, fill ...string) *following {
	schema := "create table tenants (id bigint primary key, parent bigint, note text);"
	r := rules{sharded: map[string]string{}, lookups: map[string]string{}, omni: []string{"tenants"}}
	for _, v := range list {
		schema += v.ddl()
		switch {
		case v.key == "":
			r.omni = append(r.omni, v.name)
		case v.lookup:
			r.sharded[v.name], r.lookups[v.name] = v.key, parentOf
		default:
			r.sharded[v.name] = v.key
		}
	}
	f := follow(t, shards, schema+strings.Join(fill, ";"), schema, r)
	for _, v := range list {
		if v.lookup {
			f.keys[v.name] = `(select coalesce(parent, id) from tenants where id = r.tenant)`
		}
	}
	return f
}

// scribe writes random transactions over few rows.
type scribe struct {
	*rand.Rand
	conn     *pgx.Conn
	variants []variant
}

func (s scribe) id() int     { return s.IntN(9) + 1 }
func (s scribe) tenant() int { return s.IntN(7) + 1 }

func (s scribe) big() string {
	switch s.IntN(4) {
	case 0:
		return "null"
	case 1:
		return fmt.Sprintf("'short %d'", s.IntN(1000))
	}
	return fmt.Sprintf("repeat('%d ', 1200)", s.IntN(1000))
}

func (s scribe) u() string {
	if s.IntN(3) == 0 {
		return "null"
	}
	return strconv.Itoa(s.IntN(30))
}

// mapped makes sure that a tenant has its mapping row.
func (s scribe) mapped(tenant int) string {
	return fmt.Sprintf("insert into tenants values (%d, %s) on conflict do nothing", tenant, s.parent())
}

func (s scribe) parent() string {
	if s.IntN(3) == 0 {
		return "null"
	}
	return strconv.Itoa(s.tenant())
}

// statement is one random change.
func (s scribe) statement() []string {
	v := s.variants[s.IntN(len(s.variants))]
	t, id, tenant := v.name, s.id(), s.tenant()
	one := fmt.Sprintf("where id = %d", id)
	if v.primary == "" {
		one = fmt.Sprintf("where ctid = (select ctid from %s where id = %d limit 1)", t, id)
	}
	set := func(what string, args ...any) []string {
		return []string{fmt.Sprintf("update %s set %s %s", t, fmt.Sprintf(what, args...), one)}
	}
	switch s.IntN(20) {
	case 0, 1, 2, 3:
		insert := fmt.Sprintf("insert into %s values (%d, %d, %d, %s, %s)", t, id, tenant, s.IntN(5), s.big(), s.u())
		if !v.lookup {
			return []string{insert}
		}
		if s.IntN(2) == 0 {
			return []string{insert, s.mapped(tenant)}
		}
		return []string{s.mapped(tenant), insert}
	case 4, 5:
		return set("a = %d", s.IntN(5))
	case 6:
		return set("big = %s", s.big())
	case 7, 8:
		if v.lookup {
			return append(set("tenant = %d", tenant), s.mapped(tenant))
		}
		return set("tenant = %d", tenant)
	case 9:
		return set("id = %d", s.id())
	case 10:
		if v.lookup {
			return append([]string{s.mapped(tenant)}, set("id = %d, tenant = %d, a = 1", s.id(), tenant)...)
		}
		return set("id = %d, tenant = %d", s.id(), tenant)
	case 11, 12, 13:
		return []string{fmt.Sprintf("delete from %s %s", t, one)}
	case 14:
		return []string{fmt.Sprintf("update %s set a = (a + 1) %% 5", t)}
	case 15: // two rows change places
		other := s.id()
		return []string{fmt.Sprintf("update %s set id = -1 where id = %d", t, id), fmt.Sprintf("update %s set id = %d where id = %d", t, id, other),
			fmt.Sprintf("update %s set id = %d where id = -1", t, other)}
	case 16:
		if v.nullable {
			return set("tenant = null")
		}
		return set("u = %s", s.u())
	case 17: // there and back
		if v.lookup {
			return append([]string{s.mapped(tenant)}, fmt.Sprintf("update %s set tenant = %d where id = %d and tenant <> %[2]d", t, tenant, id))
		}
		return append(set("tenant = tenant + 1"), set("tenant = tenant - 1")...)
	case 18:
		switch s.IntN(8) {
		case 0:
			return []string{"truncate " + t}
		case 1:
			return []string{fmt.Sprintf("delete from tenants where id = %d", tenant)}
		case 2, 3:
			return []string{fmt.Sprintf("update tenants set parent = %s where id = %d", s.parent(), tenant)}
		case 4:
			return []string{fmt.Sprintf("update tenants set parent = parent %% 7 + 1, note = 'moved' where id < %d", tenant)}
		}
		return []string{fmt.Sprintf("update tenants set note = '%d'", s.IntN(100))}
	}
	return set("a = a, u = %s", s.u())
}

// transaction runs one; what the source refuses is undone as a whole.
func (s scribe) transaction(ctx context.Context) {
	tx, err := s.conn.Begin(ctx)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	for range s.IntN(6) + 1 {
		aside := s.IntN(8) == 0
		if aside {
			_, err = tx.Exec(ctx, "savepoint aside")
		}
		for _, sql := range s.statement() {
			if err == nil {
				_, err = tx.Exec(ctx, sql)
			}
		}
		if aside {
			_, err = tx.Exec(ctx, "rollback to aside")
		}
		if err != nil {
			return
		}
	}
	_ = tx.Commit(ctx)
}

// Several writers hit the same few rows again and again, in every kind of table, while the stream is stopped and its
// backends are ended at random moments. SINK_SEED replays one seed (its statements; how writers interleave is the
// machine's).
func TestRandomChangesArriveWhateverIsStopped(t *testing.T) {
	t.Parallel()
	n := 9
	if os.Getenv(pgtest.EveryCase) != "" {
		n = 24
	}
	var next atomic.Int64
	list := pgtest.Seeds(t, "SINK_SEED", n)
	for range min(3, len(list)) {
		t.Run("lane", func(t *testing.T) {
			t.Parallel()
			for i := next.Add(1) - 1; int(i) < len(list); i = next.Add(1) - 1 {
				t.Run(fmt.Sprintf("SINK_SEED=%d", list[i]), func(t *testing.T) { randomRun(t, list[i]) })
			}
		})
	}
}

func randomRun(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	shards, identity := r.IntN(4)+1, ""
	if r.IntN(2) == 0 {
		identity = "alter table tenants replica identity full"
	}
	f := everyVariant(t, shards, variants, identity)
	if f.unkeyed = r.IntN(4) == 0; f.unkeyed {
		f.takeOver()
	}
	bytes := []int{1, 300, 3000, 0}[r.IntN(4)]
	f.queue = []int{1, 20000, 0}[r.IntN(3)]
	f.ready = func() { f.stream.BatchBytes = bytes; f.stream.BeforeCommit(crashes(r.IntN(30)+3, 6)) }
	f.ready()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers errgroup.Group
	for w := range 3 {
		s := scribe{rand.New(rand.NewPCG(seed, uint64(w)+2)), f.source.Conn(t), variants}
		writers.Go(func() error {
			for range 70 {
				s.transaction(ctx)
			}
			return nil
		})
	}
	done := make(chan struct{})
	go func() { _ = writers.Wait(); close(done) }()

	stop := f.run()
	for writing, end := true, 4; writing || end > 0; {
		select {
		case <-done:
			writing, end = false, end-1
			time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
		case <-time.After(time.Duration(r.IntN(150)) * time.Millisecond):
		}
		switch r.IntN(4) {
		case 0: // the same process goes on
			stop()
			stop = f.run()
		case 1: // another process takes over
			stop()
			f.takeOver()
			stop = f.run()
		case 2:
			f.endBackends(f.shards[r.IntN(len(f.shards))])
		}
	}
	f.catchUp()
	f.compare()
	stop()
	if err := f.err; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("the stream ended with %v", err)
	}
	t.Logf("%d shards, %d runs, batches of %d bytes", len(f.shards), f.runs, cmp.Or(bytes, 4<<20))
}

// errCrash is a death of the process just before it commits on one shard.
var errCrash = errors.New("crashed")

// crashes makes about every nth commit one that does not happen, up to a number of times.
func crashes(n, most int) func(context.Context, layout.Shard, pg.LSN) error {
	var happened atomic.Int64
	return func(context.Context, layout.Shard, pg.LSN) error {
		if rand.IntN(n) == 0 && happened.Add(1) <= int64(most) {
			return errCrash
		}
		return nil
	}
}

// endBackends ends what the stream has open on a shard.
func (f *following) endBackends(db *pgtest.DB) {
	f.t.Helper()
	db.Exec(f.t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = $1`, f.stream.AppName)
}

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgreshard/pgtest"
)

// catalogSQL lists everything a database has that a move could make, and slots and prepared transactions of its server.
const catalogSQL = `
with mine as (select oid from pg_namespace where nspname !~ '^pg_' and nspname <> 'information_schema')
select 'schema ' || nspname || coalesce(' ' || nspacl::text, '') from pg_namespace where oid in (select oid from mine)
union all select 'relation ' || oid::regclass || ' ' || relreplident::text from pg_class where relnamespace in (select oid from mine) and relkind <> 'i'
union all select 'function ' || oid::regprocedure from pg_proc where pronamespace in (select oid from mine)
union all select 'type ' || oid::regtype from pg_type where typnamespace in (select oid from mine)
union all select 'trigger ' || tgname || ' on ' || tgrelid::regclass || ' ' || tgenabled::text from pg_trigger where not tgisinternal
union all select 'event trigger ' || evtname from pg_event_trigger
union all select 'publication ' || pubname from pg_publication
union all select 'slot ' || slot_name from pg_replication_slots where database = current_database() or slot_type = 'physical'
union all select 'prepared ' || gid from pg_prepared_xacts where database = current_database()
union all select 'settings ' || setconfig::text from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase where d.datname = current_database()
order by 1`

func catalog(t *testing.T, db *pgtest.DB) (all []string) {
	t.Helper()
	for _, row := range db.Query(t, catalogSQL) {
		all = append(all, row[0])
	}
	return all
}

// cancelRig is a move between three servers, any of which may go away.
type cancelRig struct {
	*rig
	clusters []*pgtest.Cluster // the source's, the home's, the second shard's
	gates    []*gates
	was      [][]string // the catalogs before the move, source first
}

func cancelClusters(t *testing.T) (all []*pgtest.Cluster) {
	for range 3 {
		all = append(all, pgtest.Start(t, pgtest.Options{}))
	}
	return all
}

func newCancelRig(t *testing.T, clusters []*pgtest.Cluster) *cancelRig {
	t.Helper()
	source := clusters[0].Database(t)
	r := &cancelRig{rig: &rig{t: t, listen: freePort(t), sources: []*pgtest.DB{source}, name: nameOf(source)}, clusters: clusters}
	source.Exec(t, `create table items (id bigint primary key, tenant bigint not null, parent bigint references items, note text);
		create index items_tenant on items (tenant); create table notes (tenant bigint, note text);
		insert into items select g, g % 20, null, 'n' from generate_series(1, 200) g; insert into notes select g % 20, 'x' from generate_series(1, 200) g`)
	for _, c := range clusters[1:] {
		db := c.Database(t)
		r.shards, r.gates = append(r.shards, db), append(r.gates, newGates(t, db))
	}
	r.file, r.env = filepath.Join(t.TempDir(), "pgreshard.toml"), []string{stateVariable + "=" + t.TempDir()}
	writeConfig(t, r.file, r.name, r.listen, urls(r.sources), urls(r.shards), "[[sharded_tables]]\ncolumn = \"tenant\"\n"+
		"[tables]\nreplica_identity = \"full\"\n[schema]\nskip = [\"fk:items_parent_fkey\"]\n[cutover]\nreverse = false\nmax_freeze = \"5m\"\n")
	for _, db := range r.dbs() {
		r.was = append(r.was, catalog(t, db))
	}
	return r
}

func (r *cancelRig) dbs() []*pgtest.DB { return append(slices.Clone(r.sources), r.shards...) }

// killedAt runs a worker to a point on a shard and kills it there.
func (r *cancelRig) killedAt(t *testing.T, shard int, point string) {
	t.Helper()
	g := r.gates[shard]
	g.shut(t, point)
	p := r.start("migrate", "--yes")
	g.await(t, p, point)
	p.kill()
}

// asBefore fails where a database has not exactly what it had before the move, and what is in except.
func (r *cancelRig) asBefore(t *testing.T, i int, except ...string) {
	t.Helper()
	is := slices.DeleteFunc(catalog(t, r.dbs()[i]), func(s string) bool { return slices.Contains(except, s) })
	if !slices.Equal(is, r.was[i]) {
		t.Errorf("%s had\n%s\nand has\n%s", r.dbs()[i].Name, strings.Join(r.was[i], "\n"), strings.Join(is, "\n"))
	}
}

// A move that was killed in any state is taken away whole. A node that is down meanwhile is named, the others are cleared
// at once, no migrate goes on from there, and the same command takes the rest when the node is back.
func TestACancelInAnyStateLeavesEveryCatalogAsItWas(t *testing.T) {
	t.Parallel()
	clusters := cancelClusters(t)
	for i, c := range []struct {
		state string
		shard int
		point string
		made  int // fewest objects there are to take away from the source and the second shard each
	}{
		{"created", 0, "state schema", 10},
		{"schema", 1, "made public.items", 10},
		{"copying", 0, "first chunks", 20},
		{"indexing", 1, "made public.items_tenant", 20},
		{"streaming", 0, "state cutting_over", 20},
		{"cutting_over", 0, "freeze after", 20}, // writes are refused
		{"cutting_over", 0, "seal after", 20},   // for good
	} {
		t.Run(fmt.Sprintf("%s, at %s", c.state, c.point), func(t *testing.T) {
			r := newCancelRig(t, clusters)
			r.killedAt(t, c.shard, c.point)
			if got := r.state(); got != c.state {
				t.Fatalf("the move is %s", got)
			}
			for n, db := range r.dbs() {
				if made := len(catalog(t, db)) - len(r.was[n]); made < c.made && n != 1 {
					t.Errorf("only %d objects were made in %s", made, db.Name)
				}
			}
			down := []int{2, 0} // the second shard first, or the source
			if i%2 == 1 {
				down = []int{0, 2}
			}
			for k, n := range down {
				if err := clusters[n].Stop("immediate"); err != nil {
					t.Fatal(err)
				}
				code, _, said := r.run("cancel", "--drop-data")
				where := map[int]string{0: "source shard 0", 2: "destination shard 1"}[n] + " at " + clusters[n].Addr() + " does not answer: "
				if code != exitFailed || !strings.Contains(said, where) || !strings.Contains(said, "is left; hint: run the same command again") {
					t.Errorf("%s is down: cancel ended with %d\n%s", where, code, said)
				}
				if k == 0 {
					r.asBefore(t, 2-n) // the other one
				}
				if got := r.state(); got != "cancelled" {
					t.Errorf("the move is %s", got)
				}
				if err := clusters[n].Start(); err != nil {
					t.Fatal(err)
				}
				if code, _, said := r.run("migrate", "--yes"); code != exitFailed || !strings.Contains(said, "run `pgreshard cancel` again") {
					t.Errorf("migrate ended with %d\n%s", code, said)
				}
			}
			if code, _, said := r.run("cancel", "--drop-data"); code != exitDone {
				t.Errorf("cancel ended with %d\n%s", code, said)
			}
			for n := range r.dbs() {
				r.asBefore(t, n)
			}
			r.sources[0].Exec(t, `insert into items values (1000, 1, 1, 'after'); insert into notes values (1, 'after')`)
			if code, _, said := r.run("cancel"); code != exitFailed || !strings.Contains(said, "there is no such move") {
				t.Errorf("cancelled again: %d\n%s", code, said)
			}
		})
	}
}

// What bears a name of ours and was made by somebody else is not used and not dropped.
func TestACancelLeavesWhatSomebodyElseMade(t *testing.T) {
	t.Parallel()
	clusters := cancelClusters(t)
	for name, c := range map[string]struct {
		point string
		make  string // with the name of slot and publication
		says  string // what migrate says
		stays string
	}{
		"a publication": {"state schema", `create publication %s`, "the publication was not made by pgreshard", "publication %s"},
		"a slot":        {"state copying", `select pg_create_logical_replication_slot('%s', 'pgoutput')`, "a replication slot of this name exists already", "slot %s"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCancelRig(t, clusters)
			r.killedAt(t, 0, c.point)
			r.gates[0].open(t, c.point)
			theirs := "pgreshard_" + strings.ReplaceAll(r.name, "-", "_") + "_0"
			r.sources[0].Exec(t, fmt.Sprintf(c.make, theirs))
			for range 2 { // the second finds a move that was resumed
				if code, _, said := r.run("migrate", "--yes"); code != exitFailed || !strings.Contains(said, c.says) || !strings.Contains(said, "give the move another name") {
					t.Errorf("migrate ended with %d\n%s", code, said)
				}
			}
			if code, _, said := r.run("cancel", "--drop-data"); code != exitDone {
				t.Errorf("cancel ended with %d\n%s", code, said)
			}
			theirs = fmt.Sprintf(c.stays, theirs)
			if !slices.Contains(catalog(t, r.sources[0]), theirs) {
				t.Errorf("%s was dropped", theirs)
			}
			r.asBefore(t, 0, theirs)
			r.asBefore(t, 1)
			r.asBefore(t, 2)
		})
	}
	t.Run("a schema", func(t *testing.T) {
		r := newCancelRig(t, clusters)
		r.shards[1].Exec(t, `create schema pgreshard; create table pgreshard.theirs (id int)`)
		r.was[2] = catalog(t, r.shards[1])
		code, _, said := r.run("migrate", "--yes")
		if code != exitCheck || !strings.Contains(said, "destination shard 1: has a schema pgreshard that pgreshard has not made") {
			t.Errorf("migrate ended with %d\n%s", code, said)
		}
		if code, _, said := r.run("cancel", "--drop-data"); code != exitFailed || !strings.Contains(said, "there is no such move") {
			t.Errorf("cancel ended with %d\n%s", code, said)
		}
		for n := range r.dbs() {
			r.asBefore(t, n)
		}
	})
}

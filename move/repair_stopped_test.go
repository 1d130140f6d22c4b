package move_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

// Rows that a hand wrote to a shard, changed or took away stop the stream where the source inserts, changes or deletes them, so that
// no worker stays up. A repair without a worker goes through and mends them, those that stopped nothing too, and the same command
// then goes on. A table without key is left to a person.
func TestARepairGoesThroughWhatStopsEveryWorker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rogue   []string // on every shard
		then    string   // on the source
		keyless bool
	}{
		"rows that are there already": {rogue: []string{`insert into users select g, 1, 'rogue', 'x' from generate_series(500, 520) g on conflict do nothing`}, then: `insert into users select g, g % 9 + 1, 'own', repeat('y', 3000) from generate_series(500, 520) g`},
		"rows that are not there":     {rogue: []string{`delete from users where id in (7, 8, 9, 10)`}, then: `update users set note = 'changed' where id = 7; delete from users where id = 8; update users set tenant = tenant % 9 + 1 where id = 9`},
		"two tables and a mapping":    {rogue: []string{`delete from parents where id = 3`, `insert into users values (700, 2, 'rogue')`}, then: `update parents set parent = 5 where id = 3; insert into users values (700, 2, 'own'); insert into parents values (50, 1); insert into users values (701, 50, 'own')`},
		"a row on every shard":        {rogue: []string{`insert into users select 900, g, 'rogue' from generate_series(1, 1) g`}, then: `insert into users values (901, 3, 'own'); insert into users values (900, 7, 'own')`},
		"a table without key":         {rogue: []string{`delete from notes where tenant = 4`}, then: `delete from notes where tenant = 4`, keyless: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSmallMove(t, 3, "tenant", `create table parents (id bigint primary key, parent bigint not null);
				create table users (id int primary key, tenant bigint not null, note text, big text); alter table users alter big set storage external;
				create table notes (tenant bigint not null, note text); alter table notes replica identity full;
				insert into parents select g, g % 4 + 1 from generate_series(1, 9) g; insert into users select g, g % 9 + 1, 'n', repeat('x', 3000) from generate_series(1, 60) g;
				insert into notes select g % 9 + 1, g from generate_series(1, 60) g`)
			d := &s.config.Destination
			d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "users", Columns: []string{"tenant"}, LookupQuery: `select parent from parents where id = $1`, DataType: "bigint"})
			d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"parents"}}}
			stopped := func(ready func()) error {
				worker := s.move()
				defer worker.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				return worker.Migrate(ctx, move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
					ready()
					<-ctx.Done()
					return false, ctx.Err()
				}})
			}
			var diverged *sink.DivergedError
			if err := stopped(func() {
				for _, db := range s.shards {
					for _, sql := range c.rogue {
						runOn(t, db.Conn(t), `set session_replication_role = replica; `+sql)
					}
				}
				for _, sql := range strings.Split(c.then, "; ") {
					s.sources[0].Exec(t, sql)
				}
			}); !errors.As(err, &diverged) {
				t.Fatalf("it ended with %v", err)
			}
			if err := stopped(func() {}); !errors.As(err, &diverged) {
				t.Fatalf("run again, it ended with %v", err)
			}

			worker := s.move()
			defer worker.Close()
			done, err := worker.RepairStopped(t.Context())
			if c.keyless {
				if refused := new(move.RepairError); !errors.As(err, &refused) || !strings.Contains(err.Error(), "public.notes has no key") {
					t.Errorf("%+v, %v", done, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !done.After.Clean() || len(done.Forgiven) == 0 || !slices.Contains(done.Forgiven, diverged.Table.String()) {
				t.Errorf("before %+v\nmended %+v\nforgiven %v\nafter %+v", done.Before.Tables, done.Mended, done.Forgiven, done.After.Tables)
			}
			s.run(func() { s.sources[0].Exec(t, `update users set note = note || '!'`) })
			s.sameRows(pgtest.RowsOptions{Omni: true}, "parents")
			s.sameRows(pgtest.RowsOptions{}, "users", "notes")
			s.places = newPlaces(t)
			s.placedBy("users", "tenant", `(select parent from parents where id = r.tenant)`)
		})
	}
}

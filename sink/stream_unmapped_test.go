package sink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"pgreshard/layout"
	"pgreshard/lookup"
	"pgreshard/pg"
	"pgreshard/sink"
)

// orphans is a rig whose users and notes may come without their tenants; a and b are tenants that live on shards 0 and 1.
func orphans(t *testing.T, n int, also string) (f *following, a, b int) {
	f = tenants(t, n, `alter table users drop constraint users_tenant_fkey; alter table notes drop constraint notes_tenant_fkey;`+also)
	return f, f.keyOn(0, 0), f.keyOn(1, 0)
}

// unmappedSteps use keys before they have a mapping row. %[1]d and %[2]d are tenants of two shards.
var unmappedSteps = []string{
	`insert into users values (1, 1001, 1), (2, 1001, 2); insert into notes values (1001, 1, 'x')`,
	`insert into users values (3, 1002, 3)`,
	`update users set a = 5, big = repeat('y', 5000) where id in (1, 3)`,
	`insert into users values (4, 1001); delete from users where id = 2`,
	`insert into tenants values (1001, %[1]d), (1002, null)`,
	`update users set a = a + 1; update notes set a = 2`,
	`update tenants set parent = %[2]d where id = 1001`,
	// a row that is there goes over to a key without mapping row, and on
	`insert into tenants values (1003, %[1]d); insert into users select g, 1003, g from generate_series(10, 19) g; insert into notes select 1003, g, 'n' from generate_series(1, 5) g`,
	`update users set tenant = 1004 where id < 15 and id >= 10; update notes set tenant = 1004 where a < 3`,
	`update users set id = id + 20, tenant = 1005 where id = 10`,
	`insert into tenants values (1004, %[2]d), (1005, %[1]d)`,
	`update tenants set parent = %[2]d where id = 1005; update users set a = 7`,
	// nobody ever gives these keys a mapping row, and their rows are gone again
	`insert into users values (50, 1010), (51, 1010), (52, 1011), (53, 1011); insert into notes values (1010, 1)`,
	`update users set a = 3 where tenant = 1010; update users set tenant = 1003 where id = 52; delete from users where id = 53`,
	`delete from users where tenant = 1010; delete from notes where tenant = 1010`,
	`begin; insert into users values (54, 1012, 1, repeat('w', 4000)); update users set a = 2 where id = 54; update users set tenant = 1003 where id = 54; commit`,
	// the mapping row comes after it has gone once
	`insert into tenants values (1020, %[1]d); insert into users values (60, 1020)`,
	`delete from tenants where id = 1020`,
	`insert into users values (61, 1020)`,
	`insert into tenants values (1020, %[2]d)`,
}

// A key may get its mapping row after the row that needs it was committed: what the sources say by then places it, and the
// mapping row, when it passes, moves it to where it says.
func TestAMappingRowMayComeAfterTheRowsThatNeedIt(t *testing.T) {
	t.Parallel()
	for name, also := range map[string]string{"DEFAULT": "", "FULL": `alter table users replica identity full; alter table tenants replica identity full;`} {
		for _, unkeyed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys not told: %t", name, unkeyed), func(t *testing.T) {
				t.Parallel()
				f, a, b := orphans(t, 3, also)
				if f.unkeyed = unkeyed; unkeyed {
					f.takeOver()
				}
				for _, step := range unmappedSteps { // all of it is there before the stream begins
					f.exec(strings.NewReplacer("%[1]d", fmt.Sprint(a), "%[2]d", fmt.Sprint(b)).Replace(step))
				}
				f.run()
				f.catchUp()
				f.compare()
				for _, db := range f.shards {
					if left := db.Query(t, `select key from pgreshard.unmapped where mapped_lsn is null and key not in ('1010', '1011', '1012')`); len(left) > 0 {
						t.Errorf("still taken for keys without mapping row: %v", left)
					}
				}
			})
		}
	}
}

// The stream stops at a key without mapping row that rows of the source carry; once the source has the mapping row, and
// nothing else was done, it goes on.
func TestAStreamStoppedByAMissingMappingGoesOnWhenTheSourceHasIt(t *testing.T) {
	t.Parallel()
	for _, other := range []bool{false, true} {
		t.Run(fmt.Sprintf("in another process: %t", other), func(t *testing.T) {
			t.Parallel()
			f, a, b := orphans(t, 3, "")
			f.exec(fmt.Sprintf(`insert into tenants values (1, %d)`, a))
			f.exec(`begin; insert into tenants values (2); insert into users values (1, 1), (2, 77), (3, 2); commit`)
			f.exec(`update users set a = 1; insert into users values (4, 77)`)
			for range 2 {
				stop := f.run()
				var place *sink.PlaceError
				if err := f.failure(); !errors.As(err, &place) || lookup.Missing(err) == nil || place.Key != "77" || place.At == 0 || place.Table.Table != "users" {
					t.Fatalf("it ended with %v", err)
				}
				stop()
			}
			f.exec(fmt.Sprintf(`insert into tenants values (77, %d)`, b))
			if other {
				f.takeOver()
			}
			f.run()
			f.catchUp()
			f.compare()
			f.exec(fmt.Sprintf(`update tenants set parent = %d where id = 77`, a))
			f.catchUp()
			f.compare()
		})
	}
}

// Shard first commits a row that was placed by what the source said, and the process dies before the others do. The source says
// something else by the time of the replay, which must place it as before.
func TestAReplayPlacesARowWithoutMappingAsTheShardThatIsAhead(t *testing.T) {
	t.Parallel()
	for _, change := range []string{`insert into users values (1, 77, 1); insert into notes values (77, 1, 'n')`,
		`update users set tenant = 77 where id = 9; update notes set tenant = 77`} {
		for first := range layout.Shard(2) {
			t.Run(fmt.Sprintf("%.12s, %d first", change, first), func(t *testing.T) {
				t.Parallel()
				f, a, b := orphans(t, 2, "")
				f.watch = f.conns()
				f.exec(fmt.Sprintf(`insert into tenants values (9, %d); insert into users values (9, 9, 9, repeat('z', 4000)); insert into notes values (9, 9, 'z')`, f.keyOn(int(1-first), 0)))
				stop := f.run()
				f.catchUp()
				stop()
				f.takeOver()
				f.haltAfter(first)
				var asked atomic.Bool
				f.stream.Now = func(ctx context.Context, _ *sink.Table, q *lookup.Query, keys [][]byte) ([]lookup.Answer, error) {
					if !asked.Swap(true) { // only now, so that the shards commit without it
						f.source.Exec(t, fmt.Sprintf(`insert into tenants values (77, %d)`, a))
					}
					conn, err := pg.Open(ctx, f.source.Shard(0), pg.Reader, "test")
					if err != nil {
						return nil, err
					}
					defer pg.Close(conn)
					return lookup.Ask(ctx, conn.PgConn(), q, keys)
				}
				// The message has each shard commit at its end, also where the mapping row is already in the same block.
				f.exec("begin; " + change + "; select pg_logical_emit_message(true, '" + sink.MessagePrefix + "', 'now'); commit")
				stop = f.run()
				if err := f.failure(); !errors.Is(err, errHalt) {
					t.Fatalf("it ended with %v", err)
				}
				stop()
				if !asked.Load() {
					t.Fatal("the source was not asked")
				}
				f.exec(fmt.Sprintf(`update tenants set parent = %d where id = 77`, b))
				f.takeOver()
				f.run()
				f.catchUp()
				f.compare()
			})
		}
	}
}

// Mapping rows that go while rows carry their keys, and come again to another worker with another translation, move the rows.
func TestMappingRowsThatComeAgainToAnotherWorkerMoveTheirRows(t *testing.T) {
	t.Parallel()
	for _, unkeyed := range []bool{false, true} {
		for _, away := range []string{`delete from tenants where id < 1003`, `truncate tenants`, `update tenants set id = id + 5000`} {
			t.Run(fmt.Sprintf("%s, keys not told: %t", away, unkeyed), func(t *testing.T) {
				t.Parallel()
				f, a, b := orphans(t, 2, "")
				f.unkeyed = unkeyed
				f.takeOver()
				stop := f.run()
				f.exec(fmt.Sprintf(`insert into tenants select g, %d from generate_series(1000, 1004) g`, a))
				f.exec(`insert into users select g, 1000 + g % 5 from generate_series(1, 50) g; insert into notes select 1000 + g % 5, g from generate_series(1, 50) g; delete from users where tenant = 1001`)
				f.exec(away)
				f.catchUp()
				stop()
				if noted := f.shards[0].Query(t, `select 1 from pgreshard.unmapped where key = '1001' and tbl = 'public.users'`); len(noted) > 0 {
					t.Error("a key that no row of the table carries is remembered")
				}
				f.takeOver()
				stop = f.run()
				f.exec(fmt.Sprintf(`insert into tenants select g, %d from generate_series(1000, 1004) g on conflict do nothing`, b))
				f.catchUp()
				f.compare()
				stop()
				if left := f.shards[0].Query(t, `select key from pgreshard.unmapped where mapped_lsn is null and key is not null`); len(left) > 0 {
					t.Errorf("still taken for keys without mapping row: %v", left)
				}
			})
		}
	}
}

// A mapping table that is emptied takes its translations along: a row that comes afterwards is not placed by what was cached.
func TestAnEmptiedMappingTranslatesNothingAnyMore(t *testing.T) {
	t.Parallel()
	f, a, _ := orphans(t, 3, "")
	f.exec(fmt.Sprintf(`insert into tenants values (5, %d)`, a))
	f.exec(`insert into users values (1, 5)`)
	stop := f.run()
	defer stop()
	f.catchUp()
	f.exec(`truncate tenants`)
	f.exec(`insert into users values (2, 5)`)
	var place *sink.PlaceError
	if err := f.failure(); !errors.As(err, &place) || lookup.Missing(err) == nil || place.Key != "5" {
		t.Fatalf("it ended with %v", err)
	}
}

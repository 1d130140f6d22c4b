package sink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

const manyPages = `create table t (id bigint primary key, v text)`

func manyRows(n int) string {
	return fmt.Sprintf(`insert into t select i, repeat('v', 200) from generate_series(1, %d) i`, n)
}

func TestACopyThatWasKilledGoesOnUnderANewSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, manyPages)
	r.source.Exec(t, manyRows(20000))
	r.keys["t"] = []string{"id"}
	chunks := r.chunks()
	ctx, kill := context.WithCancel(t.Context())
	var held atomic.Int64
	r.config = func(c *copier.Config) {
		c.Done = func(*pg.Chunk, int64, int64) {
			if held.Add(1) == int64(len(chunks)/3) {
				kill()
			}
		}
	}
	old := rowsOf(r)
	if err := r.run(ctx, chunks); !errors.Is(err, context.Canceled) {
		t.Fatalf("a killed copy ended with %v", err)
	}
	awaitIdle(t, r.shards)
	r.readMarks()
	before := r.marks
	if len(before) == 0 || len(before) == 3*len(chunks) {
		t.Fatalf("%d marks of %d: nothing to resume", len(before), 3*len(chunks))
	}

	// Rows are changed, moved to other blocks, removed and added meanwhile, far beyond the file's old end.
	r.source.Exec(t, `update t set v = 'new' where id % 3 = 0; delete from t where id % 7 = 0;
		insert into t select i, repeat('w', 200) from generate_series(20001, 26000) i`)
	r.upsert = true
	r.config = nil
	again := r.chunks()
	if len(again) <= len(chunks) {
		t.Fatalf("%d chunks after %d: the table did not grow", len(again), len(chunks))
	}
	now := rowsOf(r)
	if err := r.run(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	for shard, s := range r.shards {
		want := map[string]string{}
		place := func(rows []located, last int, marked bool) {
			for _, row := range rows {
				oid := chunks[0].Copy.From.OID
				number := min(row.block/int(r.pages), last)
				if row.shard == shard && before[fmt.Sprintf("%d/%d/%d", oid, number, shard)] == marked {
					want[row.id] = row.v
				}
			}
		}
		place(old, len(chunks)-1, true)
		place(now, len(again)-1, false)
		got := s.Query(t, `select id, left(v, 4) from t`)
		if len(got) != len(want) {
			t.Errorf("shard %d has %d rows, want %d", shard, len(got), len(want))
		}
		for _, row := range got {
			if want[row[0]] != row[1] {
				t.Fatalf("shard %d has row %s as %q, want %q", shard, row[0], row[1], want[row[0]])
			}
		}
	}
}

type located struct {
	block, shard int
	id, v        string
}

func rowsOf(r *rig) (out []located) {
	for _, row := range r.source.Query(r.t, `select (ctid::text::point)[0]::int, get_byte(decode(md5(id::text), 'hex'), 0) % 3, id, left(v, 4) from t`) {
		l := located{id: row[2], v: row[3]}
		_, _ = fmt.Sscan(row[0]+" "+row[1], &l.block, &l.shard)
		out = append(out, l)
	}
	return out
}

// awaitIdle waits until the servers have noticed that the connections of a killed loader are gone.
func awaitIdle(t testing.TB, shards []*pgtest.DB) {
	t.Helper()
	for _, s := range shards {
		s.Exec(t, `do $$ begin while exists (select from pg_stat_activity where datname = current_database() and application_name = 'load')
			loop perform pg_sleep(0.01), pg_stat_clear_snapshot(); end loop; end $$`)
	}
}

func TestAFileThatChangesBetweenChunksIsNoticed(t *testing.T) {
	t.Parallel()
	for name, rewrite := range map[string]string{"VACUUM FULL": `vacuum full t`, "CLUSTER": `cluster t using t_pkey`, "TRUNCATE": `truncate t`,
		"a rewriting ALTER": `alter table t alter id type numeric`, "DROP and CREATE": `drop table t; create table t (id bigint primary key, v text)`} {
		for _, when := range []string{"between chunks", "between snapshot and split"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 2, manyPages)
				r.source.Exec(t, manyRows(5000))
				r.keys["t"] = []string{"id"}
				snapshot, err := copier.NewSnapshot(t.Context(), r.source.Shard(0), "test")
				if err != nil {
					t.Fatal(err)
				}
				defer snapshot.Close()
				if when == "between chunks" {
					paced := 0
					r.config = func(c *copier.Config) {
						c.Workers = 1
						c.Pace = func(context.Context) error {
							if paced++; paced == 4 {
								r.source.Exec(t, rewrite)
							}
							return nil
						}
					}
				} else {
					r.source.Exec(t, rewrite)
					if strings.HasPrefix(rewrite, "alter") {
						for _, s := range r.shards {
							s.Exec(t, rewrite)
						}
					}
				}
				err = r.runUnder(t.Context(), snapshot, r.chunks())
				var rewritten *copier.RewrittenError
				if !errors.As(err, &rewritten) || rewritten.Table.Table != "t" {
					t.Fatalf("copied on with %v", err)
				}
			})
		}
	}
}

// These tests look for goroutines left over, so nothing may run beside them.
func TestAShardThatFailsEndsTheCopyWithItsReason(t *testing.T) {
	pgtest.Shared(t)
	for _, c := range []struct {
		name  string
		setup func(r *rig)
		want  string // SQLSTATE
	}{
		{"a constraint refuses a row", func(r *rig) {
			r.shards[1].Exec(t, `alter table t add check (id < 15000)`)
		}, "23514"},
		{"the table is missing", func(r *rig) {
			r.shards[2].Exec(t, `drop table t`)
		}, "42P01"},
		{"the mark is refused", func(r *rig) {
			r.shards[0].Exec(t, `alter table pgreshard.mark add check (chunk <> 7)`)
		}, "23514"},
		{"the backend is terminated", func(r *rig) {
			var rows atomic.Int64
			r.load = func(l *sink.LoadConfig) {
				inner := l.Table
				l.Table = func(c *pg.Copy) (*sink.LoadTable, error) {
					t, err := inner(c)
					route := t.Route
					t.Route = func(key []pg.Datum) (int, bool, error) {
						if rows.Add(1) == 9000 {
							r.shards[1].Query(r.t, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'load' and datname = current_database()`)
						}
						return route(key)
					}
					return t, err
				}
			}
		}, "57P01"},
		{"the source's backend is terminated", func(r *rig) {
			var rows atomic.Int64
			r.load = func(l *sink.LoadConfig) {
				inner := l.Table
				l.Table = func(c *pg.Copy) (*sink.LoadTable, error) {
					t, err := inner(c)
					route := t.Route
					t.Route = func(key []pg.Datum) (int, bool, error) {
						if rows.Add(1) == 1000 {
							r.source.Query(r.t, `select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'copy' and datname = current_database()`)
						}
						return route(key)
					}
					return t, err
				}
			}
			r.pages = 400
		}, "57P01"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 3, manyPages)
			r.source.Exec(t, manyRows(20000))
			r.keys["t"] = []string{"id"}
			c.setup(r)
			chunks := r.chunks()
			here := goleak.IgnoreCurrent()
			err := r.run(t.Context(), chunks)
			goleak.VerifyNone(t, here)
			if pg.Code(err) != c.want || !strings.Contains(err.Error(), "copy chunk ") || !strings.Contains(err.Error(), "of public.t: ") {
				t.Fatalf("ended with %v, want SQLSTATE %s", err, c.want)
			}
			awaitIdle(t, r.shards)
			// What is on a shard is what its marks say, no more and no less.
			for i, s := range r.shards {
				if i == 2 && c.want == "42P01" {
					continue
				}
				got := s.Query(t, `select count(*) from t`)[0][0]
				want := r.source.Query(t, fmt.Sprintf(`select count(*) from t where %s and least((ctid::text::point)[0]::int / %d, %d) in (select unnest('{%s}'::int[]))`,
					r.placed("t", i), r.pages, len(chunks)-1, marked(s, t)))[0][0]
				if got != want {
					t.Errorf("shard %d has %s rows, its marks say %s", i, got, want)
				}
			}
		})
	}
}

func marked(s *pgtest.DB, t testing.TB) string {
	var out []string
	for _, m := range s.Query(t, `select chunk from pgreshard.mark`) {
		out = append(out, m[0])
	}
	return strings.Join(out, ",")
}

func TestAChunkIsMarkedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, manyPages)
	r.source.Exec(t, manyRows(100))
	r.keys["t"] = []string{"id"}
	r.upsert = true
	chunks := r.chunks()
	if err := r.run(t.Context(), chunks[:1]); err != nil {
		t.Fatal(err)
	}
	r.shards[0].Exec(t, `update t set v = 'changed'`)
	if err := r.run(t.Context(), chunks[:1]); !errors.Is(err, sink.ErrMarked) {
		t.Fatalf("a second mark gave %v", err)
	}
	if n := r.shards[0].Query(t, `select count(*) from t where v <> 'changed'`)[0][0]; n != "0" {
		t.Errorf("%s rows were written by the chunk that could not be marked", n)
	}
}

func TestUpsertReplacesRowsWithAnIdentityThatCannotBeSet(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, `create table t (k text primary key, n bigint generated always as identity, v text, twice text generated always as (v || v) stored)`)
	r.source.Exec(t, `insert into t (k, v) select 'k' || i, 'v' || i from generate_series(1, 100) i`)
	r.shards[0].Exec(t, `insert into t (k, n, v) overriding system value select 'k' || i, i + 1000, 'old' from generate_series(1, 50) i`)
	r.keys["t"] = []string{"k"}
	r.upsert = true
	if err := r.run(t.Context(), r.chunks()); err != nil {
		t.Fatal(err)
	}
	r.compare()
}

func TestASnapshotIsHeldBeyondTheSessionThatExportedIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, manyPages)
	r.source.Exec(t, manyRows(3000))
	r.keys["t"] = []string{"id"}
	exporter := r.source.Conn(t)
	var id string
	if _, err := exporter.Exec(t.Context(), `begin isolation level repeatable read`); err != nil {
		t.Fatal(err)
	}
	if err := exporter.QueryRow(t.Context(), `select pg_export_snapshot()`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	want := r.source.Query(t, `select count(*), sum(id) from t`)
	r.source.Exec(t, `delete from t where id % 2 = 0`)
	snapshot, err := copier.ImportSnapshot(t.Context(), r.source.Shard(0), "test", id)
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Close()
	if _, err := exporter.Exec(t.Context(), `rollback`); err != nil {
		t.Fatal(err)
	}
	if snapshot.After == 0 || snapshot.ID == id {
		t.Errorf("the snapshot is %q after %s", snapshot.ID, snapshot.After)
	}
	other, err := snapshot.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close(other)
	var seen int
	if err := other.QueryRow(t.Context(), `select count(*) from public.t`).Scan(&seen); err != nil || seen != 3000 {
		t.Errorf("another session under the snapshot sees %d rows, %v", seen, err)
	}
	if err := r.runUnder(t.Context(), snapshot, r.chunks()); err != nil {
		t.Fatal(err)
	}
	var count, sum int
	for _, s := range r.shards {
		var c, n int
		_, _ = fmt.Sscan(strings.Join(s.Query(t, `select count(*), sum(id) from t`)[0], " "), &c, &n)
		count, sum = count+c, sum+n
	}
	if got := fmt.Sprintf("[[%d %d]]", count, sum); got != fmt.Sprint(want) {
		t.Errorf("the shards hold %s, the snapshot %v", got, want)
	}
	snapshot.Close()
	if err := r.runUnder(t.Context(), snapshot, r.chunks()); !errors.Is(err, copier.ErrSnapshotLost) {
		t.Errorf("a copy under a closed snapshot ended with %v", err)
	}
}

func TestACopyHoldsNoLockBetweenChunks(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, manyPages)
	r.source.Exec(t, manyRows(2000))
	r.keys["t"] = []string{"id"}
	r.config = func(c *copier.Config) {
		c.Workers = 1
		c.Pace = func(ctx context.Context) error {
			conn := r.source.Conn(t)
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `lock table t in access exclusive mode nowait`)
				return err
			})
		}
	}
	if err := r.run(t.Context(), r.chunks()); err != nil {
		t.Fatal(err)
	}
	r.compare()
}

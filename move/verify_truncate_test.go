package move_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// Tables are emptied and filled again all the time while both sides are compared again and again, one that others' lookup reads among
// them: no comparison finds a difference, and neither the stream nor a comparison waits for the other for longer than it takes.
func TestComparisonsAndTruncatesDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create table tenants (id bigint primary key, parent bigint not null);
		create table users (id int primary key, tenant bigint not null, note text); create table notes (tenant bigint not null, note text); alter table notes replica identity full;
		insert into tenants select g, g % 7 from generate_series(1, 60) g; insert into users select g, g % 60 + 1, repeat('x', 500) from generate_series(1, 600) g`)
	d := &s.config.Destination
	d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: "users", Columns: []string{"tenant"}, LookupQuery: `select parent from tenants where id = $1`, DataType: "bigint"})
	d.Spec.Omni = []layout.OmniTables{{Database: d.Database, Tables: []string{"tenants"}}}
	s.config.LookupBytes = 1 // each comparison asks for every key

	turns, written, emptied := make(chan struct{}, 100), make(chan error, 1), 0
	empty := func() {
		conn := s.sources[0].Conn(t)
		for range turns {
			n := emptied
			sql := fmt.Sprintf(`begin; truncate notes; insert into notes select g, '%d' from generate_series(1, 50) g; commit; begin; truncate tenants; insert into tenants select g, (g + %[1]d) %% 7 from generate_series(1, 60) g; commit;
				update users set note = note where id %% 40 = %[1]d %% 40`, n)
			if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
				written <- err
				return
			}
			emptied++
			time.Sleep(100 * time.Millisecond)
		}
		written <- nil
	}
	worker := s.move()
	defer worker.Close()
	compared := 0
	ready := func(ctx context.Context) (bool, error) {
		if compared > 0 {
			return true, nil
		}
		go empty()
		for ; compared < 7; compared++ {
			for range 4 {
				turns <- struct{}{}
			}
			report, err := worker.VerifyNow(ctx)
			if err != nil {
				return false, err
			}
			if !report.Clean() {
				t.Errorf("comparison %d found %d differences in %v", compared, report.Differences(), report.Unclean())
			}
		}
		close(turns)
		return true, <-written
	}
	if err := worker.Migrate(t.Context(), move.MigrateOptions{Ready: ready}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d comparisons, emptied %d times", compared, emptied)
	if emptied < compared {
		t.Errorf("only %d times was anything emptied", emptied)
	}
	s.sameRows(pgtest.RowsOptions{Omni: true}, "tenants")
	s.sameRows(pgtest.RowsOptions{}, "users", "notes")
}

package move_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// whileFollowed runs act beside a worker that follows, and then the move to its end.
func (s *smallMove) whileFollowed(act func(ctx context.Context, worker *move.Move)) {
	s.t.Helper()
	worker := s.move()
	defer worker.Close()
	acted := false
	err := worker.Migrate(s.t.Context(), move.MigrateOptions{Ready: func(ctx context.Context) (bool, error) {
		if !acted {
			acted = true
			act(ctx, worker)
		}
		return true, nil
	}})
	if err != nil {
		s.t.Errorf("the move ended with %v", err)
	}
}

// harm runs SQL on every shard past every trigger.
func (s *smallMove) harm(sql string) {
	s.t.Helper()
	for _, db := range s.shards {
		runOn(s.t, db.Conn(s.t), `set session_replication_role = replica; `+sql)
	}
}

// mended has a worker repair, and says how many rows it wrote and took away, by table.
func (s *smallMove) mended(ctx context.Context, worker *move.Move, what string) (rows map[string]int64) {
	s.t.Helper()
	done, err := worker.Repair(ctx)
	if err != nil {
		s.t.Errorf("%s: %v", what, err)
		return nil
	}
	if done.Before.Clean() || !done.After.Clean() {
		s.t.Errorf("%s: before %v, mended %+v, after %+v", what, done.Before.Unclean(), done.Mended, done.After.Tables)
	}
	rows = map[string]int64{}
	for _, d := range done.Mended {
		rows[d.Table] += d.Written + d.Removed
	}
	return rows
}

// Rows whose unique values stand on other rows, or whose keys were changed by hand, are mended, and do not keep others from it.
func TestARepairPutsUniqueValuesBackInPlace(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table users (id int primary key, tenant bigint not null, email text not null, unique (tenant, email));
		insert into users select g, 1, 'e' || g from generate_series(1, 20) g; insert into users select 100 + g, g, 'f' || g from generate_series(1, 40) g;
		create table ident (id int primary key, tenant bigint not null, code text not null); create unique index ident_i on ident (tenant, code); alter table ident replica identity using index ident_i;
		insert into ident select g, g % 9, 'c' || g from generate_series(1, 60) g`)
	s.whileFollowed(func(ctx context.Context, worker *move.Move) {
		for _, sql := range []string{
			`update users set id = 1005 where id = 5`, `update ident set id = 1007 where id = 7`,
			`update users set email = 'tmp' where id = 6; update users set email = 'e6' where id = 7; update users set email = 'e7' where id = 6`,
			`delete from users where id = 8; update users set email = 'e8' where id = 9; update ident set code = 'x' where id < 9`,
			`update users set email = email || '.' where id > 100; update users set email = 'f' || (id % 40) where id > 100`,
		} {
			s.harm(sql)
			s.mended(ctx, worker, sql)
			s.sameRows(pgtest.RowsOptions{}, "users", "ident")
		}
	})
}

// A mapping row that was changed by hand is mended alone: rows that it would place elsewhere stand right, while they are written too.
func TestARepairOfAMappingLeavesItsRowsWhereTheyAre(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create table orders (id bigint primary key, tenant bigint not null, v text); insert into orders select g, g % 9, 'v' from generate_series(1, 40) g;
		create table items (id int, order_id bigint not null, v text, primary key (id, order_id)); insert into items select g, g % 40 + 1, 'v' from generate_series(1, 120) g;
		create table subs (id int primary key, item_id int not null); insert into subs select g, g % 120 + 1 from generate_series(1, 200) g`)
	d := &s.config.Destination
	d.Spec.Tables = append(d.Spec.Tables,
		layout.ShardedTable{Database: d.Database, Name: "items", Columns: []string{"order_id"}, LookupQuery: `select tenant from orders where id = $1`, DataType: "bigint"},
		layout.ShardedTable{Database: d.Database, Name: "subs", Columns: []string{"item_id"}, LookupQuery: `select o.tenant from items i join orders o on o.id = i.order_id where i.id = $1`, DataType: "bigint"})
	s.whileFollowed(func(ctx context.Context, worker *move.Move) {
		writing, stop := context.WithCancel(ctx)
		ended, conn := make(chan struct{}), s.sources[0].Conn(t)
		go func() {
			defer close(ended)
			for n := 0; writing.Err() == nil; n++ {
				if _, err := conn.Exec(ctx, fmt.Sprintf(`update items set v = 'w%d' where order_id in (3, 4)`, n), pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}()
		if report, err := worker.VerifyNow(ctx); err != nil || !report.Clean() {
			t.Errorf("%+v, %v", report, err)
		}
		s.harm(`update orders set tenant = tenant + 1 where id = 3`)
		if rows := s.mended(ctx, worker, "a mapping"); len(rows) != 1 || rows["public.orders"] != 2 {
			t.Errorf("a mapping row was changed, and rows were written and removed: %v", rows)
		}
		stop()
		<-ended
		s.harm(`delete from subs where item_id in (select id from items where order_id = 4); delete from items where order_id = 4; delete from orders where id = 4`)
		s.mended(ctx, worker, "a mapping with all below it")
	})
	s.sameRows(pgtest.RowsOptions{}, "orders", "items", "subs")
	s.places = newPlaces(t)
	s.placedBy("items", "order_id", `(select tenant from orders where id = r.order_id)`)
	s.placedBy("subs", "item_id", `(select o.tenant from items i join orders o on o.id = i.order_id where i.id = r.item_id)`)
}

// Rows go from one side to the other as their types write them, whatever a cast to text would make of them: keys that are placed
// by their text, casts of a user's, composite keys.
func TestARepairWritesWhatATypesOutputSays(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 3, "tenant", `create type mood as enum ('sad', 'ok', 'glad'); create type duo as (a int, b text);
		create function duo_text(duo) returns text language sql immutable as $$ select 'duo!' || ($1).a $$; create cast (duo as text) with function duo_text(duo);
		create function mood_text(mood) returns text language sql immutable as $$ select 'mood!' $$; create cast (mood as text) with function mood_text(mood);
		create table chars (id int primary key, k char(8) not null, v text); insert into chars select g, 'k' || g, 'v' from generate_series(1, 60) g;
		create table nets (id int primary key, k inet not null, v text); insert into nets select g, ('10.0.0.' || g)::inet, 'v' from generate_series(1, 60) g;
		create table bools (id int primary key, k bool not null, v text); insert into bools select g, g % 2 = 0, 'v' from generate_series(1, 60) g;
		create table odd (id int primary key, tenant bigint not null, m mood, d duo, c char(5), n inet, b bool, p money, v text); insert into odd select g, g, 'ok', format('(%s,"x y")', g)::duo, 'a', '1.2.3.4', true, 7.5, 'v' from generate_series(1, 30) g;
		create table texts (k char(8), tenant bigint not null, v text, primary key (k, tenant)); insert into texts select 'k"\' || g, g, E'\n''' from generate_series(1, 60) g;
		create table pairs (k duo primary key, tenant bigint not null, v text); insert into pairs select format('(%s,x)', g)::duo, g, 'v' from generate_series(1, 20) g`)
	d := &s.config.Destination
	for _, table := range []string{"chars", "nets", "bools"} {
		d.Spec.Tables = append(d.Spec.Tables, layout.ShardedTable{Database: d.Database, Name: table, Columns: []string{"k"}, LookupQuery: `select $1::text`, DataType: "text"})
	}
	s.whileFollowed(func(ctx context.Context, worker *move.Move) {
		for _, sql := range []string{
			`update chars set v = 'harm' where id <= 5; update nets set v = null where id <= 5; update bools set v = '' where id <= 4`,
			`update odd set v = 'harm' where id <= 5; update odd set m = 'sad', d = '(1,1)', c = '', b = false, p = 0 where id between 4 and 9`,
			`delete from texts where tenant <= 3; update texts set k = 'ab  ' where tenant between 4 and 6`,
			`update pairs set v = 'harm' where tenant = 3; delete from pairs where tenant > 15`,
		} {
			s.harm(sql)
			s.mended(ctx, worker, sql)
			s.sameRows(pgtest.RowsOptions{}, "chars", "nets", "bools", "odd", "texts", "pairs")
		}
	})
}

// A repair finds its rows through the key: of a large table no part is read that is not wrong, and as many rows as a repair takes are
// mended while the streams stand still.
func TestARepairFindsItsRowsThroughTheKey(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table big (id bigint primary key, tenant bigint not null, note text);
		insert into big select g, g % 100, md5(g::text) from generate_series(1, 100000) g; analyze big`)
	s.whileFollowed(func(ctx context.Context, worker *move.Move) {
		s.harm(`update big set note = 'x' where id <= 900`)
		if rows := s.mended(ctx, worker, "900 rows"); rows["public.big"] != 1800 {
			t.Errorf("rows written and removed: %v", rows)
		}
	})
	s.sameRows(pgtest.RowsOptions{}, "big")
}

// Somebody has a transaction open on a shard, past every trigger, that has written: it is named and no layout is switched to; when it
// has ended, what it wrote is found.
func TestNothingIsSwitchedOverAnOpenTransactionOnAShard(t *testing.T) {
	t.Parallel()
	s := newSmallMove(t, 2, "tenant", `create table orders (id bigint primary key, tenant bigint not null, v text); insert into orders select g, g % 9, 'v' from generate_series(1, 40) g`)
	s.config.Attempts = 1
	s.whileFollowed(func(ctx context.Context, worker *move.Move) {
		conn := s.shards[1].Conn(t)
		var steps []string
		worker.BeforeStep(func(step string) {
			if steps = append(steps, step); step == "freeze" {
				runOn(t, conn, `set session_replication_role = replica; begin; update orders set v = 'harm' where id < 20`)
			}
		})
		for _, last := range []string{"verify", "check"} { // the second time it is there before anything is refused
			steps = nil
			_, err := worker.Cutover(ctx, move.CutoverOptions{})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d has written to public.orders", conn.PgConn().PID())) || steps[len(steps)-1] != last {
				t.Errorf("the steps %v ended with %v", steps, err)
			}
		}
		worker.BeforeStep(nil)
		runOn(t, conn, `commit`)
		if _, err := worker.Cutover(ctx, move.CutoverOptions{}); err == nil || !strings.Contains(err.Error(), "verification found differences in public.orders") {
			t.Errorf("behind it the cutover ended with %v", err)
		}
		s.mended(ctx, worker, "what it wrote")
	})
	s.sameRows(pgtest.RowsOptions{}, "orders")
}

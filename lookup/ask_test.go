package lookup

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// session is a connection as the program opens one, to a database with a mapping table.
func session(t *testing.T) *pgx.Conn {
	t.Helper()
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, `create table tenants (id bigint primary key, parent_tenant_id bigint, region text);
		insert into tenants values (1, null, 'eu'), (2, 1, 'us'), (3, null, null), (4, 1, '');
		create table codes (code char(4), target int);
		insert into codes values ('ab', 1), ('ab', 2), ('cd', 3)`)
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Writer, "lookup test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	return conn
}

func bytesOf(keys ...string) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = []byte(k)
	}
	return out
}

const parent = "SELECT COALESCE(parent_tenant_id, id) FROM tenants WHERE id = $1"

func TestAServerAnswersManyKeysInOrder(t *testing.T) {
	t.Parallel()
	conn := session(t)
	for name, test := range map[string]struct {
		sql  string
		keys [][]byte
		want []Answer
	}{
		"one row each, and none": {parent, bytesOf("2", "99", "1", "2"),
			[]Answer{{[]byte("1"), 1, false}, {}, {[]byte("1"), 1, false}, {[]byte("1"), 1, false}}},
		"NULL is not empty": {"select region from tenants where id = $1", bytesOf("3", "4", "1"),
			[]Answer{{nil, 1, true}, {[]byte{}, 1, false}, {[]byte("eu"), 1, false}}},
		"several rows, and a char(n) key": {"select target from codes where code = $1", bytesOf("ab", "cd", "cd  "),
			[]Answer{{[]byte("1"), 2, false}, {[]byte("3"), 1, false}, {[]byte("3"), 1, false}}},
		"no keys": {parent, nil, nil},
	} {
		got, err := Ask(t.Context(), conn.PgConn(), &Query{Name: "q", SQL: test.sql}, test.keys)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
		for i, a := range got {
			if (a.Value == nil) != (test.want[i].Value == nil) {
				t.Errorf("%s: value %d is nil: %t", name, i, a.Value == nil)
			}
		}
	}
}

func TestMoreKeysThanOnePipelineHolds(t *testing.T) {
	t.Parallel()
	conn := session(t)
	if _, err := conn.Exec(t.Context(), "insert into public.tenants select g, g % 50 from generate_series(10, 10009) g"); err != nil {
		t.Fatal(err)
	}
	var keys [][]byte
	for i := 10; i < 10010; i++ {
		keys = append(keys, strconv.AppendInt(nil, int64(i), 10))
	}
	values, err := New(1<<20).TranslateMany(t.Context(), &Query{Name: "q", SQL: parent}, keys, Conn(conn.PgConn()))
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range values {
		if string(v) != strconv.Itoa((i+10)%50) {
			t.Fatalf("key %s gave %s", keys[i], v)
		}
	}
}

func TestAskingInsideATransactionSeesItsRowsAndLeavesItOpen(t *testing.T) {
	t.Parallel()
	conn := session(t)
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "insert into public.tenants values (7, 2)"); err != nil {
			return err
		}
		got, err := Ask(t.Context(), conn.PgConn(), &Query{SQL: parent}, bytesOf("7", "8"))
		if err != nil || string(got[0].Value) != "2" || got[1].Rows != 0 {
			t.Errorf("got %v, %v", got, err)
		}
		var path, status string
		err = tx.QueryRow(t.Context(), "select current_setting('search_path'), txid_status(txid_current())").Scan(&path, &status)
		if path != "pg_catalog" || status != "in progress" {
			t.Errorf("behind the question search_path is %q and the transaction %s", path, status)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "select count(*) from public.tenants where id = 7").Scan(&n); err != nil || n != 1 {
		t.Errorf("the transaction's row: %d, %v", n, err)
	}
}

func TestAQueryIsPreparedOncePerConnection(t *testing.T) {
	t.Parallel()
	conn := session(t)
	q := &Query{SQL: parent}
	for range 3 {
		if _, err := Ask(t.Context(), conn.PgConn(), q, bytesOf("1")); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	err := conn.QueryRow(t.Context(), "select count(*) from pg_prepared_statements where statement = $1", parent).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("%d statements are prepared, %v", n, err)
	}
}

func TestAnAlteredMappingTableIsAskedAgainAfterOneError(t *testing.T) {
	t.Parallel()
	conn := session(t)
	q := &Query{SQL: "select region from tenants where id = $1"}
	ask := func() (string, error) {
		got, err := Ask(t.Context(), conn.PgConn(), q, bytesOf("1"))
		if err != nil {
			return "", err
		}
		return string(got[0].Value), nil
	}
	if v, err := ask(); v != "eu" {
		t.Fatal(v, err)
	}
	if _, err := conn.Exec(t.Context(), "alter table public.tenants alter region type varchar(9)"); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); pg.Code(err) != "0A000" {
		t.Errorf("got %v", err)
	}
	if v, err := ask(); v != "eu" || err != nil {
		t.Errorf("got %q, %v", v, err)
	}
}

func TestAKeyTheParameterDoesNotTakeIsAnErrorAndNoAbsence(t *testing.T) {
	t.Parallel()
	conn := session(t)
	_, err := New(1<<20).Translate(t.Context(), &Query{SQL: parent}, []byte("x"), Conn(conn.PgConn()))
	if pg.Code(err) != "22P02" || Missing(err) != nil {
		t.Errorf("got %v", err)
	}
	if v, err := New(1<<20).Translate(t.Context(), &Query{SQL: parent}, []byte("2"), Conn(conn.PgConn())); string(v) != "1" {
		t.Errorf("the connection is of no more use: %q, %v", v, err)
	}
}

func TestAServerThatTakesTooLongIsTransient(t *testing.T) {
	t.Parallel()
	conn := session(t)
	q := &Query{SQL: "select pg_sleep(60)::text || $1", Attempts: 3, Timeout: 50e6}
	_, err := New(1<<20).Translate(t.Context(), q, []byte("x"), Conn(conn.PgConn()))
	if !pg.Transient(err) || Missing(err) != nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestALookupQueryIsOneReadOfOneParameter(t *testing.T) {
	t.Parallel()
	conn := session(t)
	for sql, problem := range map[string]string{
		parent:       "",
		parent + ";": "",
		"with t as (select * from tenants) select id from t where region = $1": "",
		"select 1; select $1::int":                                                    "multiple commands",
		"select id from tenants":                                                      "0 parameters",
		"select id from tenants where id = $1 and region = $2":                        "2 parameters",
		"select id from tenants where id = $2":                                        "data type of parameter $1",
		"select id from tenants where id = (select $1::bigint)":                       "",
		"select id from tenants where region = '$1'":                                  "0 parameters",
		"select id from tenants where region = $$ $1 $$":                              "0 parameters",
		"select id from tenants -- where id = $1":                                     "0 parameters",
		"select id from tenants /* where id = $1 */":                                  "0 parameters",
		"select id, region from tenants where id = $1":                                "2 result columns",
		"select id from nowhere where id = $1":                                        "does not exist",
		"delete from tenants where id = $1 returning id":                              "read-only",
		"select id from tenants where id = $1 for update":                             "read-only",
		"update tenants set region = $1":                                              "0 result columns",
		"with d as (delete from tenants where id = $1 returning id) select id from d": "read-only",
		"":                     "0 parameters",
		"selec $1":             "syntax error",
		"select $1::int, 1, 2": "3 result columns",
	} {
		d, err := Validate(t.Context(), conn.PgConn(), sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		all := strings.Join(d.Problems, "\n")
		if (problem == "") != (all == "") || !strings.Contains(all, problem) {
			t.Errorf("%s\n  has problems %q, want %q", sql, all, problem)
		}
		if problem == "" && (d.ResultType != "bigint" || d.Result != 20 || d.Columns != 1 || len(d.Params) != 1) {
			t.Errorf("%s\n  is described as %+v", sql, d)
		}
	}
	var n int
	if err := conn.QueryRow(t.Context(), "select count(*) from public.tenants").Scan(&n); err != nil || n != 4 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// Asked in one statement keys have the answers they have one by one.
func TestManyKeysInOneStatementHaveTheAnswersTheyHaveOneByOne(t *testing.T) {
	t.Parallel()
	conn := session(t)
	if _, err := conn.Exec(t.Context(), `create table public.named (name text, target text);
		insert into public.named values ('a', 'x'), ('it''s "q" \\ {,}', 'y'), ('twice', '1'), ('twice', '2'), ('null', null), ('', 'empty'), ('NULL', 'word')`); err != nil {
		t.Fatal(err)
	}
	keys := bytesOf("a", "nobody", `it's "q" \ {,}`, "twice", "null", "", "NULL", "a", "ü", "b")
	q := &Query{SQL: "select target from named where name = $1"}
	want, err := Ask(t.Context(), conn.PgConn(), q, keys)
	if err != nil {
		t.Fatal(err)
	}
	q.Many = "select format('%s', name), target from named where name = any($1)"
	got, err := Ask(t.Context(), conn.PgConn(), q, keys)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != len(keys) || want[3].Rows != 2 || !want[4].Null || want[1].Rows != 0 {
		t.Fatalf("one by one: %+v", want)
	}
	for i := range want {
		if want[i].Rows > 1 { // which row is the first is nobody's business
			want[i].Value, got[i].Value = nil, nil
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("in one statement\n%+v, want\n%+v", got, want)
	}
	q.Many = "select format('%s', name || 'x'), target from named where name = any($1)"
	if _, err := Ask(t.Context(), conn.PgConn(), q, keys); err == nil {
		t.Error("answers for other keys are taken")
	}
}

func BenchmarkAsk(b *testing.B) {
	db := pgtest.Shared(b).Database(b)
	db.Exec(b, `create table tenants (id bigint primary key, parent_tenant_id bigint);
		insert into tenants select g, g % 50 from generate_series(1, 100000) g; analyze tenants`)
	conn, err := pg.Open(b.Context(), db.Shard(0), pg.Reader, "lookup bench")
	if err != nil {
		b.Fatal(err)
	}
	defer pg.Close(conn)
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%d keys", n), func(b *testing.B) {
			q := &Query{SQL: parent, Many: "SELECT format('%s', id), COALESCE(parent_tenant_id, id) FROM tenants WHERE id = any($1)"}
			keys := make([][]byte, n)
			for i := range keys {
				keys[i] = strconv.AppendInt(nil, int64(i*97%100000+1), 10)
			}
			for b.Loop() {
				if _, err := Ask(b.Context(), conn.PgConn(), q, keys); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/key")
		})
	}
}

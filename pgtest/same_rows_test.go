package pgtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestSameRowsFindsEveryDifference(t *testing.T) {
	t.Parallel()
	const table = `create table x (i int, s text, f float8, at timestamptz default '2020-01-01 12:00+00');`
	for _, test := range []struct {
		name             string
		source, one, two string
		want             string // part of the error, empty: none
	}{
		{"rows spread over two shards are the same", `(1,'a',1), (2,null,2), (3,'',0)`, `(3,'',0), (1,'a',1)`, `(2,null,2)`, ""},
		{"equal rows count as often as they are there", `(1,'a',1), (1,'a',1)`, `(1,'a',1)`, `(1,'a',1)`, ""},
		{"one of two equal rows is missing", `(1,'a',1), (1,'a',1), (2,'b',1)`, `(1,'a',1)`, `(2,'b',1)`, "1 rows of the source are missing on all shards, 0 rows"},
		{"a row is on two shards", `(1,'a',1), (2,'b',1)`, `(1,'a',1)`, `(1,'a',1), (2,'b',1)`, "0 rows of the source are missing on all shards, 1 rows"},
		{"NULL is not empty", `(1,null,1), (2,'b',1)`, `(1,'',1)`, `(2,'b',1)`, "1 rows of the source are missing on all shards, 1 rows"},
		{"minus zero is not zero", `(1,'a',0), (2,'b',1)`, `(1,'a','-0')`, `(2,'b',1)`, "missing: database 0: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var conns []*pgx.Conn
			for i, rows := range []string{test.source, test.one, test.two} {
				db := Shared(t).Database(t)
				db.Exec(t, table+` insert into x values `+rows)
				conn := db.Conn(t)
				zone := []string{"UTC", "Asia/Tokyo", "America/New_York"}[i]
				if _, err := conn.Exec(t.Context(), `set timezone = '`+zone+`'`); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			err := SameRows(t.Context(), conns[:1], conns[1:], "public.x", RowsOptions{})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestSameRowsWantsAnOmnishardedTableWholeOnEveryShard(t *testing.T) {
	t.Parallel()
	var conns []*pgx.Conn
	for _, ddl := range []string{`create table x (i int, s text)`, `create table x (s text, i int)`, `create table x (i int, s text)`} {
		db := Shared(t).Database(t)
		db.Exec(t, ddl+`; insert into x (i, s) values (1, 'a'), (2, 'b')`)
		conns = append(conns, db.Conn(t))
	}
	if err := SameRows(t.Context(), conns[:1], conns[1:], "x", RowsOptions{Omni: true}); err != nil {
		t.Error(err)
	}
	if _, err := conns[2].Exec(t.Context(), `delete from x where i = 2`); err != nil {
		t.Fatal(err)
	}
	err := SameRows(t.Context(), conns[:1], conns[1:], "x", RowsOptions{Omni: true})
	if err == nil || !strings.Contains(err.Error(), "missing on shard 1") {
		t.Errorf("error %v", err)
	}
	if _, err := conns[1].Exec(t.Context(), `alter table x add z int`); err != nil {
		t.Fatal(err)
	}
	if err := SameRows(t.Context(), conns[:1], conns[1:], "x", RowsOptions{}); err == nil || !strings.Contains(err.Error(), "columns differ") {
		t.Errorf("error %v", err)
	}
}

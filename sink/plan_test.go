package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/checkpoints"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

func text(s string) pg.Datum { return pg.Datum{Kind: pg.Text, Bytes: []byte(s)} }

// tuple reads "1 x - _": values, "_" for NULL, "-" for what the log does not carry.
func tuple(s string) pg.Row {
	if s == "" {
		return nil
	}
	var row pg.Row
	for _, f := range strings.Fields(s) {
		switch f {
		case "_":
			row = append(row, pg.Datum{Kind: pg.Null})
		case "-":
			row = append(row, pg.Datum{Kind: pg.Unchanged})
		default:
			row = append(row, text(f))
		}
	}
	return row
}

var (
	int4  = pg.Column{TypeOID: 23, BaseOID: 23, ArrayOID: 1007, Type: "integer", TypeType: 'b'}
	texts = pg.Column{TypeOID: 25, BaseOID: 25, ArrayOID: 1009, Type: "text", TypeType: 'b'}
)

func named(c pg.Column, name string) pg.Column { c.Name = name; return c }

// planTables are one with a key and a unique column, and one without any.
func planTables() (keyed, keyless *Table) {
	keyed = &Table{Source: pg.Name{Schema: "public", Table: "t"}, Dest: pg.Name{Schema: "public", Table: "t"}, Key: []int{0}, Logged: []int{0},
		Columns: []pg.Column{named(int4, "id"), named(int4, "u"), named(int4, "a"), named(texts, "b")}}
	keyless = &Table{Source: pg.Name{Schema: "public", Table: "k"}, Dest: pg.Name{Schema: "public", Table: "k"}, Logged: []int{0, 1},
		Columns: []pg.Column{named(int4, "a"), named(texts, "b")}}
	return keyed, keyless
}

const planSchema = `create table t (id int primary key, u int unique, a int, b text); create table k (a int, b text)`

func TestABatchBecomesTheFewestStatements(t *testing.T) {
	t.Parallel()
	keyed, keyless := planTables()
	one := func(kind opKind, old, new string) op {
		return op{kind: kind, table: keyed, old: tuple(old), new: tuple(new)}
	}
	less := func(kind opKind, old, new string) op {
		return op{kind: kind, table: keyless, old: tuple(old), new: tuple(new)}
	}
	many := func(n int, f func(i int) op) (out []op) {
		for i := range n {
			out = append(out, f(i))
		}
		return out
	}
	for name, c := range map[string]struct {
		ops  []op
		want string // the first word of each statement and how many ops it has
	}{
		"nothing":                   {nil, ""},
		"boundaries alone":          {[]op{{kind: opBoundary}, {kind: opBoundary}}, ""},
		"inserts":                   {many(1000, func(i int) op { return one(opInsert, "", strconv.Itoa(i)+" _ 1 x") }), "insert 1000"},
		"updates of one shape":      {many(1000, func(i int) op { return one(opUpdate, "", strconv.Itoa(i)+" _ 1 x") }), "update 1000"},
		"updates of two shapes":     {many(10, func(i int) op { return one(opUpdate, "", strconv.Itoa(i)+" _ 1 "+[]string{"x", "-"}[i%2]) }), "update 5, update 5"},
		"deletes":                   {many(1000, func(i int) op { return one(opDelete, strconv.Itoa(i)+" - - -", "") }), "delete 1000"},
		"a row that comes and goes": {[]op{one(opInsert, "", "1 1 1 x"), one(opUpdate, "", "1 2 2 -"), one(opDelete, "1 - - -", "")}, ""},
		"a row that goes and comes": {[]op{one(opDelete, "1 - - -", ""), one(opInsert, "", "1 1 1 x"), one(opUpdate, "", "1 2 2 -")}, "delete 1, insert 1"},
		"a row changed and deleted": {[]op{one(opUpdate, "", "1 2 2 -"), one(opDelete, "1 - - -", "")}, "delete 1"},
		"a row changed often":       {many(100, func(i int) op { return one(opUpdate, "", fmt.Sprintf("1 _ %d -", i)) }), "update 1"},
		"different kinds":           {[]op{one(opInsert, "", "1 1 1 x"), one(opDelete, "2 - - -", ""), one(opUpdate, "", "3 1 1 x"), one(opInsert, "", "4 4 4 x")}, "delete 1, update 1, insert 2"},
		"a contradiction":           {[]op{one(opInsert, "", "1 1 1 x"), one(opInsert, "", "1 1 1 x")}, "insert 1, insert 1"},
		"a key that changes":        {[]op{one(opInsert, "", "1 1 1 x"), one(opUpdate, "1 - - -", "2 1 1 x"), one(opUpdate, "", "2 1 2 x")}, "insert 1, update 1, update 1"},
		"an old row, the same key":  {[]op{one(opUpdate, "1 1 1 x", "1 1 2 x"), one(opUpdate, "1 1 2 x", "1 1 3 x")}, "update 1"},
		"upserts and deletes":       {[]op{one(opUpsert, "", "1 1 1 x"), one(opDeleteAny, "2 - - -", ""), one(opUpsert, "", "2 1 1 x")}, "delete 1, insert 1, insert 1"},
		"joint deletes and more": {[]op{{kind: opDelete, table: keyed, old: tuple("1 - - -"), joint: &joint{}}, {kind: opDelete, table: keyed, old: tuple("2 - - -"), joint: &joint{}},
			one(opInsert, "", "1 1 1 x")}, "delete 2, insert 1"},
		"rows without key":  {[]op{less(opInsert, "", "1 x"), less(opInsert, "", "1 x"), less(opDelete, "1 x", ""), less(opUpdate, "1 x", "2 x"), less(opInsert, "", "1 x")}, "insert 2, delete 1, update 1, insert 1"},
		"an emptied table":  {[]op{one(opInsert, "", "1 1 1 x"), less(opInsert, "", "1 x"), {kind: opTruncate, table: keyed, sql: "truncate t"}, one(opInsert, "", "1 1 1 x")}, "insert 1, insert 1, truncate 1, insert 1"},
		"nothing to set":    {[]op{one(opUpdate, "", "1 - - -"), one(opUpdate, "", "2 - - -")}, "select 2"},
		"a key not carried": {[]op{one(opUpdate, "1 - - -", "- 1 - -")}, "update 1"},
	} {
		var got []string
		for _, s := range planned(c.ops) {
			sql := strings.TrimPrefix(s.sql, "with x as (")
			word, _, _ := strings.Cut(sql, " ")
			got = append(got, fmt.Sprintf("%s %d", word, len(s.ops)))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %s, want %s", name, strings.Join(got, ", "), c.want)
		}
	}
}

// state simulates the tables, so that every op made is one the source can have done.
type state struct {
	*rand.Rand
	rows    map[int]pg.Row
	equal   []pg.Row
	keyed   *Table
	keyless *Table
}

func (s *state) value(column int) pg.Datum {
	switch column {
	case 1:
		for range 5 {
			u := text(strconv.Itoa(s.IntN(9)))
			taken := false
			for _, r := range s.rows {
				taken = taken || r[1].Kind == pg.Text && string(r[1].Bytes) == string(u.Bytes)
			}
			if !taken {
				return u
			}
		}
		return pg.Datum{Kind: pg.Null}
	case 2:
		return text(strconv.Itoa(s.IntN(100)))
	}
	return text(strings.Repeat("x", s.IntN(5)) + `"\{,}`)
}

// next makes the next op; ok is false where the draw has none.
func (s *state) next() (o op, ok bool) {
	id := s.IntN(8)
	row, there := s.rows[id]
	key := tuple(strconv.Itoa(id) + " - - -")
	switch s.IntN(10) {
	case 0, 1, 2:
		if there {
			return o, false
		}
		row = pg.Row{text(strconv.Itoa(id)), s.value(1), s.value(2), s.value(3)}
		s.rows[id] = row
		return op{kind: opInsert, table: s.keyed, new: row}, true
	case 3, 4, 5:
		if !there {
			return o, false
		}
		delete(s.rows, id) // its own unique value is free
		now, logged := append(pg.Row(nil), row...), append(pg.Row(nil), row...)
		for c := 1; c < 4; c++ {
			switch s.IntN(3) {
			case 0:
				now[c] = s.value(c)
				logged[c] = now[c]
			case 1:
				logged[c] = pg.Datum{Kind: pg.Unchanged}
			}
		}
		s.rows[id] = now
		o = op{kind: opUpdate, table: s.keyed, new: logged}
		if other := s.IntN(8); s.IntN(25) == 0 && s.rows[other] == nil {
			now, logged = append(pg.Row(nil), now...), append(pg.Row(nil), logged...)
			now[0], logged[0] = text(strconv.Itoa(other)), text(strconv.Itoa(other))
			delete(s.rows, id)
			s.rows[other] = now
			o.old, o.new = key, logged
		}
		return o, true
	case 6, 7:
		if !there {
			return o, false
		}
		delete(s.rows, id)
		o = op{kind: opDelete, table: s.keyed, old: key}
		if s.IntN(8) == 0 {
			o.joint = &joint{}
		}
		return o, true
	case 8:
		if s.IntN(2) == 0 || len(s.equal) == 0 {
			row := pg.Row{text(strconv.Itoa(s.IntN(3))), pg.Datum{Kind: pg.Null}}
			s.equal = append(s.equal, row)
			return op{kind: opInsert, table: s.keyless, new: row}, true
		}
		i := s.IntN(len(s.equal))
		row = s.equal[i]
		if s.IntN(2) == 0 {
			s.equal = append(s.equal[:i], s.equal[i+1:]...)
			return op{kind: opDelete, table: s.keyless, old: row}, true
		}
		now := pg.Row{text(strconv.Itoa(s.IntN(3))), text("y")}
		s.equal[i] = now
		return op{kind: opUpdate, table: s.keyless, old: row, new: now}, true
	}
	if s.IntN(20) > 0 {
		return o, false
	}
	clear(s.rows)
	return op{kind: opTruncate, table: s.keyed, sql: "truncate public.t"}, true
}

// planRig is an applier at work on a database that has planTables.
func planRig(t *testing.T) (*pgtest.DB, *applier) {
	db := pgtest.Shared(t).Database(t)
	db.Exec(t, planSchema)
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Writer, "plan test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	if err := checkpoints.Install(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	return db, &applier{stream: NewStream(make([]pg.Shard, 1)), conn: conn, prepared: map[string]string{}}
}

// A shard that is lost between a row it refused and the second attempt is a lost shard, which is tried again: the row was
// not looked at alone.
func TestAShardLostBeforeTheSecondAttemptIsTriedAgain(t *testing.T) {
	t.Parallel()
	db, a := planRig(t)
	b := a.batch()
	b.simple("begin")
	b.simple("savepoint batch")
	if err := b.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `select pg_terminate_backend(pid, 10000) from pg_stat_activity where application_name = 'plan test' and datname = current_database()`)
	err := a.oneByOne(t.Context(), nil, &pgconn.PgError{Code: checkpoints.CodeRows})
	if !pg.Transient(err) {
		t.Fatalf("%v is not tried again", err)
	}
}

// perform runs ops as an applier does: planned, and one by one where that is refused because of rows, or if alone is set.
func perform(ctx context.Context, a *applier, ops []op, alone bool) (again bool, err error) {
	for _, o := range ops {
		if o.joint != nil {
			o.joint.hits.Store(0)
			o.joint.pending.Store(1)
		}
	}
	b := a.batch()
	b.simple("begin")
	b.simple("savepoint batch")
	if !alone {
		statements := planned(ops)
		for i := range statements {
			b.send(&statements[i])
		}
	}
	if err = b.run(ctx); alone && err == nil {
		err = &pgconn.PgError{Code: checkpoints.CodeRows}
	}
	if err != nil {
		again = rowsRefused(err)
		err = a.oneByOne(ctx, ops, err)
	}
	end := "commit"
	if err != nil {
		end = "rollback"
	}
	_, ended := a.conn.Exec(ctx, end)
	return again, errors.Join(err, ended)
}

// What a batch leaves is what its ops leave one by one, whatever the batch.
func TestRandomBatchesEndAsTheirOpsOneByOne(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var conns [2]*pgx.Conn
	var appliers [2]*applier
	for i := range conns {
		_, appliers[i] = planRig(t)
		conns[i] = appliers[i].conn
	}
	s := &state{Rand: rand.New(rand.NewPCG(seed, 0)), rows: map[int]pg.Row{}}
	s.keyed, s.keyless = planTables()
	batches, again := 0, 0
	for ; batches < 300; batches++ {
		var ops []op
		for n := s.IntN(40) + 1; len(ops) < n; {
			if o, ok := s.next(); ok {
				ops = append(ops, o)
			}
		}
		redone, err := perform(t.Context(), appliers[0], ops, false)
		if err != nil {
			t.Fatalf("batch %d: %v", batches, err)
		}
		if redone {
			again++
		}
		if _, err := perform(t.Context(), appliers[1], ops, true); err != nil {
			t.Fatalf("batch %d one by one: %v", batches, err)
		}
		for _, table := range []string{"public.t", "public.k"} {
			if err := pgtest.SameRows(t.Context(), conns[:1], conns[1:], table, pgtest.RowsOptions{}); err != nil {
				t.Fatalf("batch %d: %v", batches, err)
			}
		}
		var rows int
		if err := conns[0].QueryRow(t.Context(), `select count(*) from public.t`).Scan(&rows); err != nil || rows != len(s.rows) {
			t.Fatalf("batch %d: %d rows, want %d (%v)", batches, rows, len(s.rows), err)
		}
	}
	t.Logf("%d of %d batches were done again one by one", again, batches)
}

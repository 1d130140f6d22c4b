package layout

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/pgtest"
)

// row is one key as the server sent it, in both wire forms, and where the server says it belongs.
type row struct {
	text, binary []pg.Datum
	place        string
}

// askServer sends keys (columns of text, nil for NULL) to be cast to types, and gets each back in both wire forms
// beside the value of place, an expression over k0, k1, …
func askServer(t *testing.T, conn *pgx.Conn, types []string, columns [][]*string, place string) []row {
	t.Helper()
	var unnest, names, casts, outputs []string
	args := []any{pgx.QueryResultFormats{}}
	formats := pgx.QueryResultFormats{0}
	for i, typeName := range types {
		unnest = append(unnest, fmt.Sprintf("$%d::text[]", i+1))
		names = append(names, fmt.Sprintf("i%d", i))
		casts = append(casts, fmt.Sprintf("i%d::%s as k%d", i, typeName, i))
		outputs = append(outputs, fmt.Sprintf("k%d, k%d", i, i))
		args = append(args, columns[i])
		formats = append(formats, 0, 1)
	}
	args[0] = formats
	sql := fmt.Sprintf("select %s, %s from unnest(%s) u (%s) cross join lateral (select %s) k", place, strings.Join(outputs, ", "),
		strings.Join(unnest, ", "), strings.Join(names, ", "), strings.Join(casts, ", "))
	rows, err := conn.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var keys []row
	for rows.Next() {
		raw := rows.RawValues()
		r := row{place: string(raw[0])}
		for i := range types {
			r.text = append(r.text, datum(raw[1+2*i], pg.Text))
			r.binary = append(r.binary, datum(raw[2+2*i], pg.Binary))
		}
		keys = append(keys, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%v\nin: %s", err, sql)
	}
	return keys
}

func datum(raw []byte, kind pg.Kind) pg.Datum {
	if raw == nil {
		return null()
	}
	return pg.Datum{Kind: kind, Bytes: slices.Clone(raw)}
}

// reader is a session as the product opens one on a source.
func reader(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn, err := pg.Open(t.Context(), db.Shard(0), pg.Reader, "layout test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestHashPlacementIsTheServersForRandomKeys(t *testing.T) {
	t.Parallel()
	rng := random(t)
	db := pgtest.Shared(t).Database(t)
	conn := reader(t, db)
	keyTypes := [][]string{{"bigint", "text"}, {"uuid", "integer", "char(5)"}, {"numeric", "timestamptz", "bytea", "boolean"}, {"interval", "inet"}}
	for typeName := range keysOf {
		keyTypes = append(keyTypes, []string{typeName})
	}
	const shards = 61
	for n, types := range keyTypes {
		var columns, names []string
		keys := make([][]*string, len(types))
		for i, typeName := range types {
			names = append(names, fmt.Sprintf("k%d", i))
			columns = append(columns, fmt.Sprintf("k%d %s", i, typeName))
			keys[i] = readable(db, typeName, randomKeys(rng, typeName, 400))
			rng.Shuffle(len(keys[i]), func(a, b int) { keys[i][a], keys[i][b] = keys[i][b], keys[i][a] })
			keys[i] = keys[i][:min(400, len(keys[i]))]
		}
		table := fmt.Sprintf("public.h%d", n)
		key := strings.Join(names, ", ")
		db.Exec(t, fmt.Sprintf("create table %s (%s) partition by hash (%s)", table, strings.Join(columns, ", "), key))
		place := fmt.Sprintf("(select r from generate_series(0, %d) r where satisfies_hash_partition('%s'::regclass, %d, r, %s))", shards-1, table, shards, key)
		rule := hashRule(t, shards, types...)
		asked := askServer(t, conn, types, keys, place)
		if len(asked) < 300 {
			t.Fatalf("%v: only %d keys", types, len(asked))
		}
		for _, k := range asked {
			for _, form := range [][]pg.Datum{k.text, k.binary} {
				if s, err := rule.Place(form); err != nil || fmt.Sprint(int(s)) != k.place {
					t.Errorf("%v %q: %v (%v), the server says %s", types, rule.keyString(k.text), s, err, k.place)
				}
			}
		}
	}
}

func TestRangesHoldWhatTheServersPartitionsHold(t *testing.T) {
	t.Parallel()
	rng := random(t)
	db := pgtest.Shared(t).Database(t)
	conn := reader(t, db)
	for n, typeName := range []string{"bigint", "smallint", "oid", `text collate "C"`, `char(8) collate "C"`, "uuid", "bytea", "numeric", "double precision",
		"date", "time", "timetz", "timestamp", "timestamptz", "interval", "inet", "macaddr", "pg_lsn"} {
		plain, _, _ := strings.Cut(typeName, " collate")
		table := fmt.Sprintf("public.r%d", n)
		db.Exec(t, fmt.Sprintf("create table %s (k %s) partition by range (k); create table %[1]s_rest partition of %[1]s default", table, typeName))
		// The server sorts some keys; every other stretch between two becomes a range.
		sorted := db.Query(t, fmt.Sprintf("select k::text, dense_rank() over (order by k) o from unnest($1::text[]) i, lateral (select i::%s as k) x where k is not null order by o", plain), readable(db, plain, randomKeys(rng, plain, 30)))
		if strings.Contains(typeName, "collate") {
			slices.SortFunc(sorted, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
		}
		sorted = slices.CompactFunc(sorted, func(a, b []string) bool { return a[1] == b[1] })
		rest := 0
		spec := Spec{Shards: len(sorted) + 1, Tables: []ShardedTable{{Column: "k"}}, Mappings: []Mapping{{Column: "k", Kind: KindDefault, Shard: &rest}}}
		for i := 0; i+1 < len(sorted); i += 2 {
			spec.Mappings = append(spec.Mappings, Mapping{Column: "k", Kind: KindRange, Start: sorted[i][0], End: sorted[i+1][0], Shard: on(i + 1)})
			db.Exec(t, fmt.Sprintf("create table %s_%d partition of %[1]s for values from (%[3]s) to (%[4]s)", table, i+1, literal(sorted[i][0]), literal(sorted[i+1][0])))
		}
		rng.Shuffle(len(spec.Mappings), func(a, b int) {
			spec.Mappings[a], spec.Mappings[b] = spec.Mappings[b], spec.Mappings[a]
		})
		rule := ruleOf(t, spec, tableOf("public.t", "k "+plain))
		keys := append(readable(db, plain, randomKeys(rng, plain, 200)), column(sorted)...)
		keys = slices.DeleteFunc(keys, func(k *string) bool { return k != nil && *k == `\N` }) // Query's word for NULL
		db.Exec(t, fmt.Sprintf("insert into %s select i::%s from unnest($1::text[]) i", table, plain), keys)
		stored := askServer(t, conn, []string{plain}, [][]*string{column(db.Query(t, "select k from "+table))}, "0")
		places := db.Query(t, fmt.Sprintf("select substring(tableoid::regclass::text from '[^_]*$') from %s", table))
		for i, k := range stored {
			want := strings.Replace(places[i][0], "rest", "0", 1)
			for _, form := range [][]pg.Datum{k.text, k.binary} {
				if s, err := rule.Place(form); err != nil || fmt.Sprint(int(s)) != want {
					t.Errorf("%s %q: %v (%v), the server's partition is %s", typeName, rule.keyString(k.text), s, err, want)
				}
			}
		}
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// column is the first column of rows, NULL for `\N`.
func column(rows [][]string) []*string {
	keys := make([]*string, len(rows))
	for i, r := range rows {
		if r[0] != `\N` {
			keys[i] = &r[0]
		}
	}
	return keys
}

// readable leaves out or cuts down what an old server cannot read: up to 14 each number in an interval is of 32 bits.
func readable(db *pgtest.DB, typeName string, keys []*string) []*string {
	if typeName != "interval" || db.Cluster.Version > 14 {
		return keys
	}
	for i, k := range keys {
		var months, days, micros int64
		if k == nil {
			continue
		}
		if _, err := fmt.Sscanf(*k, "%d mons %d days %d us", &months, &days, &micros); err == nil {
			cut := fmt.Sprintf("%d mons %d days %d us", months, days, int32(micros))
			keys[i] = &cut
		}
	}
	return slices.DeleteFunc(keys, func(k *string) bool { return k != nil && strings.Contains(*k, "2562047788") })
}

// randomKeys is n random keys of a type as the server reads them, NULL, and the type's awkward ones.
func randomKeys(rng *rand.Rand, typeName string, n int) []*string {
	of := keysOf[typeName]
	keys := []*string{nil}
	for _, k := range of.awkward {
		keys = append(keys, &k)
	}
	for range n {
		k := of.random(rng)
		keys = append(keys, &k)
	}
	return keys
}

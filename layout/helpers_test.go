package layout

import (
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgreshard/pg"
)

// tableOf describes a table from its name ("schema.table") and columns ("name type").
func tableOf(name string, columns ...string) *pg.Table {
	schema, table, _ := strings.Cut(name, ".")
	t := &pg.Table{Name: pg.Name{Schema: schema, Table: table}, Kind: 'r'}
	for i, c := range columns {
		column, typeName, _ := strings.Cut(c, " ")
		t.Columns = append(t.Columns, pg.Column{Num: int16(i + 1), Name: column, Type: typeName, Base: typeName, TypeOID: oidOf(typeName),
			BaseOID: oidOf(typeName), Deterministic: true})
	}
	return t
}

// oidOf is the OID of a type this package knows, and one of a user's type for any other.
func oidOf(typeName string) uint32 {
	want, _ := parseType(typeName)
	for oid := uint32(1); oid < 4000 && want != typeNone; oid++ {
		if typeOfOID(oid) == want {
			return oid
		}
	}
	return 100_000
}

// hashRule is the rule of a table sharded over columns of these types.
func hashRule(t testing.TB, shards int, types ...string) *Rule {
	t.Helper()
	var names, columns []string
	for i, typeName := range types {
		names = append(names, "k"+strconv.Itoa(i))
		columns = append(columns, names[i]+" "+typeName)
	}
	return ruleOf(t, Spec{Shards: shards, Tables: []ShardedTable{{Columns: names}}}, tableOf("public.t", columns...))
}

func ruleOf(t testing.TB, spec Spec, table *pg.Table) *Rule {
	t.Helper()
	l, err := Compile(spec, []*pg.Table{table})
	if err != nil {
		t.Fatal(err)
	}
	return l.Rule(table.Name)
}

func text(s string) pg.Datum       { return pg.Datum{Kind: pg.Text, Bytes: []byte(s)} }
func binaryOf(b []byte) pg.Datum   { return pg.Datum{Kind: pg.Binary, Bytes: b} }
func null() pg.Datum               { return pg.Datum{Kind: pg.Null} }
func on(shard int) *int            { return &shard }
func key(d ...pg.Datum) []pg.Datum { return d }

func place(t testing.TB, r *Rule, key ...pg.Datum) Shard {
	t.Helper()
	s, err := r.Place(key)
	if err != nil {
		t.Fatalf("place %s: %v", r.keyString(key), err)
	}
	return s
}

// random is seeded from PGRESHARD_TEST_SEED, else from the clock; it prints what replays it.
func random(t testing.TB) *rand.Rand {
	seed, err := strconv.ParseUint(os.Getenv("PGRESHARD_TEST_SEED"), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("PGRESHARD_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

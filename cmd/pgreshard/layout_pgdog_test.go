package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"pgreshard/layout"
)

// pgDogKeys are the keys PgDog takes in these sections; it refuses others.
type pgDogKeys struct {
	Databases []struct {
		Name, Host, Role string
		Port, Shard      int
		DatabaseName     string `toml:"database_name"`
	} `toml:"databases"`
	Sharded []struct {
		Database, Name, Schema, Column, Hasher string
		DataType                               string `toml:"data_type"`
	} `toml:"sharded_tables"`
	Mappings []struct {
		Database, Column, Table, Schema, Kind string
		Start, End                            any
		Values                                []any
		Shard                                 int
	} `toml:"sharded_mappings"`
	Omni []struct {
		Database string
		Tables   []string
	} `toml:"omnisharded_tables"`
}

func TestALayoutIsPrintedForPgDogOrNotAtAll(t *testing.T) {
	t.Parallel()
	one := layout.Shard(1)
	record := layout.Record{Version: 2, Database: "prod", Shards: []layout.RecordShard{{Shard: 0, Node: "10.0.0.1:5432"}, {Shard: 1, Node: "[::1]:5433"}},
		Rules: []layout.RecordRule{
			{Table: "public.orders", Kind: "sharded", Columns: []string{"tenant_id"}, DataType: []string{"integer"}, Placement: "hash(tenant_id) modulo 2"},
			{Table: "public.names", Kind: "sharded", Columns: []string{"name"}, DataType: []string{"text"}, Placement: "sha1(name) modulo 2"},
			{Table: "public.regions", Kind: "sharded", Columns: []string{"id"}, DataType: []string{"bigint"}, Placement: "list/range/default on id",
				List: []layout.Listed{{Value: "7", Shard: 0}}, Ranges: []layout.Span{{From: "100", Shard: 1}}, Default: &one},
			{Table: "public.countries", Kind: "omnisharded", Placement: "omnisharded"},
		}}
	var b bytes.Buffer
	if err := writePgDog(&b, record, []string{"prod_0", "prod_1"}); err != nil {
		t.Fatal(err)
	}
	var read pgDogKeys
	if err := toml.NewDecoder(&b).DisallowUnknownFields().Decode(&read); err != nil {
		t.Fatal(err)
	}
	if d := read.Databases; len(d) != 2 || d[1].Name != "prod" || d[1].Host != "::1" || d[1].Port != 5433 || d[1].DatabaseName != "prod_1" || d[1].Shard != 1 || d[1].Role != "primary" {
		t.Errorf("databases: %+v", d)
	}
	if s := read.Sharded; len(s) != 3 || s[0].DataType != "bigint" || s[0].Schema != "public" || s[0].Name != "orders" || s[0].Column != "tenant_id" ||
		s[1].DataType != "varchar" || s[1].Hasher != "sha1" {
		t.Errorf("sharded tables: %+v", s)
	}
	if m := read.Mappings; len(m) != 3 || m[0].Values[0] != int64(7) || m[1].Start != int64(100) || m[1].End != nil || m[2].Kind != "default" || m[2].Shard != 1 || m[2].Table != "regions" {
		t.Errorf("mappings: %+v", m)
	}
	if o := read.Omni; len(o) != 1 || o[0].Tables[0] != "countries" {
		t.Errorf("omnisharded tables: %+v", o)
	}

	for name, rule := range map[string]layout.RecordRule{
		"a lookup":         {Columns: []string{"id"}, DataType: []string{"bigint"}, Placement: "hash(lookup of id) modulo 2", LookupQuery: "select 1"},
		"slots":            {Columns: []string{"id"}, DataType: []string{"bigint"}, Placement: "hash(id) modulo 16384 slots"},
		"two columns":      {Columns: []string{"a", "b"}, DataType: []string{"bigint", "bigint"}, Placement: "hash(a, b) modulo 2"},
		"a date":           {Columns: []string{"d"}, DataType: []string{"date"}, Placement: "hash(d) modulo 2"},
		"one shard's only": {Kind: "whole", Placement: "whole table on 0"},
	} {
		rule.Table = "public.odd"
		odd := record
		odd.Rules = append([]layout.RecordRule{rule}, record.Rules...)
		b.Reset()
		err := writePgDog(&b, odd, []string{"prod_0", "prod_1"})
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != exitCheck || !strings.Contains(err.Error(), "public.odd: PgDog does not place rows so: ") || b.Len() > 0 {
			t.Errorf("%s: %v\n%s", name, err, b.String())
		}
	}
}

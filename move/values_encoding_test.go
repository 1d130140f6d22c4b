package move_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgreshard/copier"
	"pgreshard/move"
	"pgreshard/pgtest"
)

// encoded is a database of another encoding than UTF8.
func encoded(t *testing.T, c *pgtest.Cluster, encoding string) *pgtest.DB {
	t.Helper()
	maker := c.Database(t)
	db := *maker
	db.Name = maker.Name + "_" + strings.ToLower(encoding)
	maker.Exec(t, "create database "+db.Name+" encoding '"+encoding+"' lc_collate 'C' lc_ctype 'C' template template0")
	maker.Exec(t, "alter database "+db.Name+" set client_encoding = 'UTF8'") // for the test's own sessions
	t.Cleanup(func() { _ = db.Drop(context.Background()) })
	return &db
}

func TestValues2ASourceOfAnotherEncodingArrivesInUTF8(t *testing.T) {
	for encoding, word := range map[string]string{"LATIN1": "Ärger é ß ÿ", "WIN1252": "€ „Ž“ Ÿ", "EUC_JP": "日本語 ｱ", "KOI8R": "Привет ©"} {
		for _, format := range []copier.Format{copier.Auto, copier.Text} {
			t.Run(encoding+" "+string(format), func(t *testing.T) {
				t.Parallel()
				pgtest.OneIn(t, 3)
				source := encoded(t, pgtest.Shared(t), encoding)
				table := `"t ` + word + `"`
				schema := strings.ReplaceAll(`create type kind as enum ('%W', 'other');
					create type pair as ("%W" text, n int);
					create domain short as text check (value <> 'x %W');
					create table "t %W" (k text primary key, v varchar(40), c char(20), n name, j json, jb jsonb, x xml, ts tsvector, tq tsquery,
						a text[], "e %W" kind, p pair, d short, r tstzrange, b bytea, long text default 'default %W');
					comment on table "t %W" is '%W'`, "%W", word)
				insert := strings.ReplaceAll(`insert into "t %W" select g || ' %W', '%W', '%W', '%W', '{"%W": "\u0041%W"}', '{"%W": "%W", "zz": {"%W": 1.0, "yyy": null}}', '<a b="%W">%W</a>',
					to_tsvector('simple', '%W'), plainto_tsquery('simple', '%W'), array['%W', null, '"%W\'], '%W', row('%W'::text, 1)::pair, '%W', '(,)', '\xff00fe', repeat('%W', 2000) from generate_series(%d, %d) g`, "%W", word)
				source.Exec(t, schema)
				source.Exec(t, fmt.Sprintf(insert, 1, 40))
				var shards []*pgtest.DB
				for range 3 {
					shards = append(shards, pgtest.SharedDestination(t).Database(t))
				}
				s := smallMoveOf(t, source, shards, "k")
				s.config.CopyFormat = format
				s.recast = map[string]string{"jb": "jsonb", "ts": "tsvector"}
				s.run(func() {
					source.Exec(t, fmt.Sprintf(insert, 41, 80))
					source.Exec(t, strings.ReplaceAll(`update "t %W" set v = 'new %W', "e %W" = 'other' where k like '1%'; update "t %W" set k = 'key ' || k where k like '2%';
						delete from "t %W" where k like '3%'; update "t %W" set long = long || '%W', a = a || '%W'::text where k like '5%'`, "%W", word))
				})
				s.same("public."+table, "k")
				s.onItsShard("public."+table, "k", "text")
			})
		}
	}
}

func TestADestinationOfAnotherEncodingIsRefused(t *testing.T) {
	t.Parallel()
	source := pgtest.Shared(t).Database(t)
	source.Exec(t, `create table a (k text primary key)`)
	s := smallMoveOf(t, source, []*pgtest.DB{encoded(t, pgtest.SharedDestination(t), "LATIN1")}, "k")
	err := s.move().Migrate(t.Context(), move.MigrateOptions{})
	var refused *move.PlanError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "LATIN1") || !strings.Contains(err.Error(), "destination shard 0") {
		t.Errorf("%v", err)
	}
}

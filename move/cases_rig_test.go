package move_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"pgreshard/layout"
	"pgreshard/pgtest"
)

// The tests of cases_*_test.go are whole moves: rows that stand there are copied, steps are done while it streams, and
// at the end both sides are compared by plain SQL.

// steps are transactions: each is sent as one query, so that several statements are one transaction unless they say
// begin and commit themselves.
func (s *smallMove) steps(list ...string) func() {
	conn := s.sources[0].Conn(s.t)
	return func() {
		s.t.Helper()
		for _, step := range list {
			runOn(s.t, conn, step)
		}
	}
}

// stepsOf does each step, in which %T stands for a table, for every table.
func stepsOf(tables []string, list ...string) (out []string) {
	for _, step := range list {
		for _, table := range tables {
			out = append(out, strings.ReplaceAll(step, "%T", table))
		}
	}
	return out
}

// shard gives a table its own rule: the columns it is sharded by.
func (s *smallMove) shard(table string, columns ...string) {
	s.config.Destination.Spec.Tables = append(s.config.Destination.Spec.Tables,
		layout.ShardedTable{Database: "app_sharded", Name: table, Columns: columns})
}

func (s *smallMove) omni(tables ...string) {
	s.config.Destination.Spec.Omni = append(s.config.Destination.Spec.Omni, layout.OmniTables{Database: "app_sharded", Tables: tables})
}

// sameRows compares tables as multisets of rows. The source must have some.
func (s *smallMove) sameRows(options pgtest.RowsOptions, tables ...string) {
	s.t.Helper()
	from, to := s.conns(s.sources), s.conns(s.shards)
	for _, table := range tables {
		if err := pgtest.SameRows(s.t.Context(), from, to, table, options); err != nil {
			s.t.Error(err)
		}
		if rows := s.sources[0].Query(s.t, "select count(*) from "+table); rows[0][0] == "0" {
			s.t.Errorf("%s is empty", table)
		}
	}
}

// emptyShards are n databases with a schema made by hand.
func emptyShards(t *testing.T, n int, schema string) (shards []*pgtest.DB) {
	t.Helper()
	for range n {
		db := pgtest.SharedDestination(t).Database(t)
		db.Exec(t, schema)
		shards = append(shards, db)
	}
	return shards
}

// problems are what a plan finds, each as one line.
func (s *smallMove) problems() (out []string) {
	s.t.Helper()
	plan, err := s.move().Plan(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range plan.Problems {
		out = append(out, p.Table+": "+p.What+"; "+p.Hint)
	}
	return out
}

func containing(list []string, text string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, text) })
}

// largeToo says that the cases that are made small for the ordinary suite are wanted in full.
func largeToo() bool { return os.Getenv("PGRESHARD_TEST_MEMORY") != "" }

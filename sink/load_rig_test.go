package sink_test

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/pgtest"
	"pgreshard/sink"
)

// rig is a source, some shards and a copy between them. Rows go to the shard that the first byte of md5(key as text)
// names, so that plain SQL can say where each belongs; NULL keys go to shard 0.
type rig struct {
	t      testing.TB
	source *pgtest.DB
	shards []*pgtest.DB
	keys   map[string][]string // key columns by table; none: every shard gets every row
	format copier.Format
	pages  uint32 // blocks a chunk
	upsert bool
	many   bool // route in batches

	marks map[string]bool // chunks held before the run: "oid/chunk/shard"

	config func(*copier.Config)
	load   func(*sink.LoadConfig)
}

const marksTable = `create schema pgreshard; create table pgreshard.mark (tbl oid, chunk int, primary key (tbl, chunk))`

func newRig(t testing.TB, shards int, schema string) *rig {
	r := &rig{t: t, keys: map[string][]string{}, format: copier.Auto, pages: 4}
	cluster := pgtest.Shared(t)
	r.source = cluster.Database(t)
	r.source.Exec(t, schema)
	for range shards {
		db := cluster.Database(t)
		db.Exec(t, marksTable)
		db.Exec(t, schema)
		r.shards = append(r.shards, db)
	}
	return r
}

func (r *rig) catalog(db *pgtest.DB) *pg.Catalog {
	r.t.Helper()
	c, err := pg.ReadCatalog(r.t.Context(), db.Conn(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// chunks plans and splits every table of the source.
func (r *rig) chunks() []*pg.Chunk {
	r.t.Helper()
	from, into := r.catalog(r.source), r.catalog(r.shards[0])
	var out []*pg.Chunk
	for _, root := range from.Roots() {
		for _, leaf := range from.Leaves(root) {
			c, err := copier.Plan(leaf, into.Table(root.Name), r.keys[root.Name.Table], true, r.format)
			if err != nil {
				r.t.Fatal(err)
			}
			out = append(out, copier.Split(c, r.pages)...)
		}
	}
	return out
}

func (r *rig) run(ctx context.Context, chunks []*pg.Chunk) error {
	r.t.Helper()
	snapshot, err := copier.NewSnapshot(r.t.Context(), r.source.Shard(0), "test")
	if err != nil {
		r.t.Fatal(err)
	}
	defer snapshot.Close()
	return r.runUnder(ctx, snapshot, chunks)
}

func (r *rig) runUnder(ctx context.Context, snapshot *copier.Snapshot, chunks []*pg.Chunk) error {
	load := sink.LoadConfig{App: "load", Table: r.table, Mark: func(c *pg.Chunk, _ int) (string, []any) {
		return `insert into pgreshard.mark values ($1, $2)`, []any{c.Copy.From.OID, c.Number}
	}, Done: func(c *pg.Chunk, shard int) bool { return r.marks[markOf(c, shard)] }}
	for i, s := range r.shards {
		load.Shards = append(load.Shards, s.Shard(i))
	}
	if r.load != nil {
		r.load(&load)
	}
	config := copier.Config{Shard: r.source.Shard(0), App: "copy", Snapshot: snapshot.ID, Workers: 3, Chunks: chunks,
		Loader: func(int) copier.Loader { return sink.NewLoader(load) }}
	if r.config != nil {
		r.config(&config)
	}
	return copier.Run(ctx, config)
}

func markOf(c *pg.Chunk, shard int) string {
	return fmt.Sprintf("%d/%d/%d", c.Copy.From.OID, c.Number, shard)
}

// readMarks takes what the shards hold as done.
func (r *rig) readMarks() {
	r.marks = map[string]bool{}
	for i, s := range r.shards {
		for _, row := range s.Query(r.t, `select tbl, chunk from pgreshard.mark`) {
			r.marks[fmt.Sprintf("%s/%s/%d", row[0], row[1], i)] = true
		}
	}
}

func (r *rig) table(c *pg.Copy) (*sink.LoadTable, error) {
	t := &sink.LoadTable{Upsert: r.upsert}
	var types []uint32
	for _, k := range c.Key {
		i, _ := c.From.Column(c.Columns[k])
		types = append(types, c.From.Columns[i].TypeOID)
	}
	place := func(key []pg.Datum) (int, error) {
		var parts []string
		for i, d := range key {
			if d.Kind == pg.Null {
				return 0, nil
			}
			text, err := asText(d, types[i])
			if err != nil {
				return 0, err
			}
			parts = append(parts, text)
		}
		sum := md5.Sum([]byte(strings.Join(parts, "/")))
		return int(sum[0]) % len(r.shards), nil
	}
	if r.many && len(types) > 0 {
		t.RouteMany = func(_ context.Context, keys [][]pg.Datum, shards []int) (err error) {
			for i, k := range keys {
				if shards[i], err = place(k); err != nil {
					return err
				}
			}
			return nil
		}
		return t, nil
	}
	t.Route = func(key []pg.Datum) (int, bool, error) {
		shard, err := place(key)
		return shard, len(types) == 0, err
	}
	return t, nil
}

func asText(d pg.Datum, oid uint32) (string, error) {
	if d.Kind == pg.Text {
		return string(d.Bytes), nil
	}
	switch {
	case oid == 20 && len(d.Bytes) == 8:
		return strconv.FormatInt(int64(binary.BigEndian.Uint64(d.Bytes)), 10), nil
	case oid == 23 && len(d.Bytes) == 4:
		return strconv.Itoa(int(int32(binary.BigEndian.Uint32(d.Bytes)))), nil
	case oid == 25:
		return string(d.Bytes), nil
	}
	return "", fmt.Errorf("a key of type %d has %d bytes", oid, len(d.Bytes))
}

// placed is the SQL condition that a source's row belongs on a shard.
func (r *rig) placed(table string, shard int) string {
	keys := r.keys[table]
	if len(keys) == 0 {
		return "true"
	}
	var parts []string
	for _, k := range keys {
		parts = append(parts, pg.Column{Name: k}.SQL()+"::text")
	}
	return fmt.Sprintf("coalesce(get_byte(decode(md5(%s), 'hex'), 0) %% %d, 0) = %d", strings.Join(parts, "||'/'||"), len(r.shards), shard)
}

// compare has the servers say that each shard holds exactly the source's rows that belong to it.
func (r *rig) compare() {
	r.t.Helper()
	c := r.catalog(r.source)
	for _, root := range c.Roots() {
		row := "''"
		for _, column := range root.Columns {
			row += " || '|' || coalesce(" + column.SQL() + "::text, '(null)')"
		}
		for i, s := range r.shards {
			sum := "select count(*), md5(string_agg(md5(row), '' order by md5(row))) from (select " + row + " as row from " + root.Name.SQL()
			want := r.source.Query(r.t, sum+" where "+r.placed(root.Name.Table, i)+") r")
			got := s.Query(r.t, sum+") r")
			if fmt.Sprint(want) != fmt.Sprint(got) {
				r.t.Errorf("%s on shard %d: %v, want %v", root.Name, i, got, want)
			}
		}
	}
}

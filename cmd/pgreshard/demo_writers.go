package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"pgreshard/layout"
	"pgreshard/notice"
	"pgreshard/pg"
	"pgreshard/pgtest"
)

// follower is what an application has that follows the serving layout: which one it is, and where a key lives in it.
type follower struct {
	source string
	shards []string
	rules  *layout.Layout // of the destination
	moved  atomic.Bool    // the destination serves
}

// newFollower compiles the rules the configuration gives for the tables that are there.
func newFollower(ctx context.Context, d *demo, conn *pgx.Conn) (*follower, error) {
	c, err := loadConfig(d.config)
	if err != nil {
		return nil, err
	}
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("read the tables: %w", err)
	}
	rules, err := layout.Compile(c.spec(c.Destination), catalog.Roots())
	if err != nil {
		return nil, fmt.Errorf("compile the rules: %w", err)
	}
	f := &follower{source: d.source.URL(), rules: rules}
	for _, s := range d.shards {
		f.shards = append(f.shards, s.URL())
	}
	return f, nil
}

func (f *follower) serves(layout int) { f.moved.Store(layout > 1) }

// listen goes by what the board at NATS tells of the layout that serves.
func (f *follower) listen(ctx context.Context, board *notice.Board) {
	_ = board.Watch(ctx, demoDatabase(0), nil, func(r layout.Record) { // ends with ctx
		f.serves(r.Version)
	})
}

// target is the address of the shard that holds a tenant's rows of a table.
func (f *follower) target(_ context.Context, table string, tenant int64) (string, error) {
	if !f.moved.Load() {
		return f.source, nil
	}
	rule := f.rules.Rule(pg.Name{Schema: "public", Table: table})
	if rule == nil {
		return "", fmt.Errorf("no rule covers %s", table)
	}
	if rule.Omni {
		return f.shards[0], nil
	}
	key := strconv.FormatInt(pgtest.RootTenant(tenant), 10)
	if table == "events" {
		key = pgtest.EventTenant(tenant)
	}
	shard, err := rule.Place([]pg.Datum{{Kind: pg.Text, Bytes: []byte(key)}})
	if err != nil {
		return "", err
	}
	return f.shards[shard], nil
}

// all are the addresses a row of an omnisharded table is written to.
func (f *follower) all(context.Context) ([]string, error) {
	if f.moved.Load() {
		return f.shards, nil
	}
	return []string{f.source}, nil
}

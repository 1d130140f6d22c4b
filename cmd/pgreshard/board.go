package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"pgreshard/layout"
	"pgreshard/move"
	"pgreshard/notice"
)

// board keeps a copy of the serving layout at NATS.
type board struct {
	*notice.Board
	address string         // of NATS
	server  *notice.Server // inside this process; nil: another one
	reads   engine         // asks the databases, with sessions of its own
	key     string         // the source's database
	log     *slog.Logger
}

// openBoard is nil where the configuration wants none. NATS need not answer; a server inside the process must start.
func (a *app) openBoard(ctx context.Context, c *Config) (*board, error) {
	if c.NATS.URL == "" && !c.NATS.Embedded {
		return nil, nil
	}
	address, err := c.NATS.URL.expand()
	if err != nil {
		return nil, fmt.Errorf("nats.url: %w", err)
	}
	b := &board{address: address, key: c.Source.Database, log: a.log}
	if c.NATS.Embedded {
		dir := c.NATS.StoreDir
		if dir == "" {
			if dir, err = stateDir(c.Move.Name); err != nil {
				return nil, err
			}
			dir = filepath.Join(dir, "nats")
		}
		if b.server, err = notice.Serve(dir, address); err != nil {
			return nil, err
		}
	}
	if b.Board, err = notice.Open(address, b.server, "pgreshard "+c.Move.Name); err == nil {
		b.reads, err = a.open(ctx, c, a.log)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *board) Close() {
	if b.reads != nil {
		b.reads.Close()
	}
	if b.Board != nil {
		b.Board.Close()
	}
	if b.server != nil {
		b.server.Close()
	}
}

// cdc is where changes are published, nil where they are not to be. What is published while NATS does not answer is not kept
// here: the databases' logs have it.
func (b *board) cdc(c *Config) (*move.CDC, error) {
	if !c.CDC.Enabled {
		return nil, nil
	}
	conn, err := notice.Connect(b.address, b.server, "pgreshard "+c.Move.Name+" cdc", nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, err
	}
	return &move.CDC{Conn: conn, Rows: c.CDC.Snapshot}, nil
}

const (
	boardLooks  = 100 * time.Millisecond
	boardAgain  = 30 * time.Second // what stands there is read again
	boardPause  = time.Second      // after a failure
	boardFinish = 5 * time.Second  // longest the end of the worker waits for the board
)

// keep brings the board up to the layout that serves, whenever that changes and every now and then, until ctx ends; then once
// more.
func (b *board) keep(ctx context.Context, snapshot func() move.Status) {
	told, wrong := 0, false
	var next time.Time
	for ctx.Err() == nil {
		serving := snapshot().Layout.Serving
		if now := time.Now(); serving != 0 && (serving != told && !wrong || now.After(next)) {
			err := b.Agree(ctx, b.key, b.read)
			if err != nil && !wrong && ctx.Err() == nil {
				b.log.Warn("the layout at NATS is not up to date; the databases decide", "error", err)
			}
			wrong, next = err != nil, now.Add(boardAgain)
			if told = serving; wrong {
				next = now.Add(boardPause)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(boardLooks):
		}
	}
	if snapshot().Layout.Serving == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boardFinish)
	defer cancel()
	if err := b.Agree(ctx, b.key, b.read); err != nil {
		b.log.Warn("the layout at NATS is not up to date; the next worker brings it there", "error", err)
	}
}

// read is the layout as the databases have it.
func (b *board) read(ctx context.Context) (layout.Record, error) {
	r, err := b.reads.Layout(ctx)
	if err != nil {
		return layout.Record{}, err
	}
	l, ok := r.(layoutReport)
	if !ok {
		return layout.Record{}, fmt.Errorf("read the layout: got %T", r)
	}
	return l.Record, nil
}

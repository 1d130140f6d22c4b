package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pgtest"
)

// measure ends the demo: rows per shard, the freeze as worker and writers saw it, and whether everything that was
// acknowledged is there.
func (d *demo) measure(ctx context.Context) error {
	shards, closeShards, err := connect(ctx, d.shards...)
	if err != nil {
		return err
	}
	defer closeShards()
	fmt.Fprintln(d.out)
	if err := d.rowsPerShard(ctx, shards); err != nil {
		return err
	}

	seen := d.writers.Stats()
	fmt.Fprintln(d.out)
	d.say("the move took %.1f s, the writers committed %d transactions from beginning to end", d.took.Seconds(), seen.Commits)
	if freeze := d.last.Cutover.FreezeSeconds; freeze != nil {
		d.say("writes were refused for %.0f ms as the worker measured it", 1000**freeze)
	}
	d.say("the longest time of one writer between two commits around it: %d ms; %d writes were refused and done again",
		seen.LongestGap.Round(time.Millisecond).Milliseconds(), seen.Refused)
	d.say("comparison of both sides in the freeze: %s", verifyWords(d.last.Verify))
	if err := d.oldWriter(ctx); err != nil {
		return err
	}
	if err := d.writers.Ledger().Check(ctx, shards...); err != nil {
		return &exitError{code: exitCheck, hint: "this is a bug", err: fmt.Errorf("what the writers were told is committed is not all there: %w", err)}
	}
	d.say("the writers' ledger: each of the %d rows they were told is committed is there, once, and no other", d.writers.Ledger().Rows())
	return nil
}

// rowsPerShard prints how many rows of each table each shard holds, by plain SQL.
func (d *demo) rowsPerShard(ctx context.Context, shards []*pgx.Conn) error {
	counts := map[string][]int64{}
	for _, table := range pgtest.WorkloadTables() {
		for n, conn := range shards {
			var rows int64
			if err := conn.QueryRow(ctx, "select count(*) from public."+pgx.Identifier{table}.Sanitize()).Scan(&rows); err != nil {
				return fmt.Errorf("count %s on shard %d: %w", table, n, err)
			}
			counts[table] = append(counts[table], rows)
		}
	}
	return columns(d.out, func(t io.Writer) {
		fmt.Fprint(t, "table")
		for n := range shards {
			fmt.Fprintf(t, "\tshard %d", n)
		}
		fmt.Fprintln(t)
		for _, table := range pgtest.WorkloadTables() {
			fmt.Fprint(t, table)
			for _, rows := range counts[table] {
				fmt.Fprintf(t, "\t%d", rows)
			}
			fmt.Fprintln(t)
		}
	})
}

// oldWriter is the application that was forgotten: it writes to the source and must be refused.
func (d *demo) oldWriter(ctx context.Context) error {
	conns, closeAll, err := connect(ctx, d.source)
	if err != nil {
		return err
	}
	defer closeAll()
	_, err = conns[0].Exec(ctx, "delete from public.countries")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "25006" {
		return &exitError{code: exitCheck, hint: "this is a bug", err: fmt.Errorf("a write to the old database was not refused: %v", err)}
	}
	d.say("a write to the old database: %s (SQLSTATE %s)", refused.Message, refused.Code)
	return nil
}

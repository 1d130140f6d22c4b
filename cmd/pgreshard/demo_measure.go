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
	serving, old := d.shards, d.source
	if d.back {
		serving, old = []*pgtest.DB{d.source}, d.shards[0]
	}
	nodes, closeNodes, err := connect(ctx, serving...)
	if err != nil {
		return err
	}
	defer closeNodes()
	fmt.Fprintln(d.out)
	if err := d.rowsPerShard(ctx, nodes); err != nil {
		return err
	}

	seen := d.writers.Stats()
	fmt.Fprintln(d.out)
	d.say("the move took %.1f s, the writers committed %d transactions from beginning to end", d.took.Seconds(), seen.Commits)
	if freeze := d.last.Cutover.FreezeSeconds; freeze != nil && !d.back {
		d.say("writes were refused for %.0f ms as the worker measured it", 1000**freeze)
	}
	d.say("the longest time of one writer between two commits around it: %d ms; %d writes were refused and done again",
		seen.LongestGap.Round(time.Millisecond).Milliseconds(), seen.Refused)
	d.say("comparison of both sides in the freeze: %s", verifyWords(d.last.Verify))
	if err := oldWriter(ctx, d, old); err != nil {
		return err
	}
	if err := d.writers.Ledger().Check(ctx, nodes...); err != nil {
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
			if d.back {
				fmt.Fprint(t, "\tsource")
			} else {
				fmt.Fprintf(t, "\tshard %d", n)
			}
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

// oldWriter is the application that was forgotten: it writes to the layout that does not serve and must be refused.
func oldWriter(ctx context.Context, d *demo, old *pgtest.DB) error {
	conns, closeAll, err := connect(ctx, old)
	if err != nil {
		return err
	}
	defer closeAll()
	_, err = conns[0].Exec(ctx, "delete from public.countries")
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "25006" {
		return &exitError{code: exitCheck, hint: "this is a bug", err: fmt.Errorf("a write to database %s was not refused: %v", old.Name, err)}
	}
	d.say("a write to the database that does not serve: %s (SQLSTATE %s)", refused.Message, refused.Code)
	return nil
}

package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

const selectUnfenced = `select n.nspname, c.relname
  from pgreshard.fence_unfenced($1, $2) u join pg_class c on c.oid = u join pg_namespace n on n.oid = c.relnamespace order by 1, 2`

// unfenced lists the tables in scope of the moved ones (their partition trees, what they inherit from) that have no
// enabled fence.
func (f fence) unfenced(ctx context.Context, moved []pg.Name, always bool) ([]pg.Name, error) {
	return collectNames(ctx, f.Conn, selectUnfenced, quoted(moved), always)
}

func collectNames(ctx context.Context, q pg.Querier, sql string, args ...any) ([]pg.Name, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[pg.Name])
}

// arm puts the fence trigger on the moved tables, their partition trees and what they inherit from, one table at a
// time; a table whose lock is not had within LockTimeout waits for the next round. It ends when every table has it or
// ctx ends. always: the trigger fires for replica role too (the side that is left); else that role, the worker's, passes at
// no cost (the side that is filled).
func (f fence) arm(ctx context.Context, moved []pg.Name, always bool) error {
	return f.rounds(ctx, "arm the fence", func() ([]pg.Name, error) { return f.unfenced(ctx, moved, always) },
		func(t pg.Name) string {
			enable := "enable"
			if always {
				enable = "enable always"
			}
			return fmt.Sprintf(`create or replace trigger %[1]q before insert or update or delete or truncate on %[2]s
  for each statement execute function pgreshard.fence();
alter table only %[2]s %[3]s trigger %[1]q`, fenceTrigger, t.SQL(), enable)
		})
}

const selectFenced = `select n.nspname, c.relname
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
 where t.tgfoid = to_regproc('pgreshard.fence') order by 1, 2`

// disarm takes the fence trigger off every table that has it, one at a time, in rounds as arm does.
func (f fence) disarm(ctx context.Context) error {
	return f.rounds(ctx, "disarm the fence", func() ([]pg.Name, error) { return collectNames(ctx, f.Conn, selectFenced) },
		func(t pg.Name) string { return fmt.Sprintf(`drop trigger %q on %s`, fenceTrigger, t.SQL()) })
}

// remove disarms and drops the fence's functions and flags.
func (f fence) remove(ctx context.Context) error {
	if err := f.disarm(ctx); err != nil {
		return err
	}
	if err := f.inShortTransaction(ctx, fenceDropDDL); err != nil {
		return fmt.Errorf("remove the fence: %w", err)
	}
	return nil
}

// rounds runs a statement on each table that left lists until it lists none.
func (f fence) rounds(ctx context.Context, what string, left func() ([]pg.Name, error), statement func(pg.Name) string) error {
	pause := 10 * time.Millisecond
	for {
		tables, err := left()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if len(tables) == 0 {
			return nil
		}
		var stuck []string
		for _, t := range tables {
			err := f.inShortTransaction(ctx, statement(t))
			switch {
			case lockNotHad(err) || undefinedTable(err):
				stuck = append(stuck, t.String())
				if f.Stuck != nil {
					f.Stuck(t)
				}
			case err != nil && ctx.Err() == nil:
				return fmt.Errorf("%s on %s: %w", what, t, err)
			}
			if ctx.Err() != nil {
				stuck = append(stuck, t.String())
				break
			}
		}
		if len(stuck) == 0 {
			continue
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return fmt.Errorf("%s: no lock on %s within lock_timeout, tried again and again; hint: end the transactions that use it: %w",
				what, strings.Join(slices.Compact(stuck), ", "), ctx.Err())
		}
	}
}

// inShortTransaction runs statements in one transaction that gives up a lock after LockTimeout.
func (f fence) inShortTransaction(ctx context.Context, sql string) error {
	_, err := f.Conn.PgConn().Exec(ctx, fmt.Sprintf("begin; set local lock_timeout = %d; %s; commit", f.wait(), sql)).ReadAll()
	if err != nil && !f.Conn.IsClosed() {
		_, undo := f.Conn.PgConn().Exec(context.WithoutCancel(ctx), "rollback").ReadAll()
		return errors.Join(err, undo)
	}
	return err
}

// patiently runs a statement until it has the lock it needs, or ctx ends. It gives the lock up after each LockTimeout, so
// that nobody queues behind it for longer.
func (f fence) patiently(ctx context.Context, sql string) error {
	err := f.inShortTransaction(ctx, sql)
	for lockNotHad(err) && sleep(ctx, 100*time.Millisecond) == nil {
		err = f.inShortTransaction(ctx, sql)
	}
	return err
}

// lockNotHad: lock_timeout, or a deadlock lost.
func lockNotHad(err error) bool { c := pg.Code(err); return c == "55P03" || c == "40P01" }

// undefinedTable: dropped since it was listed.
func undefinedTable(err error) bool { return pg.Code(err) == "42P01" }

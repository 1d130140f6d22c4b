package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	selectLeftover = `select pid from pg_stat_activity where datname = current_database() and application_name = $1 and pid <> pg_backend_pid()`
	endLeftover    = `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = $1 and pid <> pg_backend_pid()`

	leftoverWait = 10 * time.Second
)

// endSessions ends sessions of an application name in this database and waits until they are gone: what a killed
// worker's pg_restore left running would hold its locks or finish behind our back.
func endSessions(ctx context.Context, conn *pgx.Conn, app string) error {
	ctx, cancel := context.WithTimeout(ctx, leftoverWait)
	defer cancel()
	for {
		var pid int32
		switch err := conn.QueryRow(ctx, selectLeftover, app).Scan(&pid); {
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		case err != nil:
			return fmt.Errorf("look for sessions of an earlier run: %w", err)
		}
		if _, err := conn.Exec(ctx, endLeftover, app); err != nil {
			return fmt.Errorf("end a session of an earlier run (pid %d): %w", pid, err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the session of an earlier run (pid %d) does not end: %w", pid, ctx.Err())
		}
	}
}

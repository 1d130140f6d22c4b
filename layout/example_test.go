package layout_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/layout"
)

// An application that follows a move: it learns from the worker which layout serves, and does a transaction again where it
// was refused because another one does.
func ExampleWatch() {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()

	var serving atomic.Pointer[layout.Record]
	go func() {
		_ = layout.Watch(ctx, layout.Watched{URL: "http://127.0.0.1:7432"}, func(r layout.Record) { serving.Store(&r) })
	}()

	// connect is the application's own: a connection to the shard of a key in the layout given, or, where none is known
	// yet, in the one of its configuration.
	connect := func(context.Context, *layout.Record, int64) (*pgx.Conn, error) {
		return nil, errors.New("not in an example")
	}
	write := func(ctx context.Context, tenant int64, do func(pgx.Tx) error) error {
		for {
			conn, err := connect(ctx, serving.Load(), tenant)
			if err != nil {
				return err
			}
			err = pgx.BeginFunc(ctx, conn, do)
			_ = conn.Close(ctx)
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "25006" {
				return err
			}
			select { // a freeze is on, or another layout serves: the whole transaction again, by the layout known then
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	err := write(ctx, 42, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update orders set status = 'paid' where tenant_id = 42 and id = 7`)
		return err
	})
	fmt.Println(err)
	// Output: not in an example
}

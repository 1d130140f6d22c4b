package pg

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// OpenReplica connects to a node that need not lead, to read there. What is known of the shard is checked, but for that.
func OpenReplica(ctx context.Context, shard Shard, app string) (*pgx.Conn, error) {
	c, err := Config(shard, Reader, app)
	if err != nil {
		return nil, err
	}
	if shard.Known.expected() != "" {
		c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
			_, err := identify(ctx, conn, shard, nodeName(c))
			if errors.Is(err, errStandby) {
				return nil
			}
			return err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("connect to a replica of %s: %w", shard, &openError{err})
	}
	return conn, nil
}

// Address is the host:port of a shard whose URL names one node; empty where it names several, or cannot be read.
func Address(shard Shard) string {
	c, err := Config(shard, Reader, "")
	if err != nil || len(nodes(c)) != 1 {
		return ""
	}
	return nodeName(c)
}

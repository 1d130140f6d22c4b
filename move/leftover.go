package move

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

// NoMoveError is ErrNoMove for a cancel: what an earlier one has left on the shards can only be dropped by hand.
type NoMoveError struct{ drops []string }

func (e *NoMoveError) Error() string { return "there is no such move, so nothing is cancelled" }
func (e *NoMoveError) Unwrap() error { return ErrNoMove }

// Hint has the statements that make room for the next migrate.
func (e *NoMoveError) Hint() string {
	if len(e.drops) == 0 {
		return "nothing of it is left; else [move] name or the first destination shard's URL is not what it was made with"
	}
	return "tables of these names are there, as a cancel without --drop-data leaves them; if nothing needs them: " + strings.Join(e.drops, "; ")
}

// nothingToCancel is the NoMoveError with what stands in the next move's way, where that can be read.
func (m *Move) nothingToCancel(ctx context.Context) error {
	if err := m.each(ctx, m.allNodes(), m.dropUnused); err != nil {
		return err
	}
	e := &NoMoveError{}
	for n := range m.Destination.Shards {
		err := m.dest(ctx, n, func(conn *pgx.Conn) error {
			catalog, err := pg.ReadCatalog(ctx, conn)
			if tables := m.takenNames(catalog); err == nil && m.CreateSchema && len(tables) > 0 {
				e.drops = append(e.drops, fmt.Sprintf("on destination shard %d: %s", n, dropTables(tables)))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return e
}

const selectUsed = `select exists (select from pgreshard.move) or exists (select from pgreshard.layout) or exists (select from pgreshard.serving)
	or exists (select from pgreshard.checkpoint) or exists (select from pgreshard.chunk)
	or exists (select from pgreshard.lease where move <> $1 or beat > clock_timestamp() - $2::interval)`

// dropUnused drops a schema pgreshard in which nothing is: a worker made it and was killed before it made the move.
func (m *Move) dropUnused(ctx context.Context, _ node, conn *pgx.Conn) error {
	there, err := checkpoints.Installed(ctx, conn)
	if err != nil || !there {
		return err
	}
	var used bool
	if err := conn.QueryRow(ctx, selectUsed, m.Name, checkpoints.LeaseTime.String()).Scan(&used); err != nil || used {
		return err
	}
	_, err = conn.Exec(ctx, `drop schema pgreshard cascade`)
	return err
}

// takenNames are the tables of a shard that have the name of one that is to be moved.
func (m *Move) takenNames(catalog *pg.Catalog) (taken []pg.Name) {
	if catalog == nil {
		return nil
	}
	for _, t := range catalog.Roots() {
		if m.matches(t.Name) {
			taken = append(taken, t.Name)
		}
	}
	return taken
}

func dropTables(tables []pg.Name) string {
	return "drop table " + strings.Join(quoted(tables), ", ") + " cascade"
}

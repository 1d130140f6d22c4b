package move

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// OpenTransactions lists, in words and by source, the transactions a freeze would wait for now: those that have written and are open
// for longer than a second, and prepared ones.
func (m *Move) OpenTransactions(ctx context.Context) ([]string, error) {
	var mu sync.Mutex
	found := make([][]string, len(m.Source.Shards))
	err := m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		all, err := blockers(ctx, conn, time.Second)
		mu.Lock()
		defer mu.Unlock()
		for _, b := range all {
			found[n] = append(found[n], b.end())
		}
		return err
	})
	var list []string
	for n, ends := range found {
		if len(ends) > 0 {
			list = append(list, fmt.Sprintf("on source shard %d: %s", n, strings.Join(ends, ", ")))
		}
	}
	return list, err
}

// end is how to end the blocker.
func (b Blocker) end() string {
	if b.Prepared != "" {
		return fmt.Sprintf("rollback prepared '%s'", strings.ReplaceAll(b.Prepared, "'", "''"))
	}
	return fmt.Sprintf("select pg_terminate_backend(%d)", b.PID)
}

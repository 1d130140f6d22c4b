package move

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pgreshard/pg"
)

const selectBehind = `
select coalesce(string_agg(coalesce(nullif(application_name, ''), client_addr::text, 'pid ' || pid), ', ' order by pid), '')
  from pg_stat_replication r
 where state = 'streaming' and flush_lsn < $1::text::pg_lsn
   and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')`

// waitStandbys waits until every streaming physical standby of a node has flushed a position, so that one that is
// promoted knows the seal. An error names those that have not when ctx ends.
func waitStandbys(ctx context.Context, q pg.Querier, lsn pg.LSN) error {
	for {
		var behind string
		err := q.QueryRow(ctx, selectBehind, lsn.String()).Scan(&behind)
		if err == nil && behind == "" {
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for standbys: %w", err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("standbys have not flushed %s: %s: %w", lsn, strings.TrimSpace(behind), ctx.Err())
		}
	}
}

package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/sink"
)

// What [cutover] on_blockers asks for where transactions hold up a freeze.
const (
	BlockersUndo      = "undo" // also where it is empty
	BlockersTerminate = "terminate"
)

// freezeSource freezes one source. Where transactions in flight outlast lock_timeout and may be ended, they are, and it is
// tried once more: new ones are refused meanwhile, or as young.
func (c *cutover) freezeSource(ctx context.Context, n int, conn *pgx.Conn) (frozen, error) {
	freeze := func() (frozen, error) {
		return c.fence(conn).freeze(ctx, c.inv.names(), c.MaxFreeze, sink.MessagePrefix, "barrier "+c.Name)
	}
	z, err := freeze()
	if c.OnBlockers != BlockersTerminate || !errors.Is(err, errWritersInFlight) {
		return z, err
	}
	ended, endErr := endBlockers(ctx, conn, c.inv.names(), c.LockTimeout)
	for _, b := range ended {
		c.log.Warn("a transaction in the way of the freeze was ended ([cutover] on_blockers)", "node", c.sourceWords(n), "transaction", b.String())
	}
	c.addEnded(ended)
	if endErr != nil || len(ended) == 0 {
		return z, errors.Join(err, endErr)
	}
	return freeze()
}

// addEnded notes who was ended, for the report of the freeze.
func (c *cutover) addEnded(all []Blocker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range all {
		c.ended = append(c.ended, b.String())
	}
}

// Whose transaction has written to a table of the move holds the fence's lock, or went around the fence and has a table locked.
const terminateBlockers = `
select a.pid, coalesce(a.usename, ''), a.application_name, extract(epoch from clock_timestamp() - a.xact_start)::float8, a.query, pg_terminate_backend(a.pid, 1000)
  from pg_stat_activity a
 where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type = 'client backend' and not starts_with(a.application_name, 'pgreshard ')
   and a.xact_start <= clock_timestamp() - make_interval(secs => $2)
   and exists (select from pg_locks l where l.pid = a.pid and l.granted
                and (l.locktype = 'advisory' and l.classid = 1885827699 and l.objid = 1 and l.objsubid = 2
                     or l.locktype = 'relation' and l.database = (select oid from pg_database where datname = current_database())
                        and l.relation in (select pgreshard.fence_scope($1))
                        and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')))`

// endBlockers ends the sessions whose transactions hold up a freeze for longer than given, and says which.
func endBlockers(ctx context.Context, conn *pgx.Conn, moved []pg.Name, olderThan time.Duration) (ended []Blocker, err error) {
	rows, err := conn.Query(ctx, terminateBlockers, quoted(moved), olderThan.Seconds())
	var b Blocker
	var seconds float64
	var gone bool
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&b.PID, &b.User, &b.App, &seconds, &b.Statement, &gone}, func() error {
			b.Age, b.Statement = time.Duration(seconds*float64(time.Second)), withoutValues(b.Statement)
			ended = append(ended, b)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("end the transactions in the way of the freeze: %w; hint: grant pg_signal_backend to the worker's role; sessions of superusers it cannot end all the same", err)
	}
	return ended, nil
}

const endOthers = `
select count(*) filter (where pg_terminate_backend(pid)) from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend' and not starts_with(application_name, 'pgreshard ')`

// endOldSessions ends, where the configuration says so, what applications have open on the layout that was left: there is no
// reason to go back for one that cannot be ended.
func (m *Move) endOldSessions(ctx context.Context) error {
	if !m.EndOldSessions {
		return nil
	}
	return m.sources(ctx, func(ctx context.Context, n int, conn *pgx.Conn) error {
		var ended int
		err := conn.QueryRow(ctx, endOthers).Scan(&ended)
		switch {
		case pg.Code(err) == "42501":
			m.log.Warn("sessions of the old layout cannot be ended; grant pg_signal_backend to the worker's role, or end them", "node", m.sourceWords(n), "error", err.Error())
			return nil
		case err == nil:
			m.log.Info("sessions of the old layout were ended ([cutover] end_old_sessions)", "node", m.sourceWords(n), "sessions", ended)
		}
		return err
	})
}

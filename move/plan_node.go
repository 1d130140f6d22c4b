package move

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/layout"
	"pgreshard/pg"
)

const selectSource = `select current_setting('wal_level'),
	current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots),
	current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication), pg_has_role('pg_read_all_stats', 'usage'), current_user::text`

func (p *planner) checkSource(ctx context.Context, where string, n int, conn *pgx.Conn) {
	if p.publishesOnly() {
		p.checkFollowed(ctx, where, p.Source.Shards[n], 1, conn)
		return
	}
	published := 0
	if p.Publishes {
		published = 1
	}
	p.checkFollowed(ctx, where, p.Source.Shards[n], 2+published, conn)
	p.noteCompared(ctx, where, p.Source.Shards[n], 3+published, conn)
	if p.Reverse {
		p.checkWritten(ctx, where, p.Source.Shards[n], conn, "; or do without a rollback: [cutover] reverse = false")
	}
	p.checkSignals(ctx, where, conn)
	var ahead bool
	if err := conn.QueryRow(ctx, selectAhead).Scan(&ahead); err == nil && ahead {
		p.note("%s has standbys and no synchronized_standby_slots: after a fail-over the shards may have changes its new leader never had, and the move must be started over", where)
	}
	p.checkServing(ctx, where, conn)
}

const selectSignals = `select rolsuper or pg_has_role('pg_signal_backend', 'usage'), rolname::text from pg_roles where rolname = current_user`

// checkSignals looks whether sessions of applications may be ended, where the configuration asks for it.
func (p *planner) checkSignals(ctx context.Context, where string, conn *pgx.Conn) {
	if p.OnBlockers != BlockersTerminate && !p.EndOldSessions {
		return
	}
	var may bool
	var user string
	if err := conn.QueryRow(ctx, selectSignals).Scan(&may, &user); err != nil {
		p.problem(where, "cannot be read: "+err.Error(), "")
	} else if !may {
		p.problem(where, "role "+user+" may not end sessions of other roles ([cutover] on_blockers, end_old_sessions)", "grant pg_signal_backend to "+ident(user))
	}
}

// checkFollowed looks whether a stream can be taken from a shard; need are slots, and sessions that stream.
func (p *planner) checkFollowed(ctx context.Context, where string, shard pg.Shard, need int, conn *pgx.Conn) {
	var level, user string
	var slots, senders int
	var stats bool
	if err := conn.QueryRow(ctx, selectSource).Scan(&level, &slots, &senders, &stats, &user); err != nil {
		p.problem(where, "cannot be read: "+err.Error(), "")
		return
	}
	if level != "logical" {
		p.problem(where, "wal_level is "+level, "alter system set wal_level = 'logical', and restart the server")
	}
	if slots < need {
		p.problem(where, fmt.Sprintf("%d replication slots are free, %d are needed", slots, need), "raise max_replication_slots, or drop slots nobody uses")
	}
	if senders < need {
		p.problem(where, fmt.Sprintf("%d walsenders are free, %d are needed", senders, need), "raise max_wal_senders")
	}
	if !stats { // pg_stat_activity and pg_stat_replication then hide what the cutover must wait for
		p.problem(where, "role "+user+" does not see other roles' transactions, nor standbys", "grant pg_monitor to "+ident(user))
	}
	replication, err := pg.OpenReplication(ctx, shard, p.app(), nil)
	if err != nil {
		p.problem(where, "a replication connection is refused: "+oneLine(err),
			fmt.Sprintf("alter role %s replication, and let pg_hba.conf admit it", ident(user)))
	} else {
		_ = replication.Close(ctx)
	}
}

// noteCompared tells where what changes on a node cannot be followed while both sides are compared, so that the freeze reads
// every row; need are the slots, and sessions that stream, with those the move needs anyway.
func (p *planner) noteCompared(ctx context.Context, where string, shard pg.Shard, need int, conn *pgx.Conn) {
	var level, user string
	var slots, senders int
	var stats bool
	if !p.MustVerify || conn.QueryRow(ctx, selectSource).Scan(&level, &slots, &senders, &stats, &user) != nil {
		return
	}
	why := ""
	if slots < need || senders < need {
		why = fmt.Sprintf("%d replication slots and %d walsenders are free, %d of each are needed", slots, senders, need)
	} else if need == 1 { // else it was looked at already
		replication, err := pg.OpenReplication(ctx, shard, p.app(), nil)
		switch {
		case level != "logical":
			why = "wal_level is " + level
		case err != nil:
			why = "a replication connection is refused: " + oneLine(err)
		}
		if err == nil {
			_ = replication.Close(ctx)
		}
	}
	if why != "" {
		p.note("%s: what changes there while both sides are compared cannot be followed, so that a freeze compares every row: %s", where, why)
	}
}

// checkWritten looks whether rows can be written to a shard without its triggers firing.
func (p *planner) checkWritten(ctx context.Context, where string, shard pg.Shard, conn *pgx.Conn, or string) {
	writer, err := pg.Open(ctx, shard, pg.Writer, p.app())
	if err != nil {
		p.problem(where, "session_replication_role cannot be set: "+oneLine(err),
			fmt.Sprintf("grant set on parameter session_replication_role to %s (PostgreSQL 15 and later), or use a superuser", ident(conn.Config().User))+or)
		return
	}
	pg.Close(writer)
}

// From 17 on a server can keep from us what its standbys lack.
const selectAhead = `select n > 0 and coalesce(current_setting('synchronized_standby_slots', true) = '', false) from ` + pg.StandbysSQL

// checkServing compares the configuration with the layout that is recorded there from an earlier move.
func (p *planner) checkServing(ctx context.Context, where string, conn *pgx.Conn) {
	serving, err := checkpoints.ReadServing(ctx, conn)
	if err == nil && serving != nil && serving.Version != p.Source.Layout {
		p.serving = append(p.serving, layout.Problem{Table: where,
			What: fmt.Sprintf("layout %d of %s is recorded as serving there, the configuration says [source] layout = %d", serving.Version, serving.Database, p.Source.Layout),
			Hint: p.servingHint(ctx, conn, serving.Version)})
	}
}

// servingHint tells a shard of the layout that serves from one that an earlier move has left behind.
func (p *planner) servingHint(ctx context.Context, conn *pgx.Conn, serving int) string {
	state, err := readFence(ctx, conn)
	fresh := "to begin anew from layout %d here, drop that record: drop schema pgreshard cascade"
	switch {
	case err == nil && state.Installed && state.Layout != int64(serving):
		return fmt.Sprintf("an earlier move has retired this database and its fence refuses writes: first `pgreshard complete --release-source` with that move's file; "+fresh, p.Source.Layout)
	case err == nil && !state.Installed:
		return fmt.Sprintf("if this shard belongs to it: [source] layout = %d, [destination] layout = %d; if an earlier move has left this database behind and its fence is off: "+
			fresh, serving, serving+1, p.Source.Layout)
	}
	return "`pgreshard layout` shows the serving layout"
}

func (p *planner) checkDestination(ctx context.Context, where string, n int, conn *pgx.Conn) {
	if n == 0 { // the home
		known, err := checkpoints.FindMove(ctx, conn, p.Name)
		p.fresh = err == nil && known == nil
		if known != nil {
			p.plan.State = known.State
		}
	}
	p.checkWritten(ctx, where, p.Destination.Shards[n], conn, "")
	if p.Reverse && !p.switched() {
		p.checkFollowed(ctx, where, p.Destination.Shards[n], 1, conn)
		p.checkSignals(ctx, where, conn)
		p.noteCompared(ctx, where, p.Destination.Shards[n], 2, conn)
	} else {
		p.noteCompared(ctx, where, p.Destination.Shards[n], 1, conn)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		p.problem(where, "its encoding is "+encoding+": text keys are hashed in UTF8 only", "make the destination databases with encoding UTF8")
	}
	if p.Confirm != ConfirmLeader {
		p.checkStandbys(ctx, where, conn)
	}
	if !p.CreateSchema || !p.fresh {
		return
	}
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		p.problem(where, "its tables cannot be read: "+err.Error(), "")
		return
	}
	if taken := p.takenNames(catalog); len(taken) > 0 {
		p.problem(where, existAlready(taken), "if nothing needs them (a cancel without --drop-data leaves them): "+dropTables(taken)+
			"; if they are meant to be filled: [schema] create = false")
	}
}

// checkStandbys looks whether what a shard's standbys have can be asked.
func (p *planner) checkStandbys(ctx context.Context, where string, conn *pgx.Conn) {
	var unseen int
	if err := conn.QueryRow(ctx, `select unseen from `+pg.StandbysSQL).Scan(&unseen); err != nil {
		p.problem(where, "its standbys cannot be read: "+err.Error(), "")
	} else if unseen > 0 {
		user := conn.Config().User
		p.problem(where, "role "+user+" does not see what its standbys have", "grant pg_monitor to "+ident(user)+", or do not wait for them: [stream] confirm = \"leader\"")
	}
}

func existAlready(tables []pg.Name) string {
	var names []string
	for _, t := range tables {
		names = append(names, t.String())
	}
	if len(names) == 1 {
		return "table " + names[0] + " exists already"
	}
	return "tables " + strings.Join(names, ", ") + " exist already"
}

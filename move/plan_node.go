package move

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/pg"
)

const selectSource = `select current_setting('wal_level'),
	current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots),
	current_setting('max_wal_senders')::int - (select count(*) from pg_stat_replication), pg_has_role('pg_read_all_stats', 'usage'), current_user::text`

func (p *planner) checkSource(ctx context.Context, where string, n int, conn *pgx.Conn) {
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
	if slots < 2 {
		p.problem(where, fmt.Sprintf("%d replication slots are free, 2 are needed", slots), "raise max_replication_slots, or drop slots nobody uses")
	}
	if senders < 2 {
		p.problem(where, fmt.Sprintf("%d walsenders are free, 2 are needed", senders), "raise max_wal_senders")
	}
	if !stats { // pg_stat_activity and pg_stat_replication then hide what the cutover must wait for
		p.problem(where, "role "+user+" does not see other roles' transactions, nor standbys", "grant pg_monitor to "+ident(user))
	}
	replication, err := pg.OpenReplication(ctx, p.Source.Shards[n], p.app(), nil)
	if err != nil {
		p.problem(where, "a replication connection is refused: "+oneLine(err),
			fmt.Sprintf("alter role %s replication, and let pg_hba.conf admit it", ident(user)))
	} else {
		_ = replication.Close(ctx)
	}
	p.checkServing(ctx, where, conn)
}

// checkServing compares the configuration with the layout that is recorded there from an earlier move.
func (p *planner) checkServing(ctx context.Context, where string, conn *pgx.Conn) {
	serving, err := checkpoints.ReadServing(ctx, conn)
	if err == nil && serving != nil && serving.Version != p.Source.Layout {
		p.problem(where, fmt.Sprintf("layout %d is recorded as serving there, the configuration says [source] layout = %d", serving.Version, p.Source.Layout),
			"`pgreshard layout` shows the serving layout")
	}
}

func (p *planner) checkDestination(ctx context.Context, where string, n int, conn *pgx.Conn) {
	if n == 0 { // the home
		known, err := checkpoints.FindMove(ctx, conn, p.Name)
		p.fresh = err == nil && known == nil
	}
	writer, err := pg.Open(ctx, p.Destination.Shards[n], pg.Writer, p.app())
	if err != nil {
		p.problem(where, "session_replication_role cannot be set: "+oneLine(err),
			fmt.Sprintf("grant set on parameter session_replication_role to %s (PostgreSQL 15 and later), or use a superuser", ident(conn.Config().User)))
	} else {
		pg.Close(writer)
	}
	if encoding := conn.PgConn().ParameterStatus("server_encoding"); encoding != "UTF8" {
		p.problem(where, "its encoding is "+encoding+": text keys are hashed in UTF8 only", "make the destination databases with encoding UTF8")
	}
	if !p.CreateSchema || !p.fresh {
		return
	}
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		p.problem(where, "its tables cannot be read: "+err.Error(), "")
		return
	}
	for _, t := range catalog.Roots() {
		if p.matches(t.Name) {
			p.problem(where, fmt.Sprintf("table %s exists already", t.Name), "drop it, or set [schema] create = false if it is meant to be filled")
		}
	}
}

package replicator

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

// CreatePublication publishes tables that hold rows themselves: ordinary tables and partition leaves, not roots. Under
// publish_via_partition_root a TRUNCATE of a leaf would never be sent.
func CreatePublication(ctx context.Context, conn *pgx.Conn, name string, tables []pg.Name) error {
	if len(tables) == 0 {
		return fmt.Errorf("create publication %s: no tables to publish", name)
	}
	list := make([]string, len(tables))
	for i, t := range tables {
		list[i] = "only " + t.SQL()
	}
	options := "publish = 'insert, update, delete, truncate', publish_via_partition_root = false"
	var major int
	if err := conn.QueryRow(ctx, `select current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		return fmt.Errorf("create publication %s: %w", name, err)
	}
	if major >= 18 { // else the application's UPDATE of a table with a generated column in its replica identity fails
		options += ", publish_generated_columns = stored"
	}
	_, err := conn.PgConn().Exec(ctx, "create publication "+quoted(name)+" for table "+strings.Join(list, ", ")+" with ("+options+");"+
		"comment on publication "+quoted(name)+" is "+literal(ours)).ReadAll() // one transaction
	if pg.Code(err) == "42710" {
		return fmt.Errorf("create publication %s: %w (%w)", name, ErrPublicationExists, err)
	}
	if err != nil {
		return fmt.Errorf("create publication %s: %w", name, err)
	}
	return nil
}

// ours is the comment by which a publication of ours is known.
const ours = "made by pgreshard"

// OwnPublication is nil for a publication of ours, ErrPublicationMissing or ErrPublicationForeign.
func OwnPublication(ctx context.Context, conn *pgx.Conn, name string) error {
	var own bool
	err := conn.QueryRow(ctx, `select coalesce(obj_description(oid, 'pg_publication') = $2, false) from pg_publication where pubname = $1`, name, ours).Scan(&own)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = ErrPublicationMissing
	case err == nil && !own:
		err = ErrPublicationForeign
	}
	if err != nil {
		return fmt.Errorf("publication %s: %w", name, err)
	}
	return nil
}

// How long the end of a publication waits: for a lock that a VACUUM of one of its tables has, and for statements that may
// be reading which publications a table is in. That takes them microseconds, however long they run.
const (
	unpublishPatience = 2 * time.Second
	readingPatience   = 2 * time.Second
)

// DropPublication drops a publication of ours; one that is not there is no error, ErrPublicationForeign one of others. Its
// tables leave it first, and it stays for statements that found them in it: a writer that reads which publications its table
// is in looks each up without a lock, and would fail ("cache lookup failed for publication").
func DropPublication(ctx context.Context, conn *pgx.Conn, name string) error {
	if err := OwnPublication(ctx, conn, name); err != nil {
		if errors.Is(err, ErrPublicationMissing) {
			return nil
		}
		return fmt.Errorf("drop: %w", err)
	}
	err := empty(ctx, conn, name)
	if err == nil {
		_, err = conn.Exec(ctx, "drop publication if exists "+quoted(name))
	}
	if err != nil {
		return fmt.Errorf("drop publication %s: %w", name, err)
	}
	return nil
}

const selectMembers = `select r.prrelid, n.nspname, c.relname from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
	join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace where p.pubname = $1`

// selectWriting lists the statements under way that write to tables, each by its process and when it began.
const selectWriting = `select array_agg(distinct a.pid || ' ' || coalesce(a.query_start::text, '')) from pg_locks l join pg_stat_activity a on a.pid = l.pid
	where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.relation = any($1) and a.datname = current_database()
	  and a.pid <> pg_backend_pid() and a.state is distinct from 'idle in transaction'`

// empty takes all tables out of a publication, and waits until no statement that wrote to one of them before can still be
// about to look the publication up. A table whose lock is not to be had stays in it.
func empty(ctx context.Context, conn *pgx.Conn, name string) error {
	rows, err := conn.Query(ctx, selectMembers, name)
	if err != nil {
		return err
	}
	var tables []uint32
	var list []string
	var table uint32
	var of pg.Name
	_, err = pgx.ForEachRow(rows, []any{&table, &of.Schema, &of.Table}, func() error {
		tables, list = append(tables, table), append(list, "only "+of.SQL())
		return nil
	})
	if err != nil || len(tables) == 0 {
		return err
	}
	_, err = conn.PgConn().Exec(ctx, fmt.Sprintf("set local lock_timeout = %d; alter publication %s drop table %s", // one transaction
		unpublishPatience.Milliseconds(), quoted(name), strings.Join(list, ", "))).ReadAll()
	switch pg.Code(err) {
	case "":
		if err != nil {
			return err
		}
	case "55P03", "42704", "42P01": // what holds the lock may run for hours; a table or the publication has just gone
		return nil
	default:
		return err
	}
	var before, now []string
	if err := conn.QueryRow(ctx, selectWriting, tables).Scan(&before); err != nil {
		return err
	}
	for began := time.Now(); len(before) > 0 && time.Since(began) < readingPatience; time.Sleep(5 * time.Millisecond) {
		if err := conn.QueryRow(ctx, selectWriting, tables).Scan(&now); err != nil {
			return err
		}
		before = slices.DeleteFunc(before, func(one string) bool { return !slices.Contains(now, one) })
	}
	return nil
}

// Publication is what a publication covers. A publication dropped and made again has another OID, and the changes in
// between are not to be had.
type Publication struct {
	OID     uint32
	Options string   // what it publishes, as the catalog says
	Tables  []uint32 // OIDs, ascending
	Filters []string // row filters and column lists, one entry a table that has one
}

// Changed says in what now differs from then; empty: in nothing.
func (then *Publication) Changed(now *Publication) string {
	switch {
	case then.OID != now.OID:
		return "it was dropped and made again"
	case then.Options != now.Options:
		return "its options were changed"
	case !slices.Equal(then.Tables, now.Tables):
		return "its tables were changed"
	case !slices.Equal(then.Filters, now.Filters):
		return "a row filter or column list was changed"
	}
	return ""
}

const publicationSQL = `
select p.oid,
       (to_jsonb(p) - array['oid', 'pubname', 'pubowner'])::text,
       array(select t.relid from pg_get_publication_tables(p.pubname) t order by 1),
       array(select f.prrelid::text || coalesce(to_jsonb(f) ->> 'prqual', '') || coalesce(to_jsonb(f) ->> 'prattrs', '')
               from pg_publication_rel f
              where f.prpubid = p.oid and (to_jsonb(f) ->> 'prqual' is not null or to_jsonb(f) ->> 'prattrs' is not null)
              order by f.prrelid)
  from pg_publication p where p.pubname = $1`

// DescribePublication reads what a publication covers now; ErrPublicationMissing where there is none.
func DescribePublication(ctx context.Context, conn *pgx.Conn, name string) (*Publication, error) {
	p := &Publication{}
	err := conn.QueryRow(ctx, publicationSQL, name).Scan(&p.OID, &p.Options, &p.Tables, &p.Filters)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrPublicationMissing
	}
	if err != nil {
		return nil, fmt.Errorf("describe publication %s: %w", name, err)
	}
	return p, nil
}

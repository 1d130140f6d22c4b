package replicator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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

// DropPublication drops a publication of ours; one that is not there is no error, ErrPublicationForeign one of others.
func DropPublication(ctx context.Context, conn *pgx.Conn, name string) error {
	if err := OwnPublication(ctx, conn, name); err != nil {
		if errors.Is(err, ErrPublicationMissing) {
			return nil
		}
		return fmt.Errorf("drop: %w", err)
	}
	if _, err := conn.Exec(ctx, "drop publication if exists "+quoted(name)); err != nil {
		return fmt.Errorf("drop publication %s: %w", name, err)
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

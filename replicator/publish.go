package replicator

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// Publish adds a table to a publication; one that is in it already is no error. What is written to the table from then
// on is in the log for every slot.
func Publish(ctx context.Context, conn *pgx.Conn, publication string, table pg.Name) error {
	_, err := conn.Exec(ctx, "alter publication "+quoted(publication)+" add table only "+table.SQL())
	if err != nil && pg.Code(err) != "42710" {
		return fmt.Errorf("publish %s: %w", table, err)
	}
	return nil
}

const selectPublished = `select n.nspname, c.relname from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
	join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace where p.pubname = $1 and c.oid = $2`

// Unpublish takes a table out of a publication, by its OID, whatever it is called by now; one that is not in it is no
// error.
func Unpublish(ctx context.Context, conn *pgx.Conn, publication string, table uint32) error {
	var name pg.Name
	err := conn.QueryRow(ctx, selectPublished, publication, table).Scan(&name.Schema, &name.Table)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		_, err = conn.Exec(ctx, "alter publication "+quoted(publication)+" drop table only "+name.SQL())
	}
	if err != nil {
		return fmt.Errorf("take a table out of publication %s: %w", publication, err)
	}
	return nil
}

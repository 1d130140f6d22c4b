package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
)

// SchemaOptions says what of a source's schema is carried and with which programs.
type SchemaOptions struct {
	// Bin is the directory of pg_dump and pg_restore (PGRESHARD_PG_BIN); empty: PATH, then the usual places.
	Bin string
	// Major is the newest server's major version among all nodes; the programs must be at least that.
	Major int
	// Dir holds the archive and, while a program runs, its connection file (mode 0600).
	Dir string
	// Snapshot is an exported snapshot the dump reads in; empty: its own.
	Snapshot string
	// App is the move's application_name. The programs' sessions get it with " schema" behind it, and a later run ends
	// sessions of that name that outlived their worker.
	App string
	// Tables are created, with everything that hangs on them: roots and every partition. Other ordinary and
	// partitioned tables are not, nor what cannot exist without them.
	Tables []pg.Name
	// Skip lists constraints not carried: "fk:name", "unique:name".
	Skip []string
	// Owners and Grants: carry ownership, and privileges with default privileges.
	Owners, Grants bool
	// Jobs is how many connections build indexes on one shard at once; default 2.
	Jobs int
}

// Dump is a source's schema: an archive of pg_dump on this machine, and which entry of it belongs to which phase. It
// is not precious: another machine makes it again.
type Dump struct {
	// Left names what the archive holds and no phase restores, with the reason; foreign keys are not among them.
	Left []string

	opts    SchemaOptions
	archive string
	restore string // path of pg_restore
	entries []entry
	objects map[objectID]object
}

// DumpSchema writes the schema of one source into Dir and sorts it into phases. conn is a session on that source; it
// is used for catalog reads only.
func DumpSchema(ctx context.Context, source pg.Shard, conn *pgx.Conn, o SchemaOptions) (*Dump, error) {
	tools, err := findTools(ctx, o.Bin, max(o.Major, serverMajor(conn)))
	if err != nil {
		return nil, err
	}
	o.App = fmt.Sprintf("%.50s schema", o.App)
	d := &Dump{opts: o, archive: filepath.Join(o.Dir, "schema.dump"), restore: tools.restore}

	// The catalog is read before and after: entries are known by OID, and one that is not in it means that somebody
	// changed the schema in between.
	if d.objects, err = readObjects(ctx, conn); err != nil {
		return nil, err
	}
	args := []string{"--format=custom", "--schema-only", "--encoding=UTF8", "--no-publications", "--no-subscriptions",
		"--exclude-schema=pgreshard", "--lock-wait-timeout=10000", "--file=" + d.archive}
	if o.Snapshot != "" {
		args = append(args, "--snapshot="+o.Snapshot)
	}
	if err := (tool{path: tools.dump, dir: o.Dir, app: o.App}).run(ctx, source, args); err != nil {
		return nil, fmt.Errorf("dump the schema of source %d: %w", source.Number, err)
	}
	if err := d.read(ctx); err != nil {
		return nil, fmt.Errorf("read the dumped schema of source %d: %w", source.Number, err)
	}
	return d, nil
}

// serverMajor is the major version a session's server announced, 0 where it did not.
func serverMajor(conn *pgx.Conn) int {
	var major int
	_, _ = fmt.Sscanf(conn.PgConn().ParameterStatus("server_version"), "%d", &major)
	return major
}

// read lists the archive and gives each entry its phase.
func (d *Dump) read(ctx context.Context) error {
	listing, err := listArchive(ctx, d.restore, d.archive)
	if err != nil {
		return err
	}
	if d.entries, err = parseListing(listing); err != nil {
		return err
	}
	return d.assign()
}

// Restore makes on one destination shard what belongs to a phase. conn is a session there, in no transaction. The
// phases that are one transaction leave nothing behind when they are killed; indexes that are there already are not
// built again. Only again (a rerun of this step, so that what is found there is ours) accepts tables that exist.
func (d *Dump) Restore(ctx context.Context, dest pg.Shard, conn *pgx.Conn, phase Phase, again bool) error {
	// A restore whose worker died may still be running in the server.
	if err := endSessions(ctx, conn, d.opts.App); err != nil {
		return fmt.Errorf("restore %s on %s: %w", phase, dest, err)
	}
	there, err := readObjects(ctx, conn)
	if err != nil {
		return fmt.Errorf("restore %s on %s: %w", phase, dest, err)
	}
	if phase == PhaseTables {
		switch done, err := d.tablesThere(there); {
		case err != nil:
			return fmt.Errorf("restore %s on %s: %w", phase, dest, err)
		case done && again:
			return nil
		case done:
			return fmt.Errorf("restore %s on %s: the tables exist already; hint: drop them, or set [schema] create = false", phase, dest)
		}
	}
	use := d.missing(phase, there)
	if len(use) == 0 {
		return nil
	}
	run := d.run
	if d.refusesTool(ctx, serverMajor(conn)) {
		run = d.runWritten
	}
	if err := run(ctx, dest, phase, use); err != nil {
		err = errors.Join(err, d.refused(ctx, dest, err))
		hint := ""
		if phase == PhaseTables && strings.Contains(err.Error(), "already exists") {
			hint = "; hint: types, functions and sequences are not dropped with a move's tables: drop what is named, or make the shards' databases anew"
		}
		return fmt.Errorf("restore %s on %s: %w%s", phase, dest, err, hint)
	}
	return nil
}

// refused is why a shard takes no session now, after a program failed there: that may pass, and is in the server's words
// and language where the program says it.
func (d *Dump) refused(ctx context.Context, dest pg.Shard, err error) error {
	var tool *ToolError
	if !errors.As(err, &tool) || tool.lost() {
		return nil
	}
	conn, err := pg.Open(ctx, dest, pg.Admin, d.opts.App)
	pg.Close(conn)
	return err
}

// run restores the entries given, in the archive's order.
func (d *Dump) run(ctx context.Context, dest pg.Shard, phase Phase, use []entry) error {
	list, err := writeUseList(d.opts.Dir, use)
	if err != nil {
		return err
	}
	defer os.Remove(list)
	args := append(d.restoreArgs(list), "--exit-on-error")
	if phase.builds() {
		args = append(args, fmt.Sprintf("--jobs=%d", cmp.Or(d.opts.Jobs, 2)))
	} else {
		args = append(args, "--single-transaction")
	}
	return tool{path: d.restore, dir: d.opts.Dir, app: d.opts.App}.run(ctx, dest, append(args, d.archive))
}

// restoreArgs say what of the archive is restored.
func (d *Dump) restoreArgs(list string) []string {
	args := []string{"--use-list=" + list}
	if !d.opts.Owners {
		args = append(args, "--no-owner")
	}
	if !d.opts.Grants {
		args = append(args, "--no-privileges")
	}
	return args
}

// Close removes the archive.
func (d *Dump) Close() error { return os.Remove(d.archive) }

package move

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgreshard/checkpoints"
	"pgreshard/copier"
	"pgreshard/pg"
	"pgreshard/replicator"
)

// resume readies a table whose copy was interrupted. A leaf whose file changed is read again whole. Rows that are read
// again are upserted, and the stream is told to forgive up to this snapshot; without a key to upsert by, the table is
// emptied and copied as of a slot of its own.
func (c *sourceCopy) resume(ctx context.Context, j *job) error {
	rewritten := map[string]bool{}
	for _, chunk := range j.chunks {
		if c.fileChanged(chunk) {
			rewritten[leafKey(chunk)] = true
		}
	}
	if len(rewritten) == 0 && len(c.unmarked(j.chunks)) == 0 {
		return nil
	}
	if len(j.into.Key) == 0 {
		return c.copyAgain(ctx, j)
	}
	// Before marks are void: where none is left, this is how a later run knows that rows are there already.
	if err := c.rememberResume(ctx, j.table.name, checkpoints.Resumed{ForgiveUntil: c.snap.After}); err != nil {
		return err
	}
	for leaf := range rewritten {
		if err := c.voidMarks(ctx, leaf); err != nil {
			return err
		}
	}
	return nil
}

func (c *sourceCopy) rememberResume(ctx context.Context, table pg.Name, r checkpoints.Resumed) error {
	return c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.stream(c.n).Resume(ctx, conn, table.String(), r)
	})
}

func (c *sourceCopy) fileChanged(chunk *pg.Chunk) bool {
	for _, marks := range c.marks {
		if file, ok := marks[mark{leafKey(chunk), chunk.Number}]; ok && file != chunk.Copy.From.Filenode {
			return true
		}
	}
	return false
}

func (c *sourceCopy) voidMarks(ctx context.Context, leaf string) error {
	err := c.dests(ctx, func(ctx context.Context, _ int, conn *pgx.Conn) error {
		return c.stream(c.n).VoidMarks(ctx, conn, leaf)
	})
	if err == nil {
		for _, marks := range c.marks {
			for k := range marks {
				if k.leaf == leaf {
					delete(marks, k)
				}
			}
		}
	}
	return err
}

// leafKey names a leaf in marks: by OID, which a rename leaves alone.
func leafKey(chunk *pg.Chunk) string { return strconv.FormatUint(uint64(chunk.Copy.From.OID), 10) }

// holds says that a shard has its part of a chunk.
func (c *sourceCopy) holds(chunk *pg.Chunk, shard int) bool {
	_, ok := c.marks[shard][mark{leafKey(chunk), chunk.Number}]
	return ok
}

// unmarked lists the chunks that some shard does not hold, and counts the others as done.
func (c *sourceCopy) unmarked(chunks []*pg.Chunk) (todo []*pg.Chunk) {
	for _, chunk := range chunks {
		for shard := range c.marks {
			if !c.holds(chunk, shard) {
				todo = append(todo, chunk)
				break
			}
		}
	}
	return todo
}

// copyAgain empties a table without key and copies it as of a temporary slot, whose position the stream is told before
// any row is there: it leaves out what was committed before.
func (c *sourceCopy) copyAgain(ctx context.Context, j *job) error {
	shard := c.Source.Shards[c.n]
	slot, err := replicator.CreateSlot(ctx, shard, c.slotAgain(c.n), true)
	if err != nil {
		return err
	}
	defer slot.Close()
	snap, err := copier.ImportSnapshot(ctx, shard, c.app(), slot.Snapshot)
	if err != nil {
		return err
	}
	defer snap.Close()
	if err := c.rememberResume(ctx, j.table.name, checkpoints.Resumed{StartsAt: slot.ConsistentPoint}); err != nil {
		return err
	}
	for _, chunk := range j.chunks {
		if err := c.voidMarks(ctx, leafKey(chunk)); err != nil {
			return err
		}
	}
	if err := c.empty(ctx, j); err != nil {
		return err
	}
	err = c.load(ctx, snap.ID, snap, j.chunks, func(pg.Name) bool { return false })
	if err != nil {
		return err
	}
	for _, chunk := range j.chunks { // held now: the main run leaves them alone
		for _, marks := range c.marks {
			marks[mark{leafKey(chunk), chunk.Number}] = chunk.Copy.From.Filenode
		}
	}
	return nil
}

// empty removes from every shard what this source had put into a table without key.
func (c *sourceCopy) empty(ctx context.Context, j *job) error {
	return atOnce(ctx, len(c.Destination.Shards), func(ctx context.Context, n int) error {
		return c.on(ctx, c.Destination.Shards[n], pg.Writer, func(conn *pgx.Conn) error {
			return c.emptyOf(ctx, conn, j.table, j.into, j.into.Name)
		})
	})
}

// emptyOf removes from a shard's table, or from one partition of it, what this source had put there.
func (c *sourceCopy) emptyOf(ctx context.Context, conn *pgx.Conn, table *moved, into *pg.Table, part pg.Name) error {
	if len(c.Source.Shards) > 1 && !table.rule.Omni {
		return c.emptyOwn(ctx, conn, table, into, part)
	}
	_, err := conn.Exec(ctx, "truncate "+part.SQL())
	return err
}

// ownRows is how many rows are deleted at once.
const ownRows = 10_000

// emptyOwn deletes those rows of a shard's table that the source layout places on this source.
func (c *sourceCopy) emptyOwn(ctx context.Context, conn *pgx.Conn, table *moved, into *pg.Table, part pg.Name) error {
	root := c.inv.sources[c.n].Table(table.name)
	t, err := table.sinkTable(root, root, into, nil, noStream)
	if err != nil {
		return err
	}
	columns := []string{"tableoid::oid::text", "ctid::text"}
	for _, k := range t.SourceKey {
		columns = append(columns, t.Columns[k].SQL()+"::text")
	}
	result := conn.PgConn().ExecParams(ctx, fmt.Sprintf("select %s from %s", strings.Join(columns, ", "), part.SQL()), nil, nil, nil, nil)
	var tables, rows []string
	for result.NextRow() {
		values := result.Values()
		key := make([]pg.Datum, len(t.SourceKey))
		for i, v := range values[2:] {
			if key[i] = (pg.Datum{Kind: pg.Null}); v != nil {
				key[i] = pg.Datum{Kind: pg.Text, Bytes: v}
			}
		}
		mine, err := c.isOf(ctx, c.n, table, t, key)
		if err != nil {
			_, _ = result.Close()
			return err
		}
		if mine {
			tables, rows = append(tables, string(values[0])), append(rows, string(values[1]))
		}
	}
	if _, err := result.Close(); err != nil {
		return err
	}
	for len(rows) > 0 {
		n := min(len(rows), ownRows)
		_, err := conn.Exec(ctx, fmt.Sprintf(`delete from %s where (tableoid, ctid) in (select o::oid, r::tid from unnest($1::text[], $2::text[]) u (o, r))`,
			part.SQL()), tables[:n], rows[:n])
		if err != nil {
			return err
		}
		tables, rows = tables[n:], rows[n:]
	}
	return nil
}

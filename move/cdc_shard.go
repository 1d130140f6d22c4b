package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"pgreshard/copier"
	"pgreshard/layout"
	"pgreshard/pg"
	"pgreshard/replicator"
	"pgreshard/sink/jetstream"
)

// cdcQueue bounds what is received of one shard and not yet made into messages.
const cdcQueue = 4 << 20

// followShard publishes what one shard commits, from where its slot is, until that fails or its leg is at its end.
func (c *cdc) followShard(ctx context.Context, p *jetstream.Publisher, key cdcKey, n node) error {
	s := shardOf(c.legs(), key)
	if s == nil {
		return errGone
	}
	if !s.Whole {
		if err := c.beginShard(ctx, p, key, n); err != nil {
			return err
		}
		s = shardOf(c.legs(), key)
	}
	feed := c.feed(key, n, s)
	if err := feed.Begin(ctx, p); err != nil {
		return err
	}
	config := replicator.Config{Shard: c.move.shardOf(n), Slot: c.move.cdcSlot(key.leg, key.shard), Publication: c.move.cdcSlot(key.leg, key.shard), QueueBytes: cdcQueue,
		History: replicator.History{Timeline: s.Timeline, Held: feed.Acked().Commit},
		Began: func(ctx context.Context, timeline int32) error {
			c.tellShard(key, "")
			return c.keepShard(ctx, key, func(s *cdcShard) { s.Timeline = timeline })
		}}
	err := c.move.reads(ctx, n, func(conn *pgx.Conn) error {
		slot, err := replicator.InspectSlot(ctx, conn, config.Slot)
		if err == nil {
			config.Start = slot.ConfirmedFlush
		}
		return err
	})
	if err != nil {
		return err
	}
	reader := replicator.New(config)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return reader.Run(ctx) })
	g.Go(func() error {
		if err := feed.Run(ctx, reader.Blocks(), reader.Release, reader.Confirm); err != nil {
			return err
		}
		return ctx.Err()
	})
	return g.Wait()
}

// feed is what makes messages of a shard's changes, as long as the slot is the same.
func (c *cdc) feed(key cdcKey, n node, s *cdcShard) *jetstream.Feed {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.feeds[key]
	if f == nil || f.Slot != s.Slot {
		side := c.move.sideOf(n)
		f = &jetstream.Feed{Origin: jetstream.Origin{Move: c.move.Name, Database: side.Database, Layout: side.Layout, Shard: n.number, Slot: s.Slot}, From: s.From}
		f.Table = func(ctx context.Context, r *pg.Relation) (t jetstream.Table, err error) {
			err = c.move.reads(ctx, n, func(conn *pgx.Conn) error {
				t, err = describeTable(ctx, conn, r)
				return err
			})
			return t, err
		}
		c.feeds[key] = f
	}
	f.Until(s.Until)
	return f
}

func (m *Move) sideOf(n node) Side {
	if n.source {
		return m.Source
	}
	return m.Destination
}

const selectDescription = `
select n.nspname, r.relname, r.oid <> c.oid,
       array(select a.attname::text from pg_index i join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey::int2[])
              where i.indrelid = c.oid and i.indisprimary order by a.attnum)
  from pg_class c join pg_class r on r.oid = coalesce(pg_partition_root(c.oid)::oid, c.oid) join pg_namespace n on n.oid = r.relnamespace
 where c.oid = $1`

// describeTable is what events say of a table. One that is gone by now is named as the log has it.
func describeTable(ctx context.Context, conn *pgx.Conn, r *pg.Relation) (t jetstream.Table, err error) {
	var root pg.Name
	var partition bool
	var primary []string
	err = conn.QueryRow(ctx, selectDescription, r.OID).Scan(&root.Schema, &root.Table, &partition, &primary)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return t, fmt.Errorf("read what table %s is: %w", r.Name, err)
	}
	t.Name, t.Key = r.Name, primary
	if partition {
		t.Name, t.Partition = root, r.Name
	}
	if r.Replica != pg.IdentityFull {
		t.Key = nil
		for _, column := range r.Columns {
			if column.Key {
				t.Key = append(t.Key, column.Name)
			}
		}
	}
	return t, nil
}

// published are the tables of a shard whose changes are published: what is omnisharded, from the first shard alone.
func (m *Move) published(n node, catalog *pg.Catalog) (roots []*pg.Table) {
	omni := m.sideOf(n).spec().Omni
	for _, t := range catalog.Roots() {
		twice := n.number > 0 && slices.ContainsFunc(omni, func(o layout.OmniTables) bool {
			return slices.Contains(o.Tables, t.Name.Table) || slices.Contains(o.Tables, t.Name.String())
		})
		if m.matches(t.Name) && t.Persistence == 'p' && !twice {
			roots = append(roots, t)
		}
	}
	return roots
}

// makeSlot makes publication and slot of one shard anew. What stands there under the name before it is recorded is not ours.
// A publication of a partitioned table has its partitions of the future too.
func (c *cdc) makeSlot(ctx context.Context, key cdcKey, n node) (slot *replicator.Slot, err error) {
	m, name := c.move, c.move.cdcSlot(key.leg, key.shard)
	err = m.on(ctx, m.shardOf(n), pg.Admin, func(conn *pgx.Conn) error {
		if s := shardOf(c.legs(), key); s == nil {
			return errGone
		} else if s.Made {
			if err := replicator.DropSlot(ctx, conn, name); err != nil {
				return err
			}
		}
		if err := replicator.DropPublication(ctx, conn, name); err != nil {
			return err
		}
		catalog, err := pg.ReadCatalog(ctx, conn)
		if err != nil {
			return err
		}
		var tables []pg.Name
		for _, root := range m.published(n, catalog) {
			tables = append(tables, root.Name)
			for _, leaf := range catalog.Leaves(root) {
				if len(leaf.Logged) == 0 {
					return fmt.Errorf("%s has no replica identity, so that the application's own UPDATE and DELETE would fail once it is published; hint: alter table %s replica identity full on %s",
						leaf.Name, leaf.Name.SQL(), m.nodeWords(n))
				}
			}
		}
		return replicator.CreatePublication(ctx, conn, name, tables)
	})
	if err == nil {
		err = c.keepShard(ctx, key, func(s *cdcShard) { s.Made, s.Slot = true, 0 })
	}
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	slot, err = replicator.CreateSlot(bounded, m.shardOf(n), name, false)
	if slotRefused(err) {
		return nil, errors.Join(err, c.keepShard(ctx, key, func(s *cdcShard) { s.Made = false }))
	}
	return slot, err
}

// beginShard makes a shard's slot and publishes the rows that are there, if they are to be. What an earlier run has begun is of
// no use: its snapshot is gone.
func (c *cdc) beginShard(ctx context.Context, p *jetstream.Publisher, key cdcKey, n node) error {
	if legs := c.legs(); len(legs) > 1 {
		if c.wasLeft(legs, key.leg) {
			return &lostError{errors.New("the layout was left before all that was there was published")}
		}
		return errors.New("a cutover is under way: the rows that are there are published when it is decided")
	}
	slot, err := c.makeSlot(ctx, key, n)
	if err != nil {
		return err
	}
	defer slot.Close()
	var snapshot *copier.Snapshot
	if c.Rows {
		if snapshot, err = copier.ImportSnapshot(ctx, c.move.shardOf(n), c.move.app(), slot.Snapshot); err != nil {
			return err
		}
		defer snapshot.Close()
	}
	slot.Close()
	s := cdcShard{Made: true, Slot: slot.ConsistentPoint, Timeline: slot.Timeline}
	if err := c.keepShard(ctx, key, func(kept *cdcShard) { kept.Slot, kept.Timeline = s.Slot, s.Timeline }); err != nil {
		return err
	}
	if c.Rows {
		feed := c.feed(key, n, &s)
		if err := feed.Begin(ctx, p); err != nil {
			return err
		}
		if err := c.publishRows(ctx, n, feed, snapshot.Conn()); err != nil {
			return err
		}
	}
	return c.keepShard(ctx, key, func(kept *cdcShard) { kept.Whole = true })
}

// publishRows publishes what a snapshot shows, table by table.
func (c *cdc) publishRows(ctx context.Context, n node, feed *jetstream.Feed, conn *pgx.Conn) error {
	catalog, err := pg.ReadCatalog(ctx, conn)
	if err != nil {
		return err
	}
	rows := feed.Rows(time.Now())
	for _, root := range c.move.published(n, catalog) {
		if err := rows.Table(ctx, jetstream.Table{Name: root.Name}); err != nil {
			return err
		}
		for _, leaf := range catalog.Leaves(root) {
			if err := publishLeaf(ctx, rows, leaf, conn); err != nil {
				return fmt.Errorf("publish the rows of %s: %w", leaf.Name, err)
			}
		}
	}
	return rows.End(ctx)
}

// publishLeaf publishes the rows that stand in one table itself, with the columns that the log has.
func publishLeaf(ctx context.Context, rows *jetstream.Rows, leaf *pg.Table, conn *pgx.Conn) error {
	relation := &pg.Relation{OID: leaf.OID, Name: leaf.Name, Replica: leaf.Replica}
	list := ""
	for i, column := range leaf.Columns {
		if column.Generated == 'v' || column.Generated == 's' && serverMajor(conn) < 18 {
			continue
		}
		relation.Columns = append(relation.Columns, pg.RelationColumn{Name: column.Name, TypeOID: column.TypeOID, Typmod: column.Typmod, Key: slices.Contains(leaf.Logged, i)})
		if list != "" {
			list += ", "
		}
		list += column.SQL()
	}
	table, err := describeTable(ctx, conn, relation)
	if err != nil {
		return err
	}
	result := conn.PgConn().ExecParams(ctx, "select "+list+" from only "+leaf.Name.SQL(), nil, nil, nil, nil)
	row := make(pg.Row, len(relation.Columns))
	for result.NextRow() {
		for i, value := range result.Values() {
			row[i] = pg.Datum{Bytes: value, Kind: pg.Text}
			if value == nil {
				row[i].Kind = pg.Null
			}
		}
		if err := rows.Row(ctx, table, relation, row); err != nil {
			return err
		}
	}
	_, err = result.Close()
	return err
}

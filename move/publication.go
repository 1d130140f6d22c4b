package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/replicator"
)

// PublicationError means that a move's publication on a source was changed by somebody else. What was written meanwhile
// may be missing from the stream for good, and nothing in the log tells: the move must be started over.
type PublicationError struct {
	Source int
	Name   string
	What   string
	Back   bool // it is one of a destination shard, for the way back
}

func (e *PublicationError) Error() string {
	if e.Back {
		return fmt.Sprintf("publication %s of destination shard %d was changed: %s; hint: changes may be lost, so there is no way back any more: `pgreshard complete`", e.Name, e.Source, e.What)
	}
	return fmt.Sprintf("publication %s of source %d was changed: %s; hint: changes may be lost, so the move must be started over: %s", e.Name, e.Source, e.What, startOver)
}

// published is what a move's publication covers, as it is kept with the move.
type published struct {
	Publication *replicator.Publication
	// Members are, by table OID, the OIDs of the entries that say a table belongs to it: a table taken out and put back
	// has another.
	Members map[uint32]uint32
}

func publicationKey(source int) string { return fmt.Sprintf("publication_%d", source) }

const selectMembers = `select r.prrelid, r.oid from pg_publication_rel r join pg_publication p on p.oid = r.prpubid where p.pubname = $1`

// rememberPublication keeps with the move what a source's publication covers. It is to be called after each change the
// move makes to it itself, with a session on that source.
func (m *Move) rememberPublication(ctx context.Context, source int, conn *pgx.Conn) error {
	then := published{Members: map[uint32]uint32{}}
	var err error
	if then.Publication, err = replicator.DescribePublication(ctx, conn, m.slot(source)); err != nil {
		return err
	}
	rows, err := conn.Query(ctx, selectMembers, m.slot(source))
	if err != nil {
		return fmt.Errorf("read the tables of publication %s: %w", m.slot(source), err)
	}
	var table, member uint32
	_, err = pgx.ForEachRow(rows, []any{&table, &member}, func() error { then.Members[table] = member; return nil })
	if err != nil {
		return fmt.Errorf("read the tables of publication %s: %w", m.slot(source), err)
	}
	return m.setDetail(ctx, publicationKey(source), then)
}

// slotKey is under what is kept with the move that it makes its slot on a source: before that, one of this name is another's.
func slotKey(source int) string { return fmt.Sprintf("slot_%d", source) }

func (m *Move) dropSlot(ctx context.Context, source int, conn *pgx.Conn) error {
	var made bool
	if err := m.detail(ctx, slotKey(source), &made); err != nil || !made {
		return err
	}
	return replicator.DropSlot(ctx, conn, m.slot(source))
}

// dropSlotAndPublication drops what the move made on a source; what only has its name stays.
func (m *Move) dropSlotAndPublication(ctx context.Context, source int, conn *pgx.Conn) error {
	return errors.Join(m.unlessForeign(source, m.dropSlot(ctx, source, conn)), m.dropPublication(ctx, source, conn, m.slot(source)))
}

func (m *Move) dropPublication(ctx context.Context, source int, conn *pgx.Conn, name string) error {
	return m.unlessForeign(source, replicator.DropPublication(ctx, conn, name))
}

func (m *Move) unlessForeign(source int, err error) error {
	if errors.Is(err, replicator.ErrSlotForeign) || errors.Is(err, replicator.ErrPublicationForeign) {
		m.log.Warn("left as it is: somebody else made it", "source", source, "what", err.Error())
		return nil
	}
	return err
}

// samePublication compares a source's publication with what the move made of it; a *PublicationError says in what the
// stream lacks what it needs. A table that was dropped is no matter of the publication's, nor is one that others put in:
// the stream meets it.
func (m *Move) samePublication(ctx context.Context, inv *inventory, source int) error {
	var then *published
	if err := m.detail(ctx, publicationKey(source), &then); err != nil || then == nil {
		return err
	}
	what := ""
	err := m.reads(ctx, node{true, source}, func(conn *pgx.Conn) error {
		now, err := replicator.DescribePublication(ctx, conn, m.slot(source))
		if err != nil {
			return err
		}
		same := *then.Publication
		same.Tables = now.Tables
		if what = same.Changed(now); what == "" {
			what, err = then.lost(ctx, conn, m.slot(source), inv.leaves(source))
		}
		return err
	})
	if err == nil && what != "" {
		err = &PublicationError{Source: source, Name: m.slot(source), What: what}
	}
	return err
}

const selectMembership = `select c.oid, coalesce(r.oid, 0)
  from pg_class c join pg_publication p on p.pubname = $1 left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
 where c.oid = any($2)`

// lost says which of the tables was taken out of the publication.
func (then *published) lost(ctx context.Context, conn *pgx.Conn, publication string, tables []*pg.Table) (what string, err error) {
	names := map[uint32]pg.Name{}
	var oids []uint32
	for _, t := range tables {
		names[t.OID] = t.Name
		oids = append(oids, t.OID)
	}
	rows, err := conn.Query(ctx, selectMembership, publication, oids)
	if err != nil {
		return "", fmt.Errorf("read the tables of publication %s: %w", publication, err)
	}
	var table, member uint32
	_, err = pgx.ForEachRow(rows, []any{&table, &member}, func() error {
		switch was := then.Members[table]; {
		case was == 0 || was == member: // a new partition is published when its turn comes
		case member == 0:
			what = fmt.Sprintf("table %s was taken out of it", names[table])
		default:
			what = fmt.Sprintf("table %s was taken out of it and put back", names[table])
		}
		return nil
	})
	return what, err
}

package replicator

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"pgreshard/pg"
)

const (
	streamApp = "pgreshard stream"
	maxStatus = 10 * time.Second
	minStatus = 50 * time.Millisecond
)

// connect opens the replication connection, makes sure that slot and server are those the position belongs to, and
// starts streaming: START_REPLICATION itself accepts a position of the future in silence.
func (s *Stream) connect(ctx context.Context) (*connection, error) {
	c := &connection{stream: s, decoder: newDecoder(), delivered: s.config.Start}
	conn, err := pg.OpenReplication(ctx, s.config.Shard, streamApp, c.notice)
	if err != nil {
		return nil, err
	}
	c.conn = conn
	if err := c.start(ctx); err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("stream from %s: %w", s.config.Shard, err)
	}
	return c, nil
}

func (c *connection) start(ctx context.Context) error {
	config := c.stream.config
	system, err := pglogrepl.IdentifySystem(ctx, c.conn)
	if err != nil {
		return fmt.Errorf("identify the system: %w", err)
	}
	if config.SystemID != "" && config.SystemID != system.SystemID {
		return fmt.Errorf("%w: system identifier %s, expected %s; hint: check the shard's address",
			ErrOtherSystem, system.SystemID, config.SystemID)
	}
	slot, err := inspectSlot(ctx, c.conn, config.Slot)
	if err != nil {
		return err
	}
	if err := slot.Check(); err != nil {
		return err
	}
	switch end := pg.LSN(system.XLogPos); {
	case slot.ActivePID != 0:
		return fmt.Errorf("replication slot %s: %w by pid %d", config.Slot, ErrSlotInUse, slot.ActivePID)
	case slot.ConfirmedFlush > config.Start:
		return fmt.Errorf("%w: replication slot %s is at %s, the checkpoint at %s; hint: cancel the move and start it again",
			ErrConfirmedAhead, config.Slot, slot.ConfirmedFlush, config.Start)
	case end < config.Start:
		return fmt.Errorf("%w: the log ends at %s, the checkpoint is %s; hint: this server has lost what others have; "+
			"cancel the move and start it again", ErrServerBehind, end, config.Start)
	}
	// Until somebody confirms more, the server hears what it knows already.
	c.sent = slot.ConfirmedFlush
	raise(&c.stream.acked, c.sent)
	if c.interval, err = c.statusInterval(ctx); err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, c.conn, quoted(config.Slot), pglogrepl.LSN(config.Start),
		pglogrepl.StartReplicationOptions{PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + literal(quoted(config.Publication)),
			"messages 'true'",
		}})
	if err != nil {
		return fmt.Errorf("start at %s: %w", config.Start, slotError(config.Slot, err))
	}
	return nil
}

const timeoutSQL = `select setting from pg_settings where name = 'wal_sender_timeout'`

// statusInterval stays well below the time after which the server gives up on a silent client.
func (c *connection) statusInterval(ctx context.Context) (time.Duration, error) {
	if set := c.stream.config.StatusInterval; set > 0 {
		return set, nil
	}
	rows, err := simpleQuery(ctx, c.conn, timeoutSQL)
	if err != nil || len(rows) == 0 {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	millis, err := strconv.Atoi(rows[0][0])
	if err != nil {
		return 0, fmt.Errorf("read wal_sender_timeout: %w", err)
	}
	if millis == 0 {
		return maxStatus, nil
	}
	return min(maxStatus, max(minStatus, time.Duration(millis)*time.Millisecond/3)), nil
}

// notice remembers a warning that changes are being left out: from 18 on the server goes on without a publication that
// does not exist at the point it decodes, where older ones end with an error. Its text may be in any language.
func (c *connection) notice(n *pgconn.Notice) {
	warning := n.SeverityUnlocalized == "WARNING" || n.Severity == "WARNING"
	if warning && (n.Code == "55000" || strings.Contains(n.Message, "skipped loading publication")) {
		c.warned = fmt.Errorf("%w: the server warns: %s; hint: cancel the move and start it again", ErrPublicationMissing, n.Message)
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

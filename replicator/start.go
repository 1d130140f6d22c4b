package replicator

import (
	"context"
	"errors"
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
	find := c.find
	if config.Temporary > 0 {
		find = c.makeSlot
	}
	timeline, err := find(ctx)
	if err != nil {
		return err
	}
	raise(&c.stream.acked, c.sent)
	if config.Began != nil {
		if err := config.Began(ctx, timeline); err != nil {
			return err
		}
	}
	if c.interval, err = c.statusInterval(ctx); err != nil {
		return err
	}
	err = pglogrepl.StartReplication(ctx, c.conn, quoted(config.Slot), pglogrepl.LSN(c.delivered),
		pglogrepl.StartReplicationOptions{PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + literal(quoted(config.Publication)),
			"messages 'true'",
		}})
	if err != nil {
		return fmt.Errorf("start at %s: %w", c.delivered, slotError(config.Slot, err))
	}
	return nil
}

// find makes sure that the slot is there and free. Until somebody confirms more, the server hears what it knows already.
func (c *connection) find(ctx context.Context) (timeline int32, err error) {
	config := c.stream.config
	slot, timeline, err := examine(ctx, c.conn, config)
	if err != nil {
		return 0, err
	}
	if slot.ActivePID != 0 {
		return 0, fmt.Errorf("replication slot %s: %w by %s", config.Slot, ErrSlotInUse, holder(ctx, c.conn, slot.ActivePID))
	}
	c.sent = slot.ConfirmedFlush
	return timeline, nil
}

// makeSlot makes the slot. What bounded that wait is taken away again: decoding may wait for locks too.
func (c *connection) makeSlot(ctx context.Context) (timeline int32, err error) {
	config := c.stream.config
	bounded, cancel := context.WithTimeout(ctx, config.Temporary)
	defer cancel()
	lasts := asSession
	if config.Lasting {
		lasts = onlyHere
	}
	slot, err := createSlot(bounded, c.conn, config.Slot, lasts)
	if err != nil {
		return 0, waited(ctx, config.Shard, config.Slot, err)
	}
	if _, err := c.conn.Exec(ctx, "set lock_timeout = 0").ReadAll(); err != nil {
		return 0, fmt.Errorf("unbound the wait: %w", err)
	}
	c.sent, c.delivered = slot.ConsistentPoint, slot.ConsistentPoint
	return slot.Timeline, nil
}

// CheckSlot makes sure that the slot can be streamed from as the configuration says, whoever may be doing so now. The
// timeline is the one the server is on.
func CheckSlot(ctx context.Context, config Config) (timeline int32, err error) {
	conn, err := pg.OpenReplication(ctx, config.Shard, slotApp, nil)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	if _, timeline, err = examine(ctx, conn, config); err != nil {
		return 0, fmt.Errorf("slot of %s: %w", config.Shard, err)
	}
	return timeline, nil
}

// examine makes sure that server and slot are those the position to start from belongs to.
func examine(ctx context.Context, conn *pgconn.PgConn, config Config) (*SlotState, int32, error) {
	system, err := pglogrepl.IdentifySystem(ctx, conn)
	if err != nil {
		return nil, 0, fmt.Errorf("identify the system: %w", err)
	}
	if config.SystemID != "" && config.SystemID != system.SystemID {
		return nil, 0, fmt.Errorf("%w: system identifier %s, expected %s; hint: check the shard's address",
			ErrOtherSystem, system.SystemID, config.SystemID)
	}
	if err := config.History.goesOn(ctx, conn, system.Timeline); err != nil {
		return nil, 0, err
	}
	slot, err := inspectSlot(ctx, conn, config.Slot)
	if was := config.History.Timeline; errors.Is(err, ErrSlotMissing) && was != 0 && was != system.Timeline {
		return nil, 0, fmt.Errorf("%w: the server failed over (timeline %d to %d) to a standby that had not got it; from PostgreSQL 17 on a standby "+
			"keeps it with sync_replication_slots and hot_standby_feedback", err, was, system.Timeline)
	}
	if err == nil {
		err = slot.Check()
	}
	if err != nil {
		return nil, 0, err
	}
	switch end := pg.LSN(system.XLogPos); {
	case slot.ConfirmedFlush > config.Start:
		return nil, 0, &AheadError{Slot: config.Slot, Confirmed: slot.ConfirmedFlush, Start: config.Start}
	case end < config.Start:
		return nil, 0, fmt.Errorf("%w: the log ends at %s, the checkpoint is %s: this server has lost what others have", ErrServerBehind, end, config.Start)
	}
	return slot, system.Timeline, nil
}

const holderSQL = `select coalesce(nullif(application_name, ''), '-'), coalesce(usename, '-'), coalesce(host(client_addr), 'this machine') from pg_stat_activity where pid = %d`

// holder says who streams from a slot, as far as the server tells.
func holder(ctx context.Context, conn *pgconn.PgConn, pid int32) string {
	rows, err := simpleQuery(ctx, conn, fmt.Sprintf(holderSQL, pid))
	if err != nil || len(rows) == 0 {
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("pid %d (%s, role %s, from %s)", pid, rows[0][0], rows[0][1], rows[0][2])
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
		c.warned = fmt.Errorf("%w: the server warns: %s", ErrPublicationMissing, n.Message)
	}
}

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

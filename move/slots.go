package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/replicator"
)

// slotThere makes sure that a source's slot can still be read from where the shards are.
func (m *Move) slotThere(ctx context.Context, source int) error {
	c, at, err := m.slotConfig(ctx, source)
	if err != nil {
		return err
	}
	timeline, err := replicator.CheckSlot(ctx, c)
	if err != nil {
		return m.slotError(ctx, source, at, err)
	}
	return m.rememberTimeline(ctx, source, timeline)
}

// slotConfig is where a source's stream begins: at the lowest checkpoint, on a server that has everything the shards
// have. The positions are the shards'.
func (m *Move) slotConfig(ctx context.Context, source int) (c replicator.Config, at []pg.LSN, err error) {
	at = make([]pg.LSN, len(m.Destination.Shards))
	err = m.dests(ctx, func(ctx context.Context, shard int, conn *pgx.Conn) (err error) {
		at[shard], err = m.stream(source).Lock(ctx, conn)
		return err
	})
	if err != nil {
		return c, nil, err
	}
	until, err := m.mixedUntil(ctx)
	if err != nil {
		return c, nil, err
	}
	c = replicator.Config{Shard: m.Source.Shards[source], Slot: m.slot(source), Publication: m.slot(source), Start: slices.Min(at), QueueBytes: queueBytes,
		History: replicator.History{Held: max(slices.Max(at), until[source])},
		Began:   func(ctx context.Context, timeline int32) error { return m.rememberTimeline(ctx, source, timeline) }}
	return c, at, m.detail(ctx, timelineKey(source), &c.History.Timeline)
}

func timelineKey(source int) string { return fmt.Sprintf("timeline_%d", source) }

// rememberTimeline keeps with the move which timeline of a source the shards' changes are of.
func (m *Move) rememberTimeline(ctx context.Context, source int, timeline int32) error {
	return m.setDetail(ctx, timelineKey(source), timeline)
}

// slotError adds to an error of a source's slot what only the move knows; at are the shards' positions.
func (m *Move) slotError(ctx context.Context, source int, at []pg.LSN, err error) error {
	if errors.Is(err, replicator.ErrSlotMissing) {
		if over := m.droppedForBudget(ctx, source); over != nil {
			return over
		}
	}
	// Confirmed was once what every shard had: one that is below it while another is not has gone back.
	var ahead *replicator.AheadError
	if low, high := slices.Min(at), slices.Max(at); errors.As(err, &ahead) && high >= ahead.Confirmed {
		return fmt.Errorf("destination shard %d is at %s and another at %s, so it has lost what it had, as by a fail-over to a standby that lagged: %w",
			slices.Index(at, low), low, high, err)
	}
	return err
}

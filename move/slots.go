package move

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"pgreshard/replicator"
)

// slotThere asks whether a source's slot can still be read.
func (m *Move) slotThere(ctx context.Context, source int) error {
	err := m.source(ctx, source, func(conn *pgx.Conn) error {
		state, err := replicator.InspectSlot(ctx, conn, m.slot(source))
		if err != nil {
			return err
		}
		return state.Check()
	})
	return m.slotError(ctx, source, err)
}

// slotError adds to an error of a source's slot what only the move knows.
func (m *Move) slotError(ctx context.Context, source int, err error) error {
	if errors.Is(err, replicator.ErrSlotMissing) {
		if over := m.droppedForBudget(ctx, source); over != nil {
			return over
		}
	}
	return err
}

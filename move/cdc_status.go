package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"pgreshard/pg"
	"pgreshard/sink/jetstream"
)

// CDCStatus is how changes are published ([cdc]). Error is why nothing is published now, empty while something is; BegunAnew why
// publishing was begun anew last, because changes were lost before they were published.
type CDCStatus struct {
	Stream    string           `json:"stream"`
	Connected bool             `json:"connected"`
	Error     string           `json:"error,omitempty"`
	BegunAnew string           `json:"begun_anew,omitempty"`
	Shards    []CDCShardStatus `json:"shards"`
}

// CDCShardStatus is how far the changes of one shard are published. LagBytes is the log between what it has written and what
// the stream has acknowledged, LagSeconds the age of that; Retained and Budget are of the slot.
type CDCShardStatus struct {
	Layout     int              `json:"layout"`
	Shard      int              `json:"shard"`
	State      string           `json:"state"` // waiting, rows or changes
	Error      string           `json:"error,omitempty"`
	Confirmed  string           `json:"confirmed"`
	LagBytes   *int64           `json:"lag_bytes"`
	LagSeconds *float64         `json:"lag_seconds"`
	Retained   *int64           `json:"retained_bytes"`
	Budget     *int64           `json:"wal_budget"`
	Events     map[string]int64 `json:"events,omitempty"` // published by this worker, by op
	Bytes      int64            `json:"bytes"`
}

// cdcHealth is what a server says of a slot; slot.retained is nil where it does not say.
type cdcHealth struct {
	slot      slotHealth
	confirmed pg.LSN
	behind    *lagMeter
	disk      int64 // room for log as first seen, and what the slot kept then
}

// watch looks at every slot once a second, whether or not anything is published, and drops those that keep too much.
func (c *cdc) watch(ctx context.Context) error {
	for {
		if over := c.look(ctx); over != nil {
			if err := c.beginAnew(ctx, over.Error()); err != nil {
				c.move.log.Warn("a slot that keeps too much is not dropped yet", "error", oneLine(err))
			}
		}
		if err := sleep(ctx, lookEvery); err != nil {
			return err
		}
	}
}

const selectCDCSlot = `select pg_current_wal_insert_lsn()::text, confirmed_flush_lsn::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint,
		` + slotLimit + `
	from pg_replication_slots where slot_name = $1 and database = current_database() and restart_lsn is not null and confirmed_flush_lsn is not null`

// look asks every server about our slots; it says so where one keeps more than it may.
func (c *cdc) look(ctx context.Context) (over error) {
	for _, leg := range c.legs() {
		for n, s := range leg.Shards {
			key := cdcKey{leg.Number, n}
			if s.Slot == 0 {
				continue
			}
			h := c.lookAt(ctx, key, leg.node(n))
			if h.slot.halves() == 2 && c.move.OnWALBudget != BudgetAlarm {
				over = fmt.Errorf("replication slot %s kept %s of log, more than the %s it may ([stream] wal_budget)", c.move.cdcSlot(leg.Number, n), sizeText(*h.slot.retained), sizeText(h.slot.budget))
			}
		}
	}
	return over
}

func (c *cdc) lookAt(ctx context.Context, key cdcKey, n node) cdcHealth {
	bounded, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	c.mu.Lock()
	h, known := c.health[key]
	c.mu.Unlock()
	if !known {
		h.behind = &lagMeter{}
	}
	var end pg.LSN
	h.slot.retained = nil
	err := c.move.reads(bounded, n, func(conn *pgx.Conn) error {
		if err := conn.QueryRow(bounded, selectCDCSlot, c.move.cdcSlot(key.leg, key.shard)).Scan(&end, &h.confirmed, &h.slot.retained, &h.slot.limit); err != nil {
			return err
		}
		if !known {
			if h.disk = seenDisk(bounded, conn); h.disk > 0 {
				h.disk += *h.slot.retained
			}
		}
		return nil
	})
	if err == nil {
		h.behind.asked(end, time.Now())
		h.slot.budget = c.move.budgetFor(h.slot.limit, h.disk)
	} else if ctx.Err() == nil && !errors.Is(err, pgx.ErrNoRows) {
		c.move.log.Debug("a slot that changes are published by was not looked at", "error", oneLine(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.health[key] = h
	return h
}

// status is what is known of publishing now.
func (c *cdc) status() *CDCStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &CDCStatus{Stream: jetstream.StreamName(c.move.Name), Connected: c.Conn != nil && c.Conn.IsConnected(), Error: c.fault, BegunAnew: c.anew, Shards: []CDCShardStatus{}}
	for i, leg := range c.kept.Legs {
		for n, kept := range leg.Shards {
			key := cdcKey{leg.Number, n}
			t := CDCShardStatus{Layout: c.move.sideOf(leg.node(n)).Layout, Shard: n, State: "changes", Error: c.failed[key]}
			switch {
			case i > 0 || kept.Slot == 0:
				t.State = "waiting"
			case !kept.Whole:
				t.State = "rows"
			}
			c.measured(key, &t)
			s.Shards = append(s.Shards, t)
		}
	}
	return s
}

func (c *cdc) measured(key cdcKey, t *CDCShardStatus) {
	if h := c.health[key]; h.slot.retained != nil {
		budget := h.slot.budget
		t.Confirmed, t.Retained, t.Budget = h.confirmed.String(), h.slot.retained, &budget
		if bytes, age, ok := h.behind.at(h.confirmed, time.Now()); ok {
			seconds := age.Seconds()
			t.LagBytes, t.LagSeconds = &bytes, &seconds
		}
	}
	if feed := c.feeds[key]; feed != nil {
		stats := feed.Stats()
		t.Bytes, t.Events = stats.Bytes, map[string]int64{}
		for op, n := range stats.Events {
			t.Events[string(rune(op))] = n
		}
	}
}

// alarms are what of it wants somebody's eye.
func (s *CDCStatus) alarms() (all []string) {
	if s.Error != "" {
		all = append(all, "no changes are published: "+s.Error)
	}
	for _, t := range s.Shards {
		where := fmt.Sprintf("shard %d of layout %d", t.Shard, t.Layout)
		if t.Error != "" {
			all = append(all, fmt.Sprintf("the changes of %s are not published: %s", where, t.Error))
		}
		if t.Retained != nil && *t.Retained > *t.Budget/2 {
			all = append(all, fmt.Sprintf("the slot by which the changes of %s are published keeps %s of log, more than half of the %s it may", where, sizeText(*t.Retained), sizeText(*t.Budget)))
		}
	}
	return all
}

// storedCDC is what the servers tell of publishing where no worker runs; nil where nothing is published.
func (m *Move) storedCDC(ctx context.Context) (*CDCStatus, error) {
	kept, err := m.keptCDC(ctx)
	if err != nil || len(kept.Legs) == 0 {
		return nil, err
	}
	c := &cdc{move: m, kept: kept, health: map[cdcKey]cdcHealth{}}
	_ = c.look(ctx) // a worker acts on it
	return c.status(), nil
}

package jetstream

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pgreshard/pg"
)

// Headers of a message, beside Nats-Msg-Id.
const (
	// SlotHeader is the position at which the slot was made from which the message comes. Where it changes, changes may have
	// been left out, and the rows that were there then follow, if they are published.
	SlotHeader = "Pgreshard-Slot"
	// PartHeader is which part of an event a message holds, and of how many, as 2/5; whole events have none. Parts follow each
	// other on their subject; part 1 begins anew.
	PartHeader = "Pgreshard-Part"
)

// Origin is where a feed's changes come from.
type Origin struct {
	Move     string
	Database string // as the source calls it
	Layout   int    // of which the source is a shard
	Shard    int
	Slot     pg.LSN // position at which the slot was made
}

// Mark is a message's place among those of its feed. The zero Mark is before all; rows that were there have no Commit.
type Mark struct {
	Commit pg.LSN // of its transaction
	N      int64  // it is the transaction's n-th event, from 1
	Part   int    // from 1
	Of     int    // parts
}

// passed says whether event n of a transaction is published up to and with m; parts are how many parts of it are.
func (m Mark) passed(commit pg.LSN, n int64) (whole bool, parts int) {
	switch {
	case commit < m.Commit || commit == m.Commit && n < m.N:
		return true, 0
	case commit > m.Commit || n > m.N:
		return false, 0
	}
	return m.Part == m.Of, m.Part
}

// id is Nats-Msg-Id: <move>/<source>/<commit LSN>/<n>, with the number of a part behind a dot.
func (o *Origin) id(m Mark) string {
	n := strconv.FormatInt(m.N, 10)
	if m.Commit == 0 {
		m.Commit, n = o.Slot, "r"+n
	}
	if m.Of > 1 {
		n = fmt.Sprintf("%s.%d", n, m.Part)
	}
	return fmt.Sprintf("%s/%d/%s/%s", o.Move, o.Shard, m.Commit, n)
}

func (o *Origin) header(m Mark) nats.Header {
	h := nats.Header{jetstream.MsgIDHeader: {o.id(m)}, SlotHeader: {o.Slot.String()}}
	if m.Of > 1 {
		h.Set(PartHeader, fmt.Sprintf("%d/%d", m.Part, m.Of))
	}
	return h
}

// markOf reads the mark of a message back; ok is false where it is not of this feed.
func (o *Origin) markOf(h nats.Header) (m Mark, ok bool) {
	parts := strings.Split(h.Get(jetstream.MsgIDHeader), "/") // a position has one too
	if len(parts) != 5 || parts[0] != o.Move || parts[1] != strconv.Itoa(o.Shard) || h.Get(SlotHeader) != o.Slot.String() || strings.HasPrefix(parts[4], "r") {
		return Mark{}, false
	}
	m.Part, m.Of = 1, 1
	n, _, split := strings.Cut(parts[4], ".")
	if split {
		if _, err := fmt.Sscanf(h.Get(PartHeader), "%d/%d", &m.Part, &m.Of); err != nil {
			return Mark{}, false
		}
	}
	var err1, err2 error
	m.Commit, err1 = pg.ParseLSN(parts[2] + "/" + parts[3])
	m.N, err2 = strconv.ParseInt(n, 10, 64)
	return m, err1 == nil && err2 == nil
}

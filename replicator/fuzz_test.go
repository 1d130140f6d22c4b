package replicator

import (
	"bytes"
	"errors"
	"testing"

	"pgreshard/pg"
)

// FuzzDecode feeds a decoder any messages, each preceded by its length in two bytes. The corpus in testdata holds what
// a real server sent (see TestCaptureSeeds). Whatever comes, the decoder answers with a change or a *DecodeError, and
// a row it accepts, written down again, is the message it came from.
func FuzzDecode(f *testing.F) {
	f.Add(join(append(described, beginMessage(1, 1), insertMessage(1, text("1", "note")), commitMessage(1, 2))...))
	f.Add(join(append(described, beginMessage(1, 1), updateMessage(1, 'K', text("1", ""), text("2", "")))...))
	f.Add(join(append(described, beginMessage(1, 1), deleteMessage(1, 'O', text("1", "")), truncateMessage(1, 1, 2))...))
	f.Fuzz(func(t *testing.T, all []byte) {
		d := newDecoder()
		for _, msg := range split(all) {
			before := len(d.changes)
			if err := d.decode(1, msg); err != nil {
				var e *DecodeError
				if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(msg) {
					t.Fatalf("an error of the wrong kind: %#v", err)
				}
				return
			}
			if len(d.changes) > before {
				checkRow(t, d.change(), msg)
			}
		}
		b := d.take()
		if b.Bytes < len(b.Changes)*changeCost {
			t.Fatalf("%d changes are charged %d bytes", len(b.Changes), b.Bytes)
		}
	})
}

func checkRow(t *testing.T, c *pg.Change, msg []byte) {
	old := byte('K')
	if c.OldFull {
		old = 'O'
	} else if c.Old == nil {
		old = 0
	}
	var again []byte
	switch c.Op {
	case pg.OpInsert:
		again = insertMessage(c.Relation.OID, c.New)
	case pg.OpUpdate:
		again = updateMessage(c.Relation.OID, old, c.Old, c.New)
	case pg.OpDelete:
		again = deleteMessage(c.Relation.OID, old, c.Old)
	default:
		return
	}
	if !bytes.Equal(again, msg) {
		t.Fatalf("message %q came out as %q", msg, again)
	}
}

func join(messages ...[]byte) []byte {
	var all []byte
	for _, m := range messages {
		all = append(be.AppendUint16(all, uint16(len(m))), m...)
	}
	return all
}

// split gives each message memory of its own, so that reading beyond its end is seen.
func split(all []byte) (messages [][]byte) {
	for len(all) >= 2 {
		n := min(int(be.Uint16(all)), len(all)-2)
		messages = append(messages, bytes.Clone(all[2:2+n:2+n]))
		all = all[2+n:]
	}
	return messages
}

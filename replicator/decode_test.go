package replicator

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgreshard/pg"
)

var described = [][]byte{
	relationMessage(1, "public", "orders", "id", "note"),
	relationMessage(2, "", "lonely"),
	relationMessage(3, "public", "tenants", "id"),
}

func TestDecodeReadsEveryMessage(t *testing.T) {
	t.Parallel()
	null, unchanged := pg.Datum{Kind: pg.Null}, pg.Datum{Kind: pg.Unchanged}
	key := append(text("1"), null)
	d := newDecoder()
	for _, m := range slices.Concat(described, [][]byte{
		logicalMessage(0, 0x90, "now", "outside"),
		beginMessage(0x100, 7),
		append(be.AppendUint64([]byte{'O'}, 5), "elsewhere\x00"...),
		append(be.AppendUint32([]byte{'Y'}, 16400), "public\x00mood\x00"...),
		insertMessage(1, text("1", "")),
		insertMessage(2, nil),
		updateMessage(1, 0, nil, append(text("1"), unchanged)),
		updateMessage(1, 'K', key, text("2", "x")),
		updateMessage(1, 'O', text("2", "x"), append(text("3"), null)),
		deleteMessage(1, 'K', key),
		deleteMessage(1, 'O', text("3", "y")),
		truncateMessage(3, 1, 3),
		logicalMessage(1, 0xA0, "barrier", ""),
		commitMessage(0x100, 0x130),
	}) {
		if err := d.decode(0x80, m); err != nil {
			t.Fatal(err)
		}
	}
	want := `message now "outside" at 0/90
begin 7 at 0/100
insert public.orders [1 ""]
insert pg_catalog.lonely []
update public.orders [1 unchanged]
update public.orders key [1 NULL] [2 x]
update public.orders old [2 x] [3 NULL]
delete public.orders key [1 NULL]
delete public.orders old [3 y]
truncate public.orders public.tenants cascade restart
message barrier "" at 0/A0 in 7
commit 7 at 0/100 to 0/130`
	b := d.take()
	if got := strings.Join(lines(b.Changes), "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for _, c := range b.Changes {
		if c.Op == pg.OpInsert && c.New == nil || c.Op == pg.OpInsert && c.Old != nil {
			t.Errorf("an insert has a new row, be it empty, and no old one: %+v", c)
		}
	}
	if tx := b.Changes[1].Tx; tx.End != 0 {
		t.Errorf("the transaction of BEGIN was changed by COMMIT, while others may read it: %+v", tx)
	}
	if d.committed != 0x130 || d.tx != nil {
		t.Errorf("after the commit: %s, open %v", d.committed, d.tx)
	}
}

func TestDecodeRefusesWhatTheProtocolDoesNotAllow(t *testing.T) {
	t.Parallel()
	begin := beginMessage(0x100, 7)
	insert := insertMessage(1, text("1", "note"))
	tests := []struct {
		name   string
		before [][]byte
		bad    []byte
		offset int
		reason string
	}{
		{"an empty message", nil, nil, 0, "empty"},
		{"a message of a later protocol", nil, []byte{'S', 0}, 0, "unknown message type"},
		{"a row outside a transaction", nil, insert, 1, "outside a transaction"},
		{"a row of an unknown table", [][]byte{begin}, insertMessage(9, text("1")), 5, "no Relation message"},
		{"a row with too few columns", [][]byte{begin}, insertMessage(1, text("1")), 8, "another number of columns"},
		{"a row with bytes left over", [][]byte{begin}, append(slices.Clone(insert), 0), len(insert), "left over"},
		{"a value longer than the message", [][]byte{begin}, insert[:len(insert)-1], len(insert) - 4, "too early"},
		{"a value of length -1", [][]byte{begin},
			[]byte{'I', 0, 0, 0, 3, 'N', 0, 1, 't', 0xff, 0xff, 0xff, 0xff}, 13, "too early"},
		{"a column of an unknown kind", [][]byte{begin}, []byte{'I', 0, 0, 0, 3, 'N', 0, 1, 'x'}, 8, "unknown kind"},
		{"an insert that is a key", [][]byte{begin}, []byte{'I', 0, 0, 0, 3, 'K', 0, 1, 'n'}, 6, "unknown tuple type"},
		{"a delete of a new row", [][]byte{begin}, []byte{'D', 0, 0, 0, 3, 'N', 0, 1, 'n'}, 6, "unknown tuple type"},
		{"an update without a new row", [][]byte{begin}, append([]byte{'U'}, deleteMessage(3, 'K', text("1"))[1:]...), 14, "too early"},
		{"a BEGIN inside a transaction", [][]byte{begin}, begin, 1, "BEGIN inside"},
		{"a COMMIT outside a transaction", nil, commitMessage(0x100, 0x130), 26, "outside"},
		{"a COMMIT of another transaction", [][]byte{begin}, commitMessage(0x101, 0x130), 26, "another transaction"},
		{"a COMMIT that ends where it starts", [][]byte{begin}, commitMessage(0x100, 0x100), 26, "before it starts"},
		{"a TRUNCATE outside a transaction", nil, truncateMessage(0, 1), 6, "outside"},
		{"a TRUNCATE of more tables than named", [][]byte{begin}, append([]byte{'T', 0xff, 0xff, 0xff, 0xff, 0}, 0, 0, 0, 1), 6, "number of tables"},
		{"a TRUNCATE of an unknown table", [][]byte{begin}, truncateMessage(0, 1, 9), 14, "no Relation message"},
		{"a transactional message outside a transaction", nil, logicalMessage(1, 1, "p", "c"), 17, "outside"},
		{"a Relation with more columns than bytes", nil, append(relationMessage(1, "", "t")[:9], 0xff, 0xff), 11, "more columns"},
		{"a Relation whose name has no end", nil, []byte{'R', 0, 0, 0, 1, 'p', 'u'}, 5, "without an end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := newDecoder()
			for _, m := range slices.Concat(described, test.before) {
				if err := d.decode(0x80, m); err != nil {
					t.Fatal(err)
				}
			}
			err := d.decode(0x80, test.bad)
			var e *DecodeError
			if !errors.As(err, &e) {
				t.Fatalf("accepted, error %v", err)
			}
			if e.Offset != test.offset || !strings.Contains(e.Reason, test.reason) || e.LSN != 0x80 {
				t.Errorf("%v, want byte %d: %s", e, test.offset, test.reason)
			}
		})
	}
}

func TestARelationSentAgainLeavesTheOldOneAlone(t *testing.T) {
	t.Parallel()
	d := newDecoder()
	for _, m := range [][]byte{
		relationMessage(1, "public", "orders", "id"), beginMessage(1, 1), insertMessage(1, text("1")),
		relationMessage(1, "public", "orders", "id", "note"), insertMessage(1, text("2", "x")),
	} {
		if err := d.decode(0, m); err != nil {
			t.Fatal(err)
		}
	}
	c := d.take().Changes
	if a, b := c[1].Relation, c[2].Relation; a == b || len(a.Columns) != 1 || len(b.Columns) != 2 {
		t.Errorf("%+v %+v", a, b)
	}
}

func TestBlocksKeepWhatTheyHoldWhileOthersAreFilled(t *testing.T) {
	t.Parallel()
	d := newDecoder()
	message := insertMessage(3, text("0"))
	for _, m := range slices.Concat(described, [][]byte{beginMessage(1, 1)}) {
		if err := d.decode(0, m); err != nil {
			t.Fatal(err)
		}
	}
	big := bytes.Repeat([]byte("x"), slabBytes+1)
	var blocks []*pg.Block
	bytesHeld := 0
	for i := range 20000 {
		message[len(message)-1] = byte('0' + i%10) // as the connection's buffer is overwritten
		m := message
		if i%5000 == 7 {
			m = insertMessage(3, text(string(big)))
		}
		if err := d.decode(0, m); err != nil {
			t.Fatal(err)
		}
		if i%37 == 0 || d.size >= blockBytes {
			blocks = append(blocks, d.take())
			bytesHeld += blocks[len(blocks)-1].Bytes
		}
	}
	i := -1
	for _, b := range blocks {
		for _, c := range b.Changes {
			if c.Op == pg.OpBegin {
				continue
			}
			i++
			want := string('0' + rune(i%10))
			if i%5000 == 7 {
				want = string(big)
			}
			if string(c.New[0].Bytes) != want {
				t.Fatalf("row %d holds %.10q", i, c.New[0].Bytes)
			}
		}
	}
	if least := i * (len(message) + changeCost + columnCost); bytesHeld < least {
		t.Errorf("blocks are charged %d bytes for at least %d", bytesHeld, least)
	}
}

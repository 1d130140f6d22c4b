package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pgreshard/notice"
	"pgreshard/pg"
)

func TestSubjectsAreReadBack(t *testing.T) {
	t.Parallel()
	for want, table := range map[string]pg.Name{
		"pgreshard.m-1.cdc.public.orders.3":               {Schema: "public", Table: "orders"},
		"pgreshard.m-1.cdc.My=20=2Eschema.=C3=BC=3D=2A.3": {Schema: "My .schema", Table: "ü=*"},
	} {
		got := Subject("m-1", table, 3)
		back, shard, err := ParseSubject(got)
		if got != want || err != nil || back != table || shard != 3 {
			t.Errorf("%v: %s, and back %v, %d, %v", table, got, back, shard, err)
		}
	}
	for _, wrong := range []string{"pgreshard.m.cdc.a.b", "pgreshard.m.cdc.a.b.x", "pgreshard.m.cdc.a=2.b.1", "pgreshard.m.cdc.a=zz.b.1", "x.m.cdc.a.b.1"} {
		if _, _, err := ParseSubject(wrong); err == nil {
			t.Errorf("%s is read", wrong)
		}
	}
}

var table = &pg.Relation{Name: pg.Name{Schema: "public", Table: "t"}, Columns: []pg.RelationColumn{
	{Name: "id", TypeOID: 20, Key: true}, {Name: "on", TypeOID: typeBool}, {Name: "n", TypeOID: typeInt4}, {Name: "body", TypeOID: 25}}}

func text(s string) pg.Datum { return pg.Datum{Kind: pg.Text, Bytes: []byte(s)} }

// Values keep their digits, old rows of which the log has the key alone have nothing else, and what the log does not carry is said.
func TestAnEnvelopeSaysExactlyWhatTheLogDoes(t *testing.T) {
	t.Parallel()
	o := &Origin{Move: "m", Database: "app", Layout: 1, Shard: 2, Slot: 7}
	null, unchanged := pg.Datum{Kind: pg.Null}, pg.Datum{Kind: pg.Unchanged}
	known := Table{Name: table.Name, Key: []string{"id"}}
	const source = `"source":{"connector":"pgreshard","name":"m","ts_ms":1000,"snapshot":"false","db":"app","schema":"public","table":"t","key":["id"]`
	for name, test := range map[string]struct {
		c    change
		want string
	}{
		"an insert": {change{op: 'c', new: pg.Row{text("9007199254740993"), text("t"), text("-5"), text("a \"b\" \\ \n\u2028ü")}},
			`{"before":null,"after":{"id":"9007199254740993","on":true,"n":-5,"body":"a \"b\" \\ \u000a` + "\u2028" + `ü"},"op":"c","ts_ms":1000,` + source},
		"a key that changes, and a value left alone": {change{op: 'u', old: pg.Row{text("1"), null, null, null}, new: pg.Row{text("2"), text("f"), null, unchanged}},
			`{"before":{"id":"1"},"after":{"id":"2","on":false,"n":null,"body":"__debezium_unavailable_value"},"op":"u","ts_ms":1000,` + source + `,"unavailable":["body"]`},
		"a value left alone that the whole old row has": {change{op: 'u', oldFull: true, old: pg.Row{text("1"), null, text("3"), text("x")}, new: pg.Row{text("1"), null, text("4"), unchanged}},
			`{"before":{"id":"1","on":null,"n":3,"body":"x"},"after":{"id":"1","on":null,"n":4,"body":"x"},"op":"u","ts_ms":1000,` + source},
		"a delete":   {change{op: 'd', old: pg.Row{text("1"), null, null, null}}, `{"before":{"id":"1"},"after":null,"op":"d","ts_ms":1000,` + source},
		"a truncate": {change{op: 't'}, `{"before":null,"after":null,"op":"t","ts_ms":1000,` + source},
	} {
		c := test.c
		c.table, c.relation, c.time, c.xid, c.at = known, table, time.Unix(1, 0), 9, Mark{Commit: 77, N: 3}
		e, err := o.event(&c)
		if err != nil {
			t.Fatal(err)
		}
		got := string(e.body) + lastEnd
		if want := test.want + `,"txId":9,"lsn":77,"layout":1,"shard":2,"n":3` + lastEnd; got != want || !json.Valid([]byte(got)) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	c := change{op: 'c', table: known, relation: table, new: pg.Row{text("1"), null, null, text("\xff")}}
	if _, err := o.event(&c); err == nil || !strings.Contains(err.Error(), `column "body" of public.t is not UTF-8`) {
		t.Errorf("what is no UTF-8: %v", err)
	}
}

// stream is a feed before a server, from which transactions are published.
type stream struct {
	t       *testing.T
	conn    *nats.Conn
	feed    *Feed
	p       *Publisher
	ended   chan error
	next    pg.LSN
	confirm pg.LSN
}

func newStream(t *testing.T) *stream {
	t.Helper()
	server, err := notice.Serve(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := notice.Connect("", server, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Close() })
	s := &stream{t: t, conn: conn, feed: newFeed(), next: 100}
	s.open()
	return s
}

func newFeed() *Feed {
	return &Feed{Origin: Origin{Move: "m", Database: "app", Layout: 1, Slot: 7},
		Table: func(context.Context, *pg.Relation) (Table, error) {
			return Table{Name: table.Name, Key: []string{"id"}}, nil
		}}
}

// open begins with a publisher of its own, as after one has failed.
func (s *stream) open() {
	s.t.Helper()
	var err error
	if s.p, err = Open(s.t.Context(), s.conn, "m"); err != nil {
		s.t.Fatal(err)
	}
	s.ended = make(chan error, 1)
	p, ended := s.p, s.ended
	go func() { ended <- p.Run(s.t.Context()) }()
	if err := s.feed.Begin(s.t.Context(), s.p); err != nil {
		s.t.Fatal(err)
	}
}

// transaction is one with rows of these texts; each begins 10 after the one before.
func (s *stream) transaction(at pg.LSN, rows ...string) *pg.Block {
	tx := &pg.Tx{Xid: 1, Commit: at, Time: time.Unix(1, 0)}
	b := &pg.Block{Changes: []pg.Change{{Op: pg.OpBegin, Tx: tx}}}
	for i, row := range rows {
		b.Changes = append(b.Changes, pg.Change{Op: pg.OpInsert, Tx: tx, Relation: table, New: pg.Row{text(fmt.Sprint(i)), text("t"), text("1"), text(row)}})
	}
	end := *tx
	end.End = at + 5
	b.Changes = append(b.Changes, pg.Change{Op: pg.OpCommit, Tx: &end})
	return b
}

// run has the feed publish blocks and waits until all is stored.
func (s *stream) run(blocks ...*pg.Block) error {
	in := make(chan *pg.Block, len(blocks))
	for _, b := range blocks {
		in <- b
	}
	close(in)
	if err := s.feed.Run(s.t.Context(), in, func(*pg.Block) {}, func(at pg.LSN) { s.confirm = at }); err != nil {
		return err
	}
	return s.p.stored(s.t.Context())
}

// messages are what the stream has: Msg-Id, part, and the length of the data.
func (s *stream) messages() (out []string) {
	s.t.Helper()
	info, err := s.p.stream.Info(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg, err := s.p.stream.GetMsg(s.t.Context(), seq)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, strings.TrimSpace(msg.Header.Get(jetstream.MsgIDHeader)+" "+msg.Header.Get(PartHeader)))
	}
	return out
}

func (s *stream) want(want ...string) {
	s.t.Helper()
	if got := s.messages(); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("the stream has %q, want %q", got, want)
	}
}

// A worker that is started again publishes from where its slot is; what the stream has already does not come again.
func TestWhatTheStreamHasIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	if err := s.run(s.transaction(100, "a", "b"), s.transaction(110, "c")); err != nil {
		t.Fatal(err)
	}
	if s.confirm != 115 {
		t.Errorf("confirmed %s", s.confirm)
	}
	s.feed = newFeed() // of another process
	s.open()
	if err := s.run(s.transaction(100, "a", "b"), s.transaction(110, "c"), s.transaction(120, "d")); err != nil {
		t.Fatal(err)
	}
	s.want("m/0/0/64/1", "m/0/0/64/2", "m/0/0/6E/1", "m/0/0/78/1")
}

// Somebody else writes to the stream: nothing of what was sent behind that is stored, and it comes once, in its order, later.
func TestNothingIsStoredWhereSomethingBeforeItIsMissing(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	if err := s.run(s.transaction(100, "a")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.p.js.Publish(t.Context(), "pgreshard.m.cdc.other.other.9", nil, jetstream.WithMsgID("other")); err != nil {
		t.Fatal(err)
	}
	if err := s.run(s.transaction(110, "b", "c"), s.transaction(120, "d")); err == nil {
		t.Error("all is stored")
	}
	if err := <-s.ended; !errors.Is(err, ErrDisturbed) {
		t.Errorf("the publisher ended with %v", err)
	}
	if s.confirm != 105 {
		t.Errorf("confirmed %s", s.confirm)
	}
	s.want("m/0/0/64/1", "other")
	s.open()
	if err := s.run(s.transaction(110, "b", "c"), s.transaction(120, "d")); err != nil {
		t.Fatal(err)
	}
	s.want("m/0/0/64/1", "other", "m/0/0/6E/1", "m/0/0/6E/2", "m/0/0/78/1")
}

// An event larger than a message goes in parts, which put together are the event; one that was interrupted goes on with the
// next part.
func TestALargeEventGoesInParts(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	large := strings.Repeat("x", 5<<19) // 2.5 MB, where a message has 1 MB
	if err := s.run(s.transaction(100, "a", large, "b")); err != nil {
		t.Fatal(err)
	}
	parts := []string{"m/0/0/64/1", "m/0/0/64/2.1 1/3", "m/0/0/64/2.2 2/3", "m/0/0/64/2.3 3/3", "m/0/0/64/3"}
	s.want(parts...)
	var whole bytes.Buffer
	for seq := range uint64(3) {
		msg, err := s.p.stream.GetMsg(t.Context(), 2+seq)
		if err != nil {
			t.Fatal(err)
		}
		whole.Write(msg.Data)
	}
	var e struct{ After struct{ Body string } }
	if err := json.Unmarshal(whole.Bytes(), &e); err != nil || e.After.Body != large {
		t.Errorf("the parts are no event: %v", err)
	}
	for _, seq := range []uint64{5, 4, 3} { // as if the worker had died before
		if err := s.p.stream.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.p.Published(t.Context(), &s.feed.Origin)
	if want := (Mark{Commit: 100, N: 2, Part: 1, Of: 3}); err != nil || got != want {
		t.Errorf("published %+v, %v", got, err)
	}
}

// At the end of its stretch a feed stops, with everything before it stored and nothing behind it, nor what is before its beginning.
func TestAFeedKeepsToItsStretch(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	s.feed.From = 110
	s.feed.Until(120)
	if err := s.run(s.transaction(100, "before"), s.transaction(110, "a"), s.transaction(120, "behind")); !errors.Is(err, ErrReached) {
		t.Errorf("it ended with %v", err)
	}
	s.want("m/0/0/6E/1")
	if s.confirm != 115 {
		t.Errorf("confirmed %s", s.confirm)
	}
}

// Rows that were there come first, as one transaction, with an event that clears their table.
func TestRowsThatWereThereAreOneTransaction(t *testing.T) {
	t.Parallel()
	s := newStream(t)
	rows := s.feed.Rows(time.Unix(1, 0))
	known := Table{Name: table.Name, Key: []string{"id"}}
	if err := rows.Table(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	row := pg.Row{text("1"), text("t"), text("2"), text("x")}
	for range 2 {
		if err := rows.Row(t.Context(), known, table, row); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.run(s.transaction(7, "a")); err != nil { // it commits where the slot was made
		t.Fatal(err)
	}
	s.want("m/0/0/7/r1", "m/0/0/7/r2", "m/0/0/7/r3", "m/0/0/7/1")
	last, err := s.p.stream.GetMsg(t.Context(), 3)
	if err != nil || !strings.Contains(string(last.Data), `"op":"r"`) || !strings.Contains(string(last.Data), `"snapshot":"true"`) || !strings.HasSuffix(string(last.Data), lastEnd) {
		t.Errorf("the last row: %v, %s", err, last.Data)
	}
}

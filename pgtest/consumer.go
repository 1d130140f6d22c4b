package pgtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// inPartition is under which a row notes its partition.
const inPartition = "\x00"

// envelope is an event as a consumer reads it.
type envelope struct {
	Before, After map[string]any
	Op            string
	Source        struct {
		Table         string
		Snapshot      string
		Layout, Shard int
		Key           []string
		Unavailable   []string
		Partition     string
		N             int
		Last          bool
	}
}

// Consumer has the tables as the stream alone tells them. Rows are kept by the shard they came from, since nothing orders the
// changes of two shards; those of a layout that was left are looked for where a row is not of its shard's own.
type Consumer struct {
	mu     sync.Mutex
	layout int
	tables map[string]map[int]map[string]map[string]any // by table, shard (-1: of the layout before), key
	seq    uint64                                       // up to where the stream is applied
	ids    map[string]uint64                            // Nats-Msg-Id to the first message that had it
	twice  []string
	parts  []byte
	open   map[int]int // by shard: the events of its open transaction
	wrong  []string
}

// NewConsumer has applied nothing yet.
func NewConsumer() *Consumer {
	return &Consumer{tables: map[string]map[int]map[string]map[string]any{}, ids: map[string]uint64{}, open: map[int]int{}}
}

// Follow reads the stream from behind what is applied, until ctx ends; a connection that breaks is made again.
func (c *Consumer) Follow(ctx context.Context, conn *nats.Conn, stream string) {
	for ctx.Err() == nil {
		_ = c.read(ctx, conn, stream) // read again below
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (c *Consumer) read(ctx context.Context, conn *nats.Conn, stream string) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	c.mu.Lock()
	from := c.seq + 1
	c.parts = nil
	c.mu.Unlock()
	in, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from})
	if err != nil {
		return err
	}
	messages, err := in.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		msg, err := messages.Next()
		if err == nil {
			err = c.take(msg)
		}
		if err != nil {
			return err
		}
	}
}

func (c *Consumer) take(msg jetstream.Msg) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	id, seq := msg.Headers().Get(jetstream.MsgIDHeader), meta.Sequence.Stream
	if first, ok := c.ids[id]; ok && first != seq {
		c.twice = append(c.twice, id)
	} else {
		c.ids[id] = seq
	}
	data := msg.Data()
	if part := msg.Headers().Get("Pgreshard-Part"); part != "" {
		var n, of int
		if _, err := fmt.Sscanf(part, "%d/%d", &n, &of); err != nil {
			return err
		}
		if n == 1 {
			c.parts = nil
		}
		c.parts = append(c.parts, data...)
		if n < of {
			return nil // applied, and seq moves on, with the last part
		}
		data = c.parts
	}
	var e envelope
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&e); err != nil {
		return fmt.Errorf("message %s: %w", id, err)
	}
	c.apply(&e)
	c.seq = seq
	return nil
}

func (c *Consumer) apply(e *envelope) {
	table, shard := e.Source.Table, e.Source.Shard
	if e.Source.Layout != c.layout {
		c.move(e.Source.Layout)
	}
	if e.Source.Snapshot == "true" && e.Source.N == 1 { // rows are published from their first on, however often
		c.open[shard] = 0
	}
	if c.open[shard]++; c.open[shard] != e.Source.N {
		c.wrong = append(c.wrong, fmt.Sprintf("event %d of a transaction of shard %d comes as its %d.: %s of %s", e.Source.N, shard, c.open[shard], e.Op, table))
		c.open[shard] = e.Source.N
	}
	if e.Source.Last {
		c.open[shard] = 0
	}
	rows := c.rows(table, shard)
	var old map[string]any
	switch e.Op {
	case "t":
		maps.DeleteFunc(rows, func(_ string, row map[string]any) bool {
			return e.Source.Partition == "" || row[inPartition] == e.Source.Partition
		})
		if e.Source.Snapshot == "true" {
			clear(c.rows(table, -1))
		}
	case "u", "d":
		before := e.Before
		if before == nil {
			before = e.After
		}
		if old = c.remove(table, shard, e, before); old == nil {
			c.wrong = append(c.wrong, fmt.Sprintf("%s of a row of %s on shard %d that is not there: %s", e.Op, table, shard, keyOf(e, before)))
		}
	}
	if e.After == nil {
		return
	}
	for _, column := range e.Source.Unavailable {
		e.After[column] = old[column]
	}
	if e.Source.Partition != "" {
		e.After[inPartition] = e.Source.Partition
	}
	key := keyOf(e, e.After)
	if len(e.Source.Key) == 0 { // equal rows may be there several times
		for rows[key] != nil {
			key += "+"
		}
	} else if rows[key] != nil {
		c.wrong = append(c.wrong, fmt.Sprintf("%s of a row of %s on shard %d that is there: %s", e.Op, table, shard, key))
	}
	rows[key] = e.After
}

// move has what the layout before told looked for by whatever shard.
func (c *Consumer) move(layout int) {
	for table, shards := range c.tables {
		all := map[string]map[string]any{}
		for _, rows := range shards {
			maps.Copy(all, rows)
		}
		c.tables[table] = map[int]map[string]map[string]any{-1: all}
	}
	c.layout, c.open = layout, map[int]int{}
}

func (c *Consumer) rows(table string, shard int) map[string]map[string]any {
	if c.tables[table] == nil {
		c.tables[table] = map[int]map[string]map[string]any{}
	}
	if c.tables[table][shard] == nil {
		c.tables[table][shard] = map[string]map[string]any{}
	}
	return c.tables[table][shard]
}

func (c *Consumer) remove(table string, shard int, e *envelope, row map[string]any) map[string]any {
	key := keyOf(e, row)
	for _, from := range []int{shard, -1} {
		rows, key := c.rows(table, from), key
		for ; len(e.Source.Key) == 0 && rows[key+"+"] != nil; key += "+" { // the last of equal ones
		}
		if old := rows[key]; old != nil {
			delete(rows, key)
			return old
		}
	}
	return nil
}

// keyOf is a row's key as text; all of the row where it has none.
func keyOf(e *envelope, row map[string]any) string {
	columns := e.Source.Key
	if len(columns) == 0 {
		columns = slices.Sorted(maps.Keys(row))
		columns = slices.DeleteFunc(columns, func(c string) bool { return c == inPartition })
	}
	var values []any
	for _, column := range columns {
		values = append(values, row[column])
	}
	text, _ := json.Marshal(values)
	return string(text)
}

// Applied is the number of the last message that is applied.
func (c *Consumer) Applied() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq
}

// Fill writes what the consumer knows into the tables of a scratch database.
func (c *Consumer) Fill(t testing.TB, db *DB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := db.Conn(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `set local session_replication_role = replica`); err != nil { // rows come in any order
		t.Fatal(err)
	}
	for table, shards := range c.tables {
		for _, rows := range shards {
			for _, row := range rows {
				sql, args := insertOf(table, row)
				if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
					t.Fatalf("%v in %.200s", err, sql)
				}
			}
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// insertOf has every value as text, which the server reads as it would a literal.
func insertOf(table string, row map[string]any) (sql string, args []any) {
	var names, marks []string
	args = append(args, pgx.QueryExecModeSimpleProtocol)
	for name, value := range row {
		if name == inPartition {
			continue
		}
		names = append(names, pgx.Identifier{name}.Sanitize())
		args = append(args, asText(value))
		marks = append(marks, fmt.Sprintf("$%d", len(names)))
	}
	return fmt.Sprintf("insert into %s (%s) values (%s)", pgx.Identifier{table}.Sanitize(), strings.Join(names, ", "), strings.Join(marks, ", ")), args
}

func asText(value any) any {
	switch v := value.(type) {
	case nil:
		return nil
	case bool:
		return fmt.Sprintf("%.1s", fmt.Sprint(v))
	case json.Number:
		return v.String()
	}
	return value
}

// Right fails where the stream told something that cannot be.
func (c *Consumer) Right(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) > 0 {
		t.Errorf("%d events that cannot be: %s", len(c.wrong), strings.Join(c.wrong[:min(5, len(c.wrong))], "; "))
	}
	if len(c.twice) > 0 {
		t.Errorf("%d messages came twice: %v", len(c.twice), c.twice[:min(5, len(c.twice))])
	}
}

// Forget is what a consumer does that begins from nothing.
func (c *Consumer) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrong, twice := c.wrong, c.twice
	fresh := NewConsumer()
	c.layout, c.tables, c.seq, c.ids, c.parts, c.open = 0, fresh.tables, 0, fresh.ids, nil, fresh.open
	c.wrong, c.twice = wrong, twice
}

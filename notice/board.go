package notice

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pgreshard/layout"
)

// Bucket is the key-value bucket of the layouts that serve.
const Bucket = "pgreshard_layouts"

// Board is a connection to the bucket.
type Board struct {
	conn *nats.Conn
	js   jetstream.JetStream
}

const (
	reconnectWait = time.Second
	requestWait   = 5 * time.Second // longest one question to NATS may take
)

// Connect connects to NATS: at a URL, or to a server inside this process where that is given. It returns although nobody
// answers yet: the connection is tried again for as long as it is open.
func Connect(address string, inside *Server, name string, more ...nats.Option) (*nats.Conn, error) {
	options := []nats.Option{nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait)}
	if inside != nil {
		address, options = "", append(options, inside.within())
	}
	conn, err := nats.Connect(address, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return conn, nil
}

// Open opens the board, by a connection of its own.
func Open(address string, inside *Server, name string) (*Board, error) {
	conn, err := Connect(address, inside, name)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return &Board{conn: conn, js: js}, nil
}

// Close ends the connection.
func (b *Board) Close() { b.conn.Close() }

// Agree makes the board say what read says, by compare-and-set, again and again until no other writer came between. read
// is asked after the board: what is older than what another worker has put there meanwhile is refused by NATS.
func (b *Board) Agree(ctx context.Context, database string, read func(context.Context) (layout.Record, error)) error {
	bucket, err := b.bucket(ctx)
	if err != nil {
		return err
	}
	for {
		agreed, err := agree(ctx, bucket, key(database), read)
		if err != nil || agreed {
			return err
		}
	}
}

func (b *Board) bucket(ctx context.Context) (jetstream.KeyValue, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	bucket, err := b.js.KeyValue(ctx, Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		bucket, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: Bucket, Description: "the layouts that serve, as pgreshard's workers know them", History: 10})
		if errors.Is(err, jetstream.ErrBucketExists) {
			bucket, err = b.js.KeyValue(ctx, Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("NATS bucket %s: %w", Bucket, err)
	}
	return bucket, nil
}

// agree is one try; false: another writer came between.
func agree(ctx context.Context, bucket jetstream.KeyValue, key string, read func(context.Context) (layout.Record, error)) (bool, error) {
	asked, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	there, err := bucket.Get(asked, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		there, err = nil, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the layout at NATS: %w", err)
	}
	record, err := read(ctx)
	if err != nil {
		return false, err
	}
	value, err := json.Marshal(record)
	if err != nil {
		return false, err
	}
	told, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	switch {
	case there == nil:
		_, err = bucket.Create(told, key, value)
	case bytes.Equal(there.Value(), value):
		return true, nil
	default:
		_, err = bucket.Update(told, key, value, there.Revision())
	}
	if conflict(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("tell NATS the layout: %w", err)
	}
	return true, nil
}

// conflict says that a compare-and-set was lost.
func conflict(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) ||
		ok && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant // of a key that came into being
}

// key writes a database's name in the letters that a key may have; every other byte as = and two hexadecimal digits.
func key(database string) string {
	var b strings.Builder
	for _, c := range []byte(database) {
		if c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}
